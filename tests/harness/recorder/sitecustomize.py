"""Records which of our functions run, in each Python that has this folder on its path.

Each call appends its module and its name to the file that `RECORDED_CALLS` names. What runs because
a module is imported is no call.
"""

from __future__ import annotations

import os
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

_ROOT = f"{Path(__file__).resolve().parents[3]}/"
_OURS = tuple(f"{_ROOT}{name}/" for name in ("headrace", "api", "workers", "handlers"))
_FILE = os.open(os.environ["RECORDED_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _record(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    # The body of a module or a class is not optimised, and that of a comprehension has no name.
    function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
    if event == "call" and function and code.co_filename.startswith(_OURS):
        line = f"{code.co_filename.removeprefix(_ROOT)} {code.co_qualname}\n"
        os.write(_FILE, line.encode())


threading.setprofile(_record)
sys.setprofile(_record)
