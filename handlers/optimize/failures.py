"""A failed build or load of a variant in words, and where its traceback is."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError

_SHOWN_CHARS: Final = 600
_TRACEBACK: Final = "traceback.txt"


def cause(error: BaseException) -> str:
    """Return an error in words: our own message and remedy, else its type, text and place."""
    if isinstance(error, HeadraceError):
        return "; ".join(filter(None, (error.message, error.hint)))
    text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ..."
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def failure(problem: str, error: BaseException, folder: Path) -> str:
    """Return what failed, the cause, the remedy, and the file with the traceback, which is written.

    Args:
        problem: the step that failed, such as "it cannot be built".
        error: the cause.
        folder: the folder of the build.
    """
    file = folder / _TRACEBACK
    with suppress(OSError):
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return (
        f"{problem}: {cause(error)}; use another backend, or mend the cause and run `headrace "
        f"optimize` with --again; the traceback is in {file}"
    )
