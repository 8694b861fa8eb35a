"""Helpers of handlers of text: tokens, and their n-grams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

#: Punctuation that becomes a token of its own, and that only divides.
_OWN: Final = re.compile(r"(['.,()!?])")
_DIVIDES: Final = re.compile(r"<br\s*/>|[;:]")


def get_tokenizer(tokenizer: Any, language: str = "en") -> Callable[[str], list[str]]:
    """Return a function that divides a text into tokens.

    Args:
        tokenizer: None to divide at blanks; `basic_english` for lower case and punctuation as
            tokens; or a function, which is returned.

    Raises:
        ValueError: there is no such tokenizer.
    """
    if tokenizer is None:
        return str.split
    if tokenizer == "basic_english":
        if language != "en":
            raise ValueError(f"basic_english is for the language en only, not {language!r}")
        return _basic_english
    if callable(tokenizer):
        return tokenizer  # type: ignore[no-any-return]
    raise ValueError(
        f"there is no tokenizer {tokenizer!r}: write None, basic_english or a function"
    )


def _basic_english(text: str) -> list[str]:
    plain = _DIVIDES.sub(" ", text.lower().replace('"', ""))
    return _OWN.sub(r" \1 ", plain).split()


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yield the tokens, then each two neighbours with a blank between, and so on up to `ngrams`."""
    for size in range(1, ngrams + 1):
        for begin in range(len(token_list) - size + 1):
            yield " ".join(token_list[begin : begin + size])
