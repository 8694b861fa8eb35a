"""Chooses the next token of each answer by the parameters of its own request."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

#: A lower temperature takes the likeliest token: divided by it, logits become infinite.
GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the likeliest token; the others then mean nothing.
        top_p: only the likeliest tokens that have this probability together; 1 for all.
        top_k: only so many of the likeliest tokens; 0 for all.
        seed: the same seed makes the same choices.
        min_p: only tokens with at least this share of the probability of the likeliest; 0 for all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0


def adjusted(logits: Tensor, rows: Sequence[tuple[Sampling, int]]) -> Tensor:
    """Return scores whose largest one is the token that is chosen.

    The largest of `logits / temperature` plus Gumbel noise is a sample of their softmax (Gumbel,
    1954; "Gumbel-max trick"). The noise depends on the seed and the position alone. So the choices
    do not depend on the other requests of the batch. An answer that continues in another process
    continues in the same way.

    Args:
        logits: (rows or more, vocabulary), float32; rows without parameters stay as they are.
        rows: for each row its parameters, and how many tokens its answer has already.
    """
    chosen = [
        place for place, (sampling, _) in enumerate(rows) if sampling.temperature > GREEDY_BELOW
    ]
    if not chosen:
        return logits
    index = torch.tensor(chosen, device=logits.device)
    drawn = [rows[place] for place in chosen]
    scores = logits[index] / _column([one.temperature for one, _ in drawn], logits)
    if any(0 < one.top_k < scores.shape[1] or one.top_p < 1 for one, _ in drawn):
        scores = _likeliest(scores, [one for one, _ in drawn])
    if any(one.min_p for one, _ in drawn):
        scores = torch.stack([_min_p(one.min_p, scores[n]) for n, (one, _) in enumerate(drawn)])
    result = logits.clone()
    result[index] = scores + torch.stack([_gumbel(one, at, scores) for one, at in drawn])
    return result


def masked(logits: Tensor, masks: Sequence[tuple[int, bytes]]) -> Tensor:
    """Return logits in which no token is left that a mask excludes.

    Args:
        masks: rows of the logits with their bits, eight tokens a byte.
    """
    if not masks:
        return logits
    packed = torch.frombuffer(bytearray(b"".join(bits for _, bits in masks)), dtype=torch.uint8)
    excluded = _excluded(logits.device)[packed.to(logits.device).int()]
    excluded = excluded.view(torch.bool).view(len(masks), -1)
    count, width = excluded.shape[1], logits.shape[1]
    if count < width:  # the model may have more logits than the tokenizer has tokens
        excluded = torch.nn.functional.pad(excluded, (0, width - count), value=True)
    elif count > width:
        excluded = excluded[:, :width]
    if len(masks) == logits.shape[0]:
        return logits.masked_fill(excluded, -torch.inf)
    result = logits.clone()
    for n, (row, _) in enumerate(masks):
        result[row].masked_fill_(excluded[n], -torch.inf)
    return result


@functools.cache
def _excluded(device: torch.device) -> Tensor:
    """Return which of its eight tokens each byte of a mask excludes, in the bytes of a number."""
    bits = torch.arange(256).unsqueeze(1) >> torch.arange(8)
    return (bits & 1 == 0).view(torch.int64).flatten().to(device)


class Likelihood(NamedTuple):
    """How likely the model held a token that was chosen, by its logits alone.

    Attributes:
        chosen: the log probability of the token.
        likeliest: the likeliest tokens in its place, each with its log probability.
    """

    chosen: float
    likeliest: list[tuple[int, float]]


def likelihoods(
    logits: Tensor, tokens: Tensor, wanted: Sequence[tuple[int, int]]
) -> list[Likelihood]:
    """Return how likely tokens are.

    Args:
        logits: those of the model (rows, vocabulary).
        tokens: one for each row.
        wanted: the rows, and how many of the likeliest tokens each of them wants.
    """
    index = torch.tensor([place for place, _ in wanted], device=logits.device)
    shares = logits[index].float().log_softmax(dim=-1)
    chosen = shares.gather(1, tokens[index].unsqueeze(1))[:, 0].tolist()
    most = min(max(count for _, count in wanted), shares.shape[1])
    values, others = (found.tolist() for found in shares.topk(most, dim=-1))
    return [
        Likelihood(chosen[n], list(zip(others[n], values[n], strict=True))[:count])
        for n, (_, count) in enumerate(wanted)
    ]


def _likeliest(scores: Tensor, rows: Sequence[Sampling]) -> Tensor:
    """Set the scores of tokens that top_k and top_p exclude to minus infinity."""
    ordered, order = scores.sort(dim=-1, descending=True)
    places = torch.arange(scores.shape[1], device=scores.device)
    most = _column([float(one.top_k or scores.shape[1]) for one in rows], scores)
    excluded = places >= most
    shares = ordered.masked_fill(excluded, -torch.inf).softmax(dim=-1)
    excluded |= shares.cumsum(dim=-1) - shares >= _column([one.top_p for one in rows], scores)
    excluded[:, 0] = False
    return scores.masked_fill(excluded.scatter(-1, order, excluded), -torch.inf)


def _min_p(least: float, scores: Tensor) -> Tensor:
    """Return the scores of one row (vocabulary) without tokens that are too unlikely."""
    from transformers import MinPLogitsWarper

    warper: Any = MinPLogitsWarper(least)
    found: Tensor = warper(scores, scores)  # it reads no tokens
    return found


def _gumbel(sampling: Sampling, position: int, scores: Tensor) -> Tensor:
    """Return the noise of one row (vocabulary)."""
    digest = hashlib.blake2b(f"{sampling.seed} {position}".encode(), digest_size=8).digest()
    generator = torch.Generator(scores.device)
    generator.manual_seed(int.from_bytes(digest) >> 1)
    uniform = torch.rand(
        scores.shape[1], generator=generator, device=scores.device, dtype=torch.float64
    )
    return -(-uniform.clamp(min=1e-300).log()).log().to(scores.dtype)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).unsqueeze(1)
