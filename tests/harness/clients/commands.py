"""The client commands as a user runs them: processes, with pipes or on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from headrace.cli.main import main
from headrace.cli.shared import options
from tests.harness.servers.up import clean_environment

TIMEOUT_S = 60


class Commands:
    """Runs `headrace` commands against one server.

    Attributes:
        url: the server's address; empty where there is none.
        folder: the working directory.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command that ends by itself."""
        return subprocess.run(
            self._command(*arguments), cwd=self.folder, env=self._environment(), input=stdin,
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def lines(self, *arguments: str, stdin: bytes = b"", rc: int = 0) -> list[str]:
        """The lines that a command prints, with this exit code."""
        ended = self.run(*arguments, stdin=stdin)
        assert ended.returncode == rc, (ended.returncode, ended.stdout, ended.stderr)
        return ended.stdout.decode().splitlines()

    def json(self, *arguments: str, stdin: bytes = b"", rc: int = 0) -> list[Any]:
        """The values of a command's `--json`."""
        return [json.loads(line) for line in self.lines(*arguments, "--json", stdin=stdin, rc=rc)]

    def under_way(self, model: str) -> int:
        """How many jobs of a model have not ended."""
        (queue,) = (queue for queue in self.json("queues") if queue["model"] == model)
        return int(sum(queue["depth"].values())) + int(queue["in_flight"])

    def complaint(self, *arguments: str, rc: int, stdin: bytes = b"") -> str:
        """What a command that fails so says on standard error."""
        ended = self.run(*arguments, stdin=stdin)
        assert ended.returncode == rc, (ended.returncode, ended.stdout, ended.stderr)
        return ended.stderr.decode()

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command while the context lasts: killed at its end, and its pipes closed."""
        with subprocess.Popen(
            self._command(*arguments), cwd=self.folder, env=self._environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def on_terminal(self, *arguments: str, columns: int = 80, typed: str = "") -> tuple[int, str]:
        """Run a command on a terminal of its own: its exit code, and all that appeared there.

        What is typed waits in the terminal until the command reads it.
        """
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environ = {**self._environment(), "TERM": "xterm"}
        process = subprocess.Popen(
            self._command(*arguments), cwd=self.folder, env=environ,
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            os.write(ours, typed.encode())
            shown = _all_of(ours)
            return process.wait(TIMEOUT_S), shown.decode()
        finally:
            process.kill()
            process.wait()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "headrace", *arguments]

    def _environment(self) -> dict[str, str]:
        return clean_environment(HEADRACE_URL=self.url)


def _all_of(terminal: int) -> bytes:
    """All that appears on a terminal until nobody has it open, or waits for what was not typed."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as ours:
        while select.select([ours], [], [], TIMEOUT_S)[0]:
            try:
                part = ours.read(65_536)
            except OSError:  # EIO: the last of them has closed it
                return shown
            if not part:
                return shown
            shown += part
    return shown


class CommandsWithin(Commands):
    """The same commands within this process, for tests of many: a process costs a second.

    What runs on a terminal, or is started, is a process here too. So is a command with a time
    limit, which is a signal: tests of OpenVINO leave no safe stack for one in their process.
    """

    @override
    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        if "--timeout" in arguments:
            return super().run(*arguments, stdin=stdin)
        out, err = BytesIO(), BytesIO()
        streams: dict[str, Any] = {
            "argv": ["headrace", *arguments],
            "stdin": TextIOWrapper(BytesIO(stdin), "utf-8"),
            "stdout": TextIOWrapper(out, "utf-8"),
            "stderr": TextIOWrapper(err, "utf-8", write_through=True),
        }
        with (
            patch.multiple(sys, **streams),
            patch.dict(os.environ, {"HEADRACE_URL": self.url} if self.url else {}),
            chdir(self.folder),
        ):
            try:
                main()
                code: Any = 0
            except SystemExit as ended:
                code = ended.code
            sys.stdout.flush()
        return subprocess.CompletedProcess(
            arguments, int(code or 0), out.getvalue(), err.getvalue()
        )


def headrace_here(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command without a server, within this process: one that ends before it starts anything."""
    with patch.dict(os.environ, clean_environment(**variables), clear=True):
        ended = CommandsWithin("", cwd).run(*arguments)
    return subprocess.CompletedProcess(
        arguments, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
    )


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Press Ctrl-C; the exit code, and what was written on both outputs."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out.decode(), err.decode()


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that `-o` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def completed(url: str, *words: str, timeout_s: float = options.COMPLETION_TIMEOUT_S) -> list[str]:
    """What bash is offered for the last of these words, by a server with so long to answer."""
    asked = {"COMP_WORDS": " ".join(["headrace", *words]), "COMP_CWORD": str(len(words))}
    variables = clean_environment(HEADRACE_URL=url, _HEADRACE_COMPLETE="complete_bash", **asked)
    with (
        patch.dict(os.environ, variables, clear=True),
        patch.object(options, "COMPLETION_TIMEOUT_S", timeout_s),
        # Of it the name of the program is made, besides argv: `python -m pytest` has one.
        patch.object(sys.modules["__main__"], "__package__", None),
    ):
        ended = CommandsWithin("", Path.cwd()).run()
    assert not ended.stderr, ended.stderr
    return ended.stdout.decode().split()


def offered(url: str, *words: str) -> list[str]:
    """What bash is offered, by a server that may take longer than at a prompt: it may be busy."""
    return completed(url, *words, timeout_s=30)
