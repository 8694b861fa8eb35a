"""The text of an answer's tokens as they come, and their log probabilities."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from headrace.generator import Generated

if TYPE_CHECKING:
    # At run time it would bring torch, which an answer does not need.
    from handlers.generation.sampling import Likelihood

#: How many tokens before the new ones are decoded with them, as some join across tokens. They are
#: at least _CONTEXT, and up to _CONTEXT_MAX, because shortening them costs one more decoding
#: (`python -m benchmarks.generation.output_tokens`).
_CONTEXT: Final = 6
_CONTEXT_MAX: Final = 24
#: After so many tokens an incomplete character is taken as it is; a character has four bytes.
_INCOMPLETE_MAX: Final = 4
_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of one answer. It is released at the ends of tokens only.

    So the released tokens are the state of the text, which can go on with them elsewhere.

    Args:
        decode: returns the text of tokens, without special ones.
        stop: texts before which the answer ends.
        tokens: those that were released before.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        tokens: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._stop = stop
        self._context = list(tokens[-_CONTEXT:])
        self._context_chars = len(decode(self._context))
        self._pending: list[int] = []
        self.stopped = bool(tokens) and self._find_stop(decode(tokens)) >= 0

    def add(self, tokens: Sequence[int], *, last: bool = False) -> tuple[str, list[int]]:
        """Take new tokens; return the text that is complete now, and its tokens.

        Sets `stopped` if a stop text has come; the text then ends before it.

        Args:
            last: no more follow, so all is released.
        """
        self._pending += tokens
        known_chars = self._context_chars
        decoded = self._decode(self._context + self._pending)
        text = decoded[known_chars:]
        stop_at = self._find_stop(text)
        if stop_at >= 0:
            self.stopped = True
            return text[:stop_at], self._release(len(self._pending), decoded)
        if last:
            return text, self._release(len(self._pending), decoded)
        safe_chars = self._safe_chars(text)
        for count in range(len(self._pending), 0, -1):
            if count < len(self._pending):
                decoded = self._decode(self._context + self._pending[:count])
                text = decoded[known_chars:]
            complete = not text.endswith(_INCOMPLETE) or count > _INCOMPLETE_MAX
            if complete and len(text) <= safe_chars:
                return text, self._release(count, decoded)
        return "", []

    def _release(self, count: int, decoded: str) -> list[int]:
        """Release so many tokens; `decoded` is the text of the context with them."""
        released, self._pending = self._pending[:count], self._pending[count:]
        self._context += released
        self._context_chars = len(decoded)
        if len(self._context) > _CONTEXT_MAX:
            self._context = self._context[-_CONTEXT:]
            self._context_chars = len(self._decode(self._context))
        return released

    def _find_stop(self, text: str) -> int:
        places = [text.find(stop) for stop in self._stop]
        return min((place for place in places if place >= 0), default=-1)

    def _safe_chars(self, text: str) -> int:
        """Return how many characters come before what may become a stop text."""
        for start in range(max(0, len(text) - max(map(len, self._stop), default=0)), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stop):
                return start
        return len(text)


#: JSON has no infinity; OpenAI's API has this number for the most unlikely tokens.
_LEAST: Final = -9999.0


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
        self._texts: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return what a token adds to a text; "" for a special one."""
        if token not in self._texts:
            # Some tokenizers drop a space at the beginning of a text.
            self._texts[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._texts[token]

    def with_logprob(self, token: int, logprob: float) -> dict[str, Any]:
        """Return a token with its log probability as clients see it."""
        text = self.text(token) or self._name_of(token)
        # A part of a character has no text of its own.
        encoded = None if _INCOMPLETE in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": encoded}

    def with_likelihood(
        self, token: int, logprob: float | None, likeliest: Sequence[tuple[int, float]]
    ) -> dict[str, Any]:
        """Return a token of a text as clients see it; a special one has no bytes in it.

        Args:
            logprob: None for the first token of a prompt.
        """
        found = self.with_logprob(token, logprob or 0.0)
        found["top_logprobs"] = [self.with_logprob(*one) for one in likeliest]
        if logprob is None:
            found["logprob"] = None
        if not self.text(token):
            found["bytes"] = []
        return found


class AnswerLogprobs:
    """The log probabilities of one answer, which come with its tokens.

    Args:
        special: also those of special tokens, and of tokens behind the end.
    """

    def __init__(self, texts: TokenTexts, *, special: bool = False) -> None:
        self._texts = texts
        self._special = special
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
            if self._special or (own and length < len(text)):
                logprobs.append(self._texts.with_likelihood(token, chosen, likeliest))
            length += len(own)
        return {"text": text, "logprobs": logprobs}


class Echo:
    """A prompt that comes before its answer, with the `logprobs` of its tokens or None."""

    def __init__(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> None:
        self._text = text
        self._logprobs = logprobs

    def before(self, delta: Any) -> Any:
        """Return the first piece of the answer with the prompt before it."""
        if self._logprobs is None:
            return self._text + (delta or "")
        more = delta or {"text": "", "logprobs": []}
        return {"text": self._text + more["text"], "logprobs": self._logprobs + more["logprobs"]}


def result_of(output: Generated) -> Any:
    """Return the result of an answer; its pieces may have log probabilities, or parts of calls."""
    if isinstance(output.text, str):
        return output
    result: dict[str, Any] = {
        "text": "".join(piece["text"] for piece in output.text),
        "finish_reason": output.finish_reason,
        "usage": output.usage,
    }
    logprobs = [piece["logprobs"] for piece in output.text if "logprobs" in piece]
    if logprobs:
        result["logprobs"] = list(chain.from_iterable(logprobs))
    calls: list[dict[str, str]] = []
    for part in chain.from_iterable(piece.get("tool_calls", ()) for piece in output.text):
        if "name" in part:
            calls.append({"name": part["name"], "arguments": ""})
        calls[part["index"]]["arguments"] += part["arguments"]
    if calls:
        result["tool_calls"] = calls
    return result
