"""The log probabilities of an answer's tokens, as pieces and results have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from handlers.generation.sampling import Likelihood
from headrace.generator import Generated

#: JSON has no infinity; OpenAI's API has this number for the most unlikely tokens.
_LEAST: Final = -9999.0
_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The text of each token of a model, alone.

    Args:
        decode: returns the text of tokens, without special ones.
        name_of: returns the name of a token in the vocabulary, such as that of the end token.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], name_of: Callable[[int], str]
    ) -> None:
        self._decode = decode
        self._name_of = name_of
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return what a token adds to a text; "" for a special one."""
        found = self._known.get(token)
        if found is None:
            # Some tokenizers drop a space at the beginning of a text.
            found = self._decode([token, token])[len(self._decode([token])) :]
            self._known[token] = found
        return found

    def shown(self, token: int, logprob: float) -> dict[str, Any]:
        """Return a token and its log probability as clients see it."""
        text = self.text(token) or self._name_of(token)
        # A part of a character has no text of its own.
        encoded = None if _INCOMPLETE in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": encoded}


class AnswerLogprobs:
    """The log probabilities of one answer, which come with its tokens."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._pending: deque[Likelihood] = deque()

    def add(self, found: Iterable[Likelihood]) -> None:
        """Take those of new tokens."""
        self._pending += found

    def delta(self, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        """Return a piece: a text, and the log probabilities of the tokens that have made it.

        Special tokens are no part of the text, and neither are those behind its end.

        Args:
            text: the new text; a stop text may have cut it.
            tokens: its tokens, whose log probabilities have come.
        """
        logprobs: list[dict[str, Any]] = []
        length = 0
        for token in tokens:
            chosen, likeliest = self._pending.popleft()
            own = self._texts.text(token)
            if own and length < len(text):
                logprobs.append(
                    {
                        **self._texts.shown(token, chosen),
                        "top_logprobs": [self._texts.shown(*one) for one in likeliest],
                    }
                )
            length += len(own)
        return {"text": text, "logprobs": logprobs}


def whole(output: Generated) -> Any:
    """Return the result of an answer; its pieces may have log probabilities."""
    if isinstance(output.text, str):
        return output
    return {
        "text": "".join(piece["text"] for piece in output.text),
        "finish_reason": output.finish_reason,
        "usage": output.usage,
        "logprobs": [one for piece in output.text for one in piece["logprobs"]],
    }
