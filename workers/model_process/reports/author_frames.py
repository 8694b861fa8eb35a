"""Which frames of a traceback are the code of a handler's author, and which are ours."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Final

import headrace
import workers
from handlers import loader
from handlers.extension import handler_parts

_LOADER: Final = Path(loader.__file__)
_OURS: Final = (
    f"{Path(workers.__file__).parent}/",
    f"{Path(headrace.__file__).parent}/",
    str(_LOADER),
    "<frozen importlib",
)
_STANDARD_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def leads_to_author(file: str) -> bool:
    """Return whether a frame of this file only leads to the author's code.

    Headrace calls a verb perhaps through the standard library, as asyncio and threads do.
    """
    if file.startswith(_OURS) or file in _leading():
        return True
    return file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _INSTALLED)


def _leading() -> set[str]:
    """Return the files of extensions that only call the author's code."""
    parts = handler_parts().values()
    return {str(part.folder / name) for part in parts for name in part.leading}


def author_traceback(error: BaseException) -> str:
    """Return an error's traceback, from the first frame of the author's code on.

    Errors in its chain are shortened in the same way. Where no frame is the author's, a
    `HeadraceError` has none: its message is enough. Another error keeps all of them.
    """
    shown = traceback.TracebackException.from_exception(error)
    pending, seen = [shown], 0
    while pending:
        part = pending.pop()
        own = _from_author(part.stack)
        seen += bool(own)
        if own or isinstance(error, headrace.errors.HeadraceError):
            part.stack[:] = own
        linked = (part.__cause__, part.__context__, *(part.exceptions or ()))
        pending += [below for below in linked if below]
    return "".join(shown.format()) if seen or shown.stack else ""


def _from_author(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    for at, frame in enumerate(stack):
        if not leads_to_author(frame.filename):
            return stack[at:]
    return []
