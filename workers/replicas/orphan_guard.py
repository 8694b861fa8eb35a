"""Nothing that a model process started outlives the worker, whatever becomes of the worker.

The kernel kills a model process when its worker is gone, but not the children that its handler has
started. So each worker has a guard: a small process that is told of the model processes' groups and
otherwise waits for EOF on its input. Run with `-I -S`, so that it starts at once and stays small:
this module needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Stands in the environment of every model process and, unless it is taken out, of what it starts.
MARK: Final = "HEADRACE_MODEL_PARENT"
#: As `MARK`, for one model process and what that one starts.
LIFE: Final = "HEADRACE_MODEL_LIFE"


class OrphanGuard:
    """The guard of one worker, seen from the worker; it is started when it is first needed.

    Args:
        mark: the value of `MARK` that only this worker's model processes have.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """End this process group when the worker is gone."""
        self._groups.add(group)
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended; its number may become another's."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard, and with it whatever is left of the groups that it watches."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        for group in self._groups:
            self._tell(f"+{group}\n")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # A guard that was killed is replaced when the next process is watched.
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode())


def main() -> None:
    """Wait for the worker's end, then kill all that it left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    groups: set[int] = set()
    while line := sys.stdin.buffer.readline():
        change: Callable[[int], None] = groups.add if line[:1] == b"+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    # Those that went into a session of their own are known by what they inherited.
    end_marked(MARK, sys.argv[1])


def end_marked(name: str, mark: str) -> None:
    """Kill the processes that have this mark in their environment."""
    for pid in marked(name, mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def marked(name: str, mark: str) -> list[int]:
    """The processes that have this mark in their environment, as far as /proc shows it."""
    wanted, found = f"{name}={mark}".encode(), []
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
