"""The log probabilities of a prompt's tokens, for answers that repeat it (`echo`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from handlers.generation.sampling import Likelihood, likelihoods

#: The most tokens that are read at a time, so that the others do not wait for a long prompt.
PIECE_TOKENS: Final = 512
#: The most logits at a time; as float32 they take 128 MiB.
_LOGITS: Final = 1 << 25


class PromptScores:
    """Reads a prompt piece by piece, outside of the batch, with a cache of its own.

    Args:
        likeliest: how many of the likeliest tokens come with the log probability of each.

    Attributes:
        found: those of the tokens from the second one on; nothing is before the first.
        shown: as clients see all tokens, once they are made; answers with one prompt share them.
    """

    def __init__(self, model: Any, tokens: Sequence[int], likeliest: int) -> None:
        self._model = model
        self._tokens = torch.tensor([list(tokens)], device=model.device)
        self._likeliest = likeliest
        width: int = model.config.get_text_config().vocab_size
        self._piece = max(1, min(PIECE_TOKENS, _LOGITS // width))
        self._read = 0
        self._cache: Any = None
        self.found: list[Likelihood] = []
        self.shown: list[dict[str, Any]] | None = None

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
            self.found += likelihoods(logits, following, wanted)
        count, self._read = end - self._read, end
        if self.done:
            self._cache = None
        return count
