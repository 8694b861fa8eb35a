"""Kills what model processes have started once their worker is gone, however it ended.

The kernel kills a model process when its worker is gone, but not the children that its handler has
started. So each worker has an orphan guard. This small process has the list of the process groups
of the model processes, and waits for EOF on its input. It runs by path with `-I -S`, so that it
starts at once and stays small; this module may import the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class OrphanGuard:
    """The orphan guard of a worker; its process starts when it is first needed."""

    def __init__(self, variable: str, mark: str) -> None:
        self.mark = mark
        self._variable = variable
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """Kill this process group when the worker is gone."""
        self._groups.add(group)
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._send(f"+{group}\n")

    def unwatch(self, group: int) -> None:
        """Stop watching a group that has ended; its number may be used again."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def close(self) -> None:
        """End the guard; it kills the processes that are left of its groups."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), self._variable, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        for group in self._groups:
            self._send(f"+{group}\n")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # A guard that was killed is replaced when the next process is watched.
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode())


def main() -> None:
    """Wait for the worker's end, then kill the processes that it left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    groups: set[int] = set()
    while line := sys.stdin.buffer.readline():
        change: Callable[[int], None] = groups.add if line[:1] == b"+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    # Processes with a session of their own are recognised by the variable that they inherited.
    end_marked(*sys.argv[1:])


def end_marked(variable: str, mark: str) -> None:
    """Kill the processes whose environment has this variable with this value."""
    for pid in marked(variable, mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def marked(variable: str, mark: str) -> list[int]:
    """Return the processes whose environment has this value, as far as /proc shows it."""
    wanted, pids = f"{variable}={mark}".encode(), []
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


if __name__ == "__main__":
    main()
