"""Child processes of a test or a benchmark, ended whatever they do."""

from __future__ import annotations

import subprocess


def end_child(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Ask a child to end, kill it after `within_s` seconds, and collect it."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
