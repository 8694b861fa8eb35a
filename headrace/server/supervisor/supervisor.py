"""Starts children in order, restarts them, stops them in order, and leaves none behind.

One thread runs one loop. The kernel sends the parent-death signal when the *thread* that started a
child ends, so that thread must run as long as the supervisor. The process must have no other
children: when a child has ended, and at the end, all remaining descendants are killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from headrace.errors import HeadraceError
from headrace.server.supervisor import proc
from headrace.server.supervisor.console import OWN_NAME, Console, json_event
from headrace.signals import StopSignals

_CHILD_PROGRAM: Final = Path(__file__).with_name("exec_child.py")
_READ_BYTES: Final = 64 * 1024
_POLL_S: Final = 0.1
_SAVE_TIMEOUT_S: Final = 5.0
_LAST_READS: Final = 64


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The delay before a child is restarted.

    Attributes:
        first_s: the delay after the first end.
        most_s: the delay doubles up to this.
        stable_s: the count of ends restarts at 1 after a process that ran this long.
        start_attempts: everything stops if a child ended this often and was never ready.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    stable_s: float = 30.0
    start_attempts: int = 3

    def delay_s(self, failures: int) -> float:
        """Return the delay after `failures` ends in a row."""
        return float(min(self.most_s, self.first_s * 2 ** (min(failures, 32) - 1)))


class Supervisor:
    """Runs children until a signal stops it.

    Args:
        on_change: called with all children after a process has started or ended.
        on_ready: called once, when each child has been ready or its wait has timed out.
        on_stop: called once, at the first signal to stop, before any child is stopped.
        is_done: called often once all are ready; True stops as a signal does.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec],
        console: Console,
        *,
        backoff: RestartPolicy | None = None,
        on_change: Callable[[Sequence[ChildProcess]], None] = lambda _: None,
        on_ready: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        self._children = [ChildProcess(child) for child in children]
        self._console = console
        self._backoff = backoff or RestartPolicy()
        self._on_change = on_change
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._is_done = is_done
        self._done = False
        self._stopping = False
        self._announced = False
        self._stop = StopSignals()
        self._orphans = False
        self._late: set[str] = set()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP, then stop all in order. A second signal kills.

        Raises:
            HeadraceError: a child ended repeatedly and was never ready.
        """
        proc.become_subreaper()
        with self._stop:
            self._selector.register(self._stop, selectors.EVENT_READ)
            try:
                while not self._finished():
                    self._step()
            finally:
                self._end_all()
                self._selector.close()

    def _step(self) -> None:
        if self._ending:
            if not self._stopping:
                self._stopping = True
                self._on_stop()
            self._stop_next()
        else:
            self._start_due()
            self._check_ready()
            if self._announced and self._is_done():
                self._done = True
        self._wait()
        for child in self._children:
            if child.has_ended():
                self._ended(child)
        living = {c.process.pid for c in self._children if c.process is not None}
        if self._orphans:
            self._orphans = proc.kill_orphans(living)
        # Processes that a worker has killed, or that have ended after their parent.
        proc.reap_orphans(living)

    def _finished(self) -> bool:
        return self._ending and all(c.process is None for c in self._children)

    @property
    def _ending(self) -> bool:
        return self._done or self._stop.requests > 0

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.process is None and child.start_at_s <= now_s and self._is_open(child):
                self._start(child)

    def _start(self, child: ChildProcess) -> None:
        try:
            child.start()
        except OSError as error:
            # No memory or no process id is free now; the machine may recover.
            child.failures += 1
            child.start_at_s = time.monotonic() + self._backoff.delay_s(child.failures)
            self._report(f"{child.spec.name} cannot be started now: {error.strerror}")
            return
        self._selector.register(child.output_fd, selectors.EVENT_READ, child)
        self._on_change(self._children)

    def _is_open(self, child: ChildProcess) -> bool:
        lower = (c for c in self._children if c.spec.stage < child.spec.stage)
        return all(self._is_settled(c) for c in lower)

    def _is_settled(self, child: ChildProcess) -> bool:
        return child.was_ready or child.spec.name in self._late

    def _check_ready(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.process is None or child.is_ready:
                continue
            if child.spec.ready is None or child.spec.ready(child.environment):
                child.is_ready = child.was_ready = True
            elif not self._is_settled(child):
                waited_s = now_s - child.started_s
                if waited_s > child.spec.ready_timeout_s:
                    self._late.add(child.spec.name)
                    self._report(
                        f"{child.spec.name} is not ready after {waited_s:.0f} s; starting the rest"
                    )
        if not self._announced and all(self._is_settled(c) for c in self._children):
            self._announced = True
            self._on_ready()

    def _wait(self) -> None:
        for key, _ in self._selector.select(_POLL_S):
            if isinstance(key.data, ChildProcess):
                data = key.data.read_output()
                if data:
                    self._console.feed(key.data.spec.name, data)
                elif data is not None:
                    # The child closed its end of the pipe. The selector would return at once.
                    self._selector.unregister(key.fd)
            else:
                self._stop.clear()

    def _ended(self, child: ChildProcess) -> None:
        ran_s = time.monotonic() - child.started_s
        was_stopped = child.stop_sent_s is not None
        name = child.spec.name
        child.kill()
        if child.output_fd in self._selector.get_map():
            self._selector.unregister(child.output_fd)
            # Bounded: an orphan in its own session may still be writing.
            for _ in range(_LAST_READS):
                data = child.read_output()
                if not data:
                    break
                self._console.feed(name, data)
        self._console.flush(name)
        end = child.reap()
        self._orphans = True
        if child.spec.on_exit is not None:
            child.spec.on_exit(end)
        if not was_stopped:
            self._plan_restart(child, end, ran_s)
        self._on_change(self._children)

    def _plan_restart(self, child: ChildProcess, end: Exit, ran_s: float) -> None:
        child.failures = 1 if ran_s >= self._backoff.stable_s else child.failures + 1
        if self._ending:
            self._report(f"{end.name} ended {end.how}")
            return
        if not child.was_ready and child.failures >= self._backoff.start_attempts:
            if child.spec.essential:
                last = f": {child.last_line}" if child.last_line else ""
                raise HeadraceError(
                    f"{end.name} ended {child.failures} times before it was ready, {end.how}{last}",
                    hint="see its lines above",
                )
            self._late.add(child.spec.name)
        delay_s = self._backoff.delay_s(child.failures)
        child.start_at_s = time.monotonic() + delay_s
        self._report(f"{end.name} ended {end.how}; restarting it in {delay_s:g} s")

    def _stop_next(self) -> None:
        """Stop the lowest rank that still runs; kill processes that take too long."""
        living = [c for c in self._children if c.process is not None]
        rank = min((c.spec.stop_rank for c in living), default=0)
        for child in living:
            hurry = self._stop.requests > 1
            if child.stop_sent_s is None and (hurry or child.spec.stop_rank == rank):
                child.stop_sent_s = time.monotonic()
                child.signal(signal.SIGTERM)
            if child.stop_sent_s is None or child.is_killed:
                continue
            if time.monotonic() - child.stop_sent_s >= self._patience_s(child):
                child.is_killed = True
                if not hurry:
                    limit_s = child.spec.stop_timeout_s
                    self._report(f"{child.spec.name} did not stop within {limit_s:g} s; killed")
                child.kill()

    def _patience_s(self, child: ChildProcess) -> float:
        if self._stop.requests <= 1:
            return child.spec.stop_timeout_s
        saves = child.spec.death_signal == "TERM" and self._stop.requests == 2
        return _SAVE_TIMEOUT_S if saves else 0.0

    def _end_all(self) -> None:
        """Kill all that still runs: nothing after an orderly stop, everything after an error."""
        for rank in sorted({c.spec.stop_rank for c in self._children}):
            for child in (c for c in self._children if c.spec.stop_rank == rank):
                if child.process is None:
                    continue
                if child.spec.death_signal == "TERM":
                    child.signal(signal.SIGTERM)
                    deadline_s = time.monotonic() + _SAVE_TIMEOUT_S
                    while not child.has_ended() and time.monotonic() < deadline_s:
                        time.sleep(_POLL_S / 10)
                child.kill()
                child.reap()
        deadline_s = time.monotonic() + _SAVE_TIMEOUT_S
        while proc.kill_orphans(set()) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S / 10)

    def _report(self, text: str) -> None:
        self._console.print(OWN_NAME, text)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child's process ended: its exit status, or minus the signal that ended it."""

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
