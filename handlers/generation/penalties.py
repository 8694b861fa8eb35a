"""Changes the logits of an answer by its tokens so far: penalties, biases, `min_tokens`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


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
        bias = {(token,): one for token, one in self._penalties.bias.items() if token < width}
        if bias:
            self._bias = SequenceBiasLogitsProcessor(bias)
        if self._penalties.repetition != 1:
            self._repetition = RepetitionPenaltyLogitsProcessor(self._penalties.repetition)


def penalized(logits: Tensor, rows: Sequence[tuple[int, Penalized]]) -> Tensor:
    """Return logits with the penalties of some rows."""
    if not rows:
        return logits
    result = logits.clone()
    for row, one in rows:
        result[row] = one.logits(logits[row : row + 1])[0]
    return result
