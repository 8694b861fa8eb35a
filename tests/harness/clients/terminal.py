"""A real terminal of a chosen size, kept by tmux: what a program shows there, and keys to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

#: The shell says it before each command, so that a test sees when one has ended.
PROMPT = "ready$"


def require_tmux() -> str:
    """The program. A missing one skips on a laptop and fails in CI."""
    found = shutil.which("tmux")
    if found is None:
        message = "no tmux on the PATH (Debian: apt-get install tmux)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


class Terminal:
    """A shell on a terminal of its own; see `terminal`."""

    def __init__(self, program: str, socket: Path) -> None:
        self._command = [program, "-S", str(socket), "-f", "/dev/null"]

    def start(self, width: int, height: int, environ: Mapping[str, str]) -> None:
        given = {**environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PS1": PROMPT}
        shell = ["env", *(f"{k}={v}" for k, v in given.items()), "bash", "--norc", "--noprofile"]
        size = ("-x", str(width), "-y", str(height))
        self._do("new-session", "-d", "-s", "test", *size, *shell)

    def stop(self) -> None:
        subprocess.run([*self._command, "kill-server"], capture_output=True, check=False)

    def type(self, *keys: str) -> None:
        """Press keys by tmux' names, such as `q`, `Enter` or `C-c`."""
        self._do("send-keys", "-t", "test", *keys)

    def enter(self, line: str) -> None:
        """Type a line, and Enter."""
        self._do("send-keys", "-t", "test", "-l", line)
        self.type("Enter")

    def resize(self, width: int, height: int) -> None:
        self._do("resize-window", "-t", "test", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        """What stands there now, without spaces at the ends of lines."""
        return self._do("capture-pane", "-p", "-t", "test").splitlines()

    def coloured(self) -> str:
        """The same as `text` with its colours, as ANSI escapes."""
        return self._do("capture-pane", "-e", "-p", "-t", "test")

    def text(self) -> str:
        return "\n".join(self.lines())

    def told(self, variable: str) -> str:
        """What tmux says of the pane, such as `alternate_on`."""
        return self._do("display-message", "-p", "-t", "test", f"#{{{variable}}}").strip()

    def _do(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout


@contextmanager
def terminal(
    folder: Path, width: int, height: int, environ: Mapping[str, str]
) -> Iterator[Terminal]:
    """A terminal with a shell, gone afterwards with all that runs on it."""
    made = Terminal(require_tmux(), folder / "tmux")
    made.start(width, height, environ)
    try:
        yield made
    finally:
        made.stop()
