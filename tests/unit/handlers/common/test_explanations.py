from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handlers.common.explanations import (
    STEPS,
    asked_targets,
    explain_image,
    importances_of,
    read_target,
    text_attributions,
    text_gradients,
)
from headrace.errors import HandlerError, InputError
from headrace.handler import Context


class Squares(nn.Module):
    """Not linear, so the steps of the integral matter."""

    def forward(self, images: Tensor) -> Tensor:
        sums = images.flatten(1).pow(3).sum(1)
        return torch.stack([sums, sums * 2], dim=1)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(10, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        logits: Tensor = self.out(self.embedding(tokens, offsets))
        return logits


def integrated(model: nn.Module, image: Tensor, target: int) -> Tensor:
    """Integrated gradients from black, with the rule of Gauss and Legendre, written out."""
    import numpy as np

    points, weights = np.polynomial.legendre.leggauss(STEPS)
    total = torch.zeros_like(image)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        at = (image * float(point)).requires_grad_()
        model(at.unsqueeze(0))[0, target].backward()
        assert at.grad is not None
        total += float(weight) * at.grad
    return total * image


def test_an_image_is_explained_by_integrated_gradients() -> None:
    image = torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(1))
    for target in (0, 1):
        found = torch.tensor(explain_image(Squares(), image, target))
        assert found.shape == image.shape
        assert torch.allclose(found, integrated(Squares(), image, target), atol=1e-5)
    # What all values add up to is the score above that of a black image.
    assert float(found.sum()) == pytest.approx(float(Squares()(image[None])[0, 1]), rel=1e-3)


def test_a_text_is_explained_at_its_embedding() -> None:
    torch.manual_seed(3)
    model = Bag()
    tokens = torch.tensor([4, 5, 6])
    found = importances_of(text_attributions(text_gradients(model), tokens, 2))
    # The model is linear behind its embedding: the gradient is the row of the class.
    pooled = model.embedding.weight[tokens].mean(0) - model.embedding.weight[0]
    shares = (pooled * model.out.weight[2]).softmax(0)
    assert found.tolist() == [pytest.approx(shares.tolist(), abs=1e-5)]


def test_a_class_that_the_model_lacks_fails_the_input() -> None:
    for target in (2, (0, 1)):
        with pytest.raises(InputError, match="the model has no class"):
            explain_image(Squares(), torch.rand(1, 2, 2), target)
    with pytest.raises(InputError, match="the model has no class 7"):
        text_attributions(text_gradients(Bag()), torch.tensor([1]), 7)


def test_a_model_without_an_embedding_has_no_explanation_of_texts() -> None:
    with pytest.raises(HandlerError, match="`embedding` of the model, and Squares has none"):
        text_gradients(Squares())


def test_a_missing_captum_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(HandlerError, match=r"pip install 'headrace\[explain\]'"):
        explain_image(Squares(), torch.rand(1, 2, 2), 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 0), (3, 3), ("4", 4), (b"12", 12), (bytearray(b"1"), 1), ("", 0), ([1, 2], (1, 2)),
     ("1, 2", (1, 2)), ("[4]", 4), ([5], 5)],
)  # fmt: skip
def test_targets(value: Any, expected: Any) -> None:
    assert read_target(value) == expected


@pytest.mark.parametrize("value", ["cat", 1.5, {}, ["a"], b"\xff"])
def test_wrong_targets(value: Any) -> None:
    with pytest.raises(InputError, match="is not a class"):
        read_target(value)


def test_jobs_ask_by_a_parameter_or_a_header() -> None:
    context = Context("m", "1.0", "cpu", Path())
    assert asked_targets(context, 3) == {}
    context.parameters = [{"explain": True, "target": 2}, {"explain": False}, {}, {}]
    context.headers = [{}, {}, {"explain": "True"}, {"explain": "False"}]
    assert asked_targets(context, 4) == {0: 2, 2: None}
