"""A server that runs for a part of the time only, so that all other processes wait for it.

Stopped and continued in turns, it is as slow as it would be next to clients with many more cores.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RUN_S: Final = 0.001


@contextmanager
def slowed(pid: int, times: int) -> Iterator[None]:
    """Let a process run for one millisecond of so many within the context; 1 is all the time."""
    if times == 1:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.redis.slowed", f"{pid}", f"{times}"]
    brake = subprocess.Popen(command)
    try:
        yield
    finally:
        brake.kill()
        brake.wait()
        os.kill(pid, signal.SIGCONT)


def main() -> None:
    """Stop and continue the process of the first argument until it or this one ends."""
    pid, times = map(int, sys.argv[1:])
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(RUN_S * (times - 1))
        os.kill(pid, signal.SIGCONT)
        time.sleep(RUN_S)


if __name__ == "__main__":
    main()
