"""Sampling: each row by its own parameters, and alike wherever it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from handlers.generation.sampling import Sampling, adjusted

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]])


def choices(count: int = 4000, **parameters: Any) -> Tensor:
    """How often each token is chosen, as shares."""
    parameters = {"temperature": 1.0, **parameters}
    rows = [(Sampling(**parameters, seed=seed), 0) for seed in range(count)]
    chosen = adjusted(LOGITS.repeat(count, 1), rows).argmax(dim=-1)
    return torch.bincount(chosen, minlength=LOGITS.shape[1]) / count


def close(found: Tensor, expected: Tensor) -> None:
    # Four standard deviations of a share of 4,000 draws are at most 0.032.
    assert (found - expected).abs().max() < 0.032


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_with_their_probabilities(temperature: float) -> None:
    close(choices(temperature=temperature), (LOGITS[0] / temperature).softmax(dim=-1))


def test_top_k_leaves_the_likeliest() -> None:
    expected = torch.zeros(5)
    expected[:2] = LOGITS[0, :2].softmax(dim=-1)
    close(choices(top_k=2), expected)


def test_top_p_leaves_those_that_have_it_together() -> None:
    shares = LOGITS[0].softmax(dim=-1)
    just_two = float(shares[:2].sum()) - 0.01
    expected = torch.zeros(5)
    expected[:2] = LOGITS[0, :2].softmax(dim=-1)
    close(choices(top_p=just_two), expected)
    assert choices(top_p=1e-9)[0] == 1


def test_rows_do_not_depend_on_each_other() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    rows = [
        (Sampling(), 0),
        (Sampling(temperature=1.0, seed=7), 3),
        (Sampling(temperature=0.7, top_k=5, seed=7), 3),
        (Sampling(temperature=1.3, top_p=0.5, seed=8), 0),
        (Sampling(temperature=1.0, seed=7), 4),
    ]
    together = adjusted(logits, rows).argmax(dim=-1)
    alone = [adjusted(logits[n : n + 1], [row]).argmax() for n, row in enumerate(rows)]
    assert together[: len(rows)].tolist() == [int(one) for one in alone]
    assert together[0] == logits[0].argmax()
    assert torch.equal(adjusted(logits, rows)[5], logits[5])


def test_each_position_has_other_noise() -> None:
    row = LOGITS.repeat(64, 1)
    seeded = [(Sampling(temperature=1.0, seed=3), position) for position in range(64)]
    chosen = adjusted(row, seeded).argmax(dim=-1)
    assert len(set(chosen.tolist())) > 1
    assert torch.equal(chosen, adjusted(row, seeded).argmax(dim=-1))


def test_all_greedy_rows_cost_nothing() -> None:
    assert adjusted(LOGITS, [(Sampling(), 0)]) is LOGITS
