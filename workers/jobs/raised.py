"""What a handler raised and where, as the text of its traceback shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from handlers.extension import handler_parts

#: What the stacks of a timeout have in their heads.
_STACKS: Final = "(most recent call first)"
#: What the lines of an ExceptionGroup begin with, and what is between it and its parts.
_GROUP_LINE: Final = re.compile(r"^  [|+] ", re.MULTILINE)
_GROUP_PARTS: Final = "\n  +-+--"
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
#: The line after the frames of a traceback begins with the exception's name.
_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.]*)", re.MULTILINE)
#: Files whose frames are not the handler's own: libraries, and the model process.
_LIBRARY: Final = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*|model_process)/|^<")
_PACKAGE: Final = f"{Path(__file__).parents[2] / 'headrace'}/"


class Raised(NamedTuple):
    """An exception, and the place in the handler's own code.

    Attributes:
        exception: the class, without its module.
        where: file and line, such as `words.py:7`: the last frame that is the handler's own. The
            folder is left out, as it differs between hosts.
    """

    exception: str
    where: str

    @property
    def text(self) -> str:
        """Both, for a log."""
        return f"{self.exception} at {self.where}"


def read_raised(traceback: str) -> Raised | None:
    """Read a traceback; None if it has no frames, or is the stacks of a timeout."""
    # An error in a task group has its place where the group is; its parts may have none.
    traceback = _GROUP_LINE.sub("", traceback.partition(_GROUP_PARTS)[0])
    frames = [] if _STACKS in traceback else list(_FRAME.finditer(traceback))
    if not frames:
        return None
    last_first = [frame for frame in reversed(frames) if _is_own(frame[1])] or [frames[-1]]
    # The author's handler may extend that of an extension.
    extended = tuple(f"{part.folder}/" for part in handler_parts().values())
    own = next((frame for frame in last_first if not frame[1].startswith(extended)), last_first[0])
    # Only the first line after the frames: the exception's text may have lines of its own.
    kind = _EXCEPTION.search(traceback, frames[-1].end())
    name = kind[1].rpartition(".")[2] if kind else "exception"
    return Raised(name, f"{Path(own[1]).name}:{own[2]}")


def _is_own(file: str) -> bool:
    return not (_LIBRARY.search(file) or file.startswith(_PACKAGE))
