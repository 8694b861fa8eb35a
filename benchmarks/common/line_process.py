"""A process that reads a line on stdin and writes a line on stdout for each request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil


class LineProcess:
    """One of our modules, run with stdin and stdout as pipes.

    Args:
        arguments: its command line.
    """

    def __init__(self, module: str, *arguments: str, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def request(self, line: str) -> str:
        """Send a line and return the reply; empty if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process, its threads, and its children that have ended."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(sum(times[:4]))

    def close(self) -> None:
        """End the process by EOF."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def line_process(module: str, *arguments: str, environ: Mapping[str, str]) -> Iterator[LineProcess]:
    """Run a process within the context."""
    process = LineProcess(module, *arguments, environ=environ)
    try:
        yield process
    finally:
        process.close()
