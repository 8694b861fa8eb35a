"""One supervised child: its specification, and its process while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from headrace.server.supervisor import proc
from headrace.server.supervisor.console import json_event

_CHILD_PROGRAM: Final = Path(__file__).with_name("exec_child.py")
_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child's process ended.

    Attributes:
        status: its exit status, or minus the signal that ended it.
    """

    name: str
    pid: int
    status: int
    environment: Mapping[str, str]

    @property
    def how(self) -> str:
        """Return the status or signal as part of a sentence."""
        if self.status >= 0:
            return f"with status {self.status}"
        try:
            return f"by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"by signal {-self.status}"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start, how to see that it is ready, and how to stop it.

    Attributes:
        name: the prefix of its lines.
        command: the program and its arguments; no secrets, because all users can read them.
        environment: called for each start, so that each start can have values of its own.
        stage: children of a stage start when all children of lower stages have been ready.
        stop_rank: children of a rank are stopped when all children of lower ranks have ended.
        ready: called with the environment of the process; returns whether it serves. Called often,
            so it must return within a second. None: ready at once.
        ready_timeout_s: the next stage starts after this time even if this child is not ready.
        essential: whether everything stops if this child cannot be started at first.
        stop_timeout_s: how long the process may take to stop before it is killed.
        death_signal: the signal it gets when the supervisor is killed. A server that must save gets
            TERM; a second request to stop does not kill it at once either.
        on_exit: called when its process has ended, before the next one starts.
        private: the files that it makes are for its user alone.
    """

    name: str
    command: Sequence[str]
    environment: Callable[[], Mapping[str, str]] = lambda: dict(os.environ)
    stage: int = 0
    stop_rank: int = 0
    ready: Callable[[Mapping[str, str]], bool] | None = None
    ready_timeout_s: float = 60.0
    essential: bool = True
    stop_timeout_s: float = 10.0
    death_signal: Literal["TERM", "KILL"] = "KILL"
    on_exit: Callable[[Exit], None] | None = None
    pass_fds: Sequence[int] = ()
    private: bool = False


@dataclass(slots=True)
class ChildProcess:
    """A child with the state of its current process.

    Attributes:
        process: its process; None before the first start and between two processes.
        started_s: when it started, on the monotonic clock.
        was_ready: whether any process of this child has been ready.
        failures: how often it ended since it last ran stably.
        start_at_s: when to start it next, on the monotonic clock.
        stop_sent_s: when its process got SIGTERM; None if it did not.
        last_line: the last line it wrote, for the error if it cannot be started.
    """

    spec: ChildSpec
    process: subprocess.Popen[bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    started_s: float = 0.0
    is_ready: bool = False
    was_ready: bool = False
    failures: int = 0
    start_at_s: float = 0.0
    stop_sent_s: float | None = None
    is_killed: bool = False
    last_line: str = ""

    def start(self) -> None:
        """Start the process in its own session. It ends when this thread ends."""
        self.environment = dict(self.spec.environment())
        wrapped = [
            sys.executable, "-I", "-S", str(_CHILD_PROGRAM),
            "--signal", self.spec.death_signal, "--parent", str(os.getpid()),
            *(["--private"] if self.spec.private else []), "--", *self.spec.command,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            wrapped,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=self.spec.pass_fds,
        )
        os.set_blocking(self.output_fd, False)
        self.started_s = time.monotonic()
        self.is_ready = False
        self.stop_sent_s = None
        self.is_killed = False

    @property
    def output_fd(self) -> int:
        """Return the pipe with the output of the process; -1 without a process."""
        if self.process is None or self.process.stdout is None:
            return -1
        return self.process.stdout.fileno()

    def read_output(self) -> bytes | None:
        """Return up to 64 KiB of the output; None if nothing is there now, `b""` at its end."""
        try:
            data = os.read(self.output_fd, _READ_BYTES)
        except BlockingIOError:
            return None
        lines = data.decode(errors="replace").strip().splitlines()
        if lines:
            self.last_line = (json_event(lines[-1]) or lines[-1])[:300]
        return data

    def has_ended(self) -> bool:
        """Return whether the process has ended. It is not reaped yet."""
        if self.process is None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process only: it stops its own children itself."""
        if self.process is not None:
            proc.kill(self.process.pid, signum)

    def kill(self) -> None:
        """Kill the process and its group."""
        if self.process is not None:
            proc.kill_group(self.process.pid, signal.SIGKILL)

    def reap(self) -> Exit:
        """Reap the process that has ended, and kill the rest of its group.

        The group is killed first: until the process is reaped, no other group can have its id.
        """
        process = self.process
        if process is None:
            raise RuntimeError(f"{self.spec.name} has no process to reap")
        self.kill()
        status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self.process = None
        self.is_ready = False
        return Exit(self.spec.name, process.pid, status, self.environment)
