"""The most similar known name, for messages about an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from headrace.errors import ModelNotFound

NAMES_SHOWN: Final = 10


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or "" if no known name is similar."""
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def listing(names: Iterable[str]) -> str:
    """Return up to ten names in order, with commas; `none` without names."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def unknown_model(name: str, known: Iterable[str]) -> ModelNotFound:
    """Return the error for a model that does not exist; its hint lists those that do."""
    names = list(known)
    return ModelNotFound(
        f"no model {name[:64]!r} is registered{did_you_mean(name[:64], names)}",
        hint=f"use one of {listing(names)}",
    )
