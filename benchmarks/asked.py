"""A process that is asked by lines and answers by lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil


class Asked:
    """A module of ours that runs with its stdin and stdout as pipes.

    Args:
        module: its name.
        arguments: of its command line.
        environ: its environment.
    """

    def __init__(self, module: str, *arguments: str, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, line: str) -> str:
        """The line that it answers with; empty when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def cpu_s(self) -> float:
        """Seconds of CPU that it has used, its threads and its children that ended too."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(sum(times[:4]))

    def close(self) -> None:
        """Let it end, by EOF."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def asked(module: str, *arguments: str, environ: Mapping[str, str]) -> Iterator[Asked]:
    """A running one, gone afterwards."""
    process = Asked(module, *arguments, environ=environ)
    try:
        yield process
    finally:
        process.close()
