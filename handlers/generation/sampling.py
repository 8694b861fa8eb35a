"""Chooses the next token of each answer by the parameters of its own request.

Masks and penalties change the logits first. The log probabilities are those of the model itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

#: A lower temperature takes the likeliest token: divided by it, logits become infinite.
GREEDY_BELOW: Final = 1e-5
#: The most tokens of a prompt that are scored at a time, so that the others do not wait for it.
PIECE_TOKENS: Final = 512
#: The most logits at a time; as float32 they take 128 MiB.
_LOGITS: Final = 1 << 25


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
    samplings = [sampling for sampling, _ in drawn]
    scores = logits[index] / _column([sampling.temperature for sampling in samplings], logits)
    if any(0 < sampling.top_k < scores.shape[1] or sampling.top_p < 1 for sampling in samplings):
        scores = _likeliest(scores, samplings)
    if any(sampling.min_p for sampling in samplings):
        rows_of_scores = zip(samplings, scores, strict=True)
        scores = torch.stack([_min_p(sampling.min_p, row) for sampling, row in rows_of_scores])
    result = logits.clone()
    result[index] = scores + torch.stack([_gumbel(*row, scores) for row in drawn])
    return result


def masked(logits: Tensor, masks: Sequence[tuple[int, bytes]]) -> Tensor:
    """Return logits without the tokens that `masks` exclude: rows of bits, eight tokens a byte."""
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
    """How likely a chosen token, and the likeliest ones in its place, were by the logits alone."""

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
    likeliest = shares.topk(min(max(count for _, count in wanted), shares.shape[1]), dim=-1)
    values, others = likeliest.values.tolist(), likeliest.indices.tolist()
    return [
        Likelihood(chosen[n], list(zip(others[n], values[n], strict=True))[:count])
        for n, (_, count) in enumerate(wanted)
    ]


def _likeliest(scores: Tensor, rows: Sequence[Sampling]) -> Tensor:
    """Set the scores of tokens that top_k and top_p exclude to minus infinity."""
    ordered, order = scores.sort(dim=-1, descending=True)
    places = torch.arange(scores.shape[1], device=scores.device)
    excluded = places >= _column([float(row.top_k or scores.shape[1]) for row in rows], scores)
    shares = ordered.masked_fill(excluded, -torch.inf).softmax(dim=-1)
    excluded |= shares.cumsum(dim=-1) - shares >= _column([row.top_p for row in rows], scores)
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


@dataclass(frozen=True, slots=True)
class Penalties:
    """What a request asks for.

    Attributes:
        frequency: what a logit loses for each time that its token is in the answer.
        presence: what it loses if its token is in the answer.
        repetition: what a positive logit is divided by, and a negative one multiplied by, if its
            token is in the prompt or the answer.
        bias: what is added to the logits of tokens.
        min_tokens: how many tokens come before a token that ends the answer.
    """

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0

    @property
    def change_nothing(self) -> bool:
        """Whether the logits stay as they are."""
        return self == Penalties()


class Penalized:
    """The penalties of one answer. They follow from its tokens alone.

    Args:
        prompt: the tokens of the prompt.
        answer: those of the answer that has run in another process before.
        ends: the tokens that end the answer.

    Attributes:
        count: how many tokens of the answer it has read.
    """

    def __init__(
        self,
        penalties: Penalties,
        prompt: Sequence[int],
        answer: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        self._penalties = penalties
        self._ends = ends
        self._counts: Counter[int] = Counter()
        self._seen = dict.fromkeys(prompt) if penalties.repetition != 1 else {}
        self._bias: Any = None
        self._repetition: Any = None
        self._prepared = False
        self.count = 0
        self.read(answer)

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens of the answer."""
        self.count += len(tokens)
        self._counts.update(tokens)
        if self._penalties.repetition != 1:
            self._seen.update(dict.fromkeys(tokens))

    def logits(self, logits: Tensor) -> Tensor:
        """Return the logits of the next token (1, vocabulary); minus infinity stays."""
        asked, device = self._penalties, logits.device
        if not self._prepared:
            self._prepare(logits.shape[1])
        if self._bias is not None:
            logits = self._bias(logits, logits)  # a bias of one token reads no tokens
        if self._repetition is not None:
            logits = self._repetition(torch.tensor([list(self._seen)], device=device), logits)
        if self._counts and (asked.frequency or asked.presence):
            tokens = torch.tensor(list(self._counts), device=device)
            counts = torch.tensor(list(self._counts.values()), device=device, dtype=logits.dtype)
            lost = -asked.frequency * counts - asked.presence
            logits = logits.index_add(1, tokens, lost.unsqueeze(0))
        if self.count < asked.min_tokens and self._ends:
            ends = torch.tensor(self._ends, device=device)
            longer = logits.index_fill(1, ends, -torch.inf)
            # A mask may leave nothing but the end.
            logits = torch.where(longer.max() > -torch.inf, longer, logits)
        return logits

    def _prepare(self, width: int) -> None:
        """Make transformers' processors for a model with so many logits."""
        from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

        self._prepared = True
        # A tokenizer may have more tokens than the model has logits.
        self._ends = [token for token in self._ends if token < width]
        bias = {(token,): added for token, added in self._penalties.bias.items() if token < width}
        if bias:
            self._bias = SequenceBiasLogitsProcessor(bias)
        if self._penalties.repetition != 1:
            self._repetition = RepetitionPenaltyLogitsProcessor(self._penalties.repetition)


def penalized(logits: Tensor, rows: Sequence[tuple[int, Penalized]]) -> Tensor:
    """Return logits with the penalties of some rows."""
    if not rows:
        return logits
    result = logits.clone()
    for row, penalties in rows:
        result[row] = penalties.logits(logits[row : row + 1])[0]
    return result


class PromptScores:
    """Reads a prompt piece by piece, outside of the batch, with a cache of its own.

    Args:
        likeliest: how many of the likeliest tokens come with the log probability of each.

    Attributes:
        likelihoods: those of the tokens from the second one on; nothing is before the first.
        as_logprobs: as clients see all tokens, once made; answers with one prompt share them.
    """

    def __init__(self, model: Any, tokens: Sequence[int], likeliest: int) -> None:
        self._model = model
        self._tokens = torch.tensor([list(tokens)], device=model.device)
        self._likeliest = likeliest
        width: int = model.config.get_text_config().vocab_size
        self._piece = max(1, min(PIECE_TOKENS, _LOGITS // width))
        self._read = 0
        self._cache: Any = None
        self.likelihoods: list[Likelihood] = []
        self.as_logprobs: list[dict[str, Any]] | None = None

    @property
    def done(self) -> bool:
        """Whether all tokens have been read."""
        return self._read >= self._tokens.shape[1] - 1

    def read(self) -> int:
        """Read the next piece; return how many tokens it has."""
        # The last token is followed by none.
        end = min(self._read + self._piece, self._tokens.shape[1] - 1)
        with torch.inference_mode():
            output = self._model(
                self._tokens[:, self._read : end], past_key_values=self._cache, use_cache=True
            )
            self._cache = output.past_key_values
            logits = output.logits[0]
            following = self._tokens[0, self._read + 1 : end + 1]
            wanted = [(row, self._likeliest) for row in range(len(following))]
            self.likelihoods += likelihoods(logits, following, wanted)
        count, self._read = end - self._read, end
        if self.done:
            self._cache = None
        return count
