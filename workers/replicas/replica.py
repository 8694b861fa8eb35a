"""One model process seen from its worker: start it, send it batches, watch it, kill it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.environment import launch_command, with_server_path
from headrace.observability.worker_report import GenerationState
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.protocol.frames import (
    CPUS_VARIABLE,
    FROM_MODEL,
    LIFE_VARIABLE,
    PARENT_VARIABLE,
    STARTING,
    TRACE_SIGNAL,
    Drop,
    FrameSocket,
    FromModel,
    Init,
    Joins,
    Loaded,
    Phase,
    RunBatch,
    StartProfile,
    Stop,
    ToModel,
    Traces,
    YieldBatch,
    readable,
)
from workers.replicas.cores import NOT_PINNED, CoreSet, CoreSets
from workers.replicas.memory import MIB, resident_bytes
from workers.replicas.orphan_guard import end_marked
from workers.replicas.process_end import LOOK_S, STACKS_S, StackDump

logger = logging.getLogger(__name__)

Frames = FrameSocket[ToModel, FromModel]

IDLE: Final = GenerationState()
#: The beginning of the last line of the error of a load that was too slow.
LOAD_TOO_LONG: Final = "the load took longer than load_timeout_s"
RESTART_MIN_S: Final = 0.5
RESTART_MAX_S: Final = 60.0
STOP_S: Final = 5.0
#: How long a process may take to end once it has closed its socket.
EXIT_S: Final = 0.2
#: How long a process may leave a frame unread, in whole seconds.
SEND_S: Final = 2


@dataclass(slots=True)
class Replica:
    """A model process.

    Args:
        init: the first frame, with what the process needs to load the handler.
        load_timeout_s: how long it may load and warm up.
        core_sets: the cores to which the processes of the worker are pinned.

    Attributes:
        idle_since: when its last batch ended, or it was loaded.
        core_set: the cores of its process, also after its end; empty if it is not pinned.
        batch: the batch that runs; of several, the oldest.
        joined: the batches that run at the same time, of a generator.
        staged: the batch that the process already has while it runs another.
        staged_began: the process has begun to work on the staged batch too.
        preempt_requested: the staged batch was requested back, if its `inference` has not begun.
        fits, helpers, overlap, continuous, variant, preprocess: as in the frame `Loaded`.
        room: how many more jobs a generator takes.
        offline_room: how many of them may be offline.
        generation: what a generator does, as it has reported.
        due_at: when its load or its stop has taken too long.
        jobs: how many jobs this process has run.
        streams: its process has sent pieces.
        held_back: nothing is read from its process for the moment, as Redis is away or slow.
        surplus: it ends when its batch has, and no other takes its place.
        successor: the replica that takes its place when it is recycled.
        recycling: why this process is being replaced; empty if it is not.
        stacks_requested: its load or its batch took too long, so a signal made it write its stacks.
            Later frames are ignored, because the signal itself may have woken it.
        outgrown: it exceeded `max_memory_mb` before it had run anything.
        device_lost: it has lost its device and ends by itself; batches sent to it since then have
            not begun.
        exit_fd: a descriptor that is readable once the process has ended, also while a child that
            it forked keeps its socket open. None if the system has none.
        pid: of this process, also after its end.
        cause: the job that has lost the device.
    """

    init: dict[str, Any]
    environ: dict[str, str]
    load_timeout_s: float = NEVER
    core_sets: CoreSets = field(default_factory=CoreSets)
    core_set: CoreSet = NOT_PINNED
    state: Phase = Phase.RESTARTING
    error: str = ""
    since: float = field(default_factory=time.time)
    frames: Frames | None = None
    process: subprocess.Popen[bytes] | None = None
    batch: Batch | None = None
    joined: list[Batch] = field(default_factory=list)
    staged: Batch | None = None
    idle_since: float = 0.0
    staged_began: bool = False
    streams: bool = False
    held_back: bool = False
    preempt_requested: bool = False
    overlap: bool = False
    continuous: bool = False
    variant: str = ""
    preprocess: str = ""
    yields: bool = False
    room: int = 0
    offline_room: int = 0
    generation: GenerationState = IDLE
    restart_at: float = 0.0
    due_at: float = NEVER
    jobs: int = 0
    fits: int = 0
    helpers: list[int] = field(default_factory=list)
    surplus: bool = False
    successor: Replica | None = None
    recycling: str = ""
    outgrown: bool = False
    stacks_requested: bool = False
    device_lost: bool = False
    exit_fd: int | None = None
    pid: int = 0
    cause: str = ""
    _sent: int = 0
    _received: int = 0
    _failures: int = 0
    _life: str = ""
    _stacks: StackDump | None = None

    @property
    def loaded(self) -> bool:
        """Whether its handler is loaded and it was not ordered to stop."""
        return self.state in (Phase.READY, Phase.DRAINING)

    @property
    def failed_loads(self) -> int:
        """How many loads have failed since a process was loaded last."""
        return 0 if self.loaded else self._failures

    @property
    def idle(self) -> bool:
        """Whether it is ready and has no batch."""
        return self.state is Phase.READY and self.batch is None

    @property
    def joinable(self) -> bool:
        """Whether a job may join those that run. One that runs isolated has no company."""
        running = self.batch is not None and self.batch.reason != "alone"
        return self.state is Phase.READY and self.continuous and running and self.room > 0

    def joins(self, *, offline: bool) -> bool:
        """Return whether a job of this class may join those that run."""
        return self.joinable and (not offline or self.offline_room > 0)

    @property
    def running(self) -> list[Batch]:
        """The batches that run."""
        return [self.batch, *self.joined] if self.batch is not None else []

    @property
    def batches(self) -> list[Batch]:
        """The batches that run, and the staged one."""
        return self.running if self.staged is None else [*self.running, self.staged]

    def batch_of(self, seq: int) -> Batch | None:
        """Return its batch of this number; None if it has none."""
        return next((batch for batch in self.batches if batch.seq == seq), None)

    def another(self) -> Replica:
        """Return a replica that is started as this one."""
        return Replica(self.init, self.environ, self.load_timeout_s, self.core_sets)

    def start(self, now: float, mark: str) -> Frames:
        """Start the process; call it on a thread that runs as long as the worker.

        The kernel kills the process when the thread that started it ends.
        """
        ours, theirs = socket.socketpair()
        # A process that reads nothing, because it is stopped, must not block the worker. The
        # timeout of its batch then ends it.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))
        self._stacks = StackDump()
        self._life = f"{mark}:{secrets.token_hex(8)}"
        with theirs:
            passed = (theirs.fileno(), self._stacks.fileno())
            environ = with_server_path(self.environ)
            module, packages = "workers.model_process", self.init.get("requirements") or {}
            if packages:
                module = "workers.model_process.packaged"
            self.core_set = self.core_sets.take(self.core_set)
            pinned = {CPUS_VARIABLE: ",".join(map(str, self.core_set))} if self.core_set else {}
            self.process = subprocess.Popen(
                launch_command(module, *map(str, (*passed, *packages.values()))),
                pass_fds=passed,
                env={**environ, **pinned, PARENT_VARIABLE: mark, LIFE_VARIABLE: self._life},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.frames = Frames(ours, FROM_MODEL)
        self.pid, self.cause = self.process.pid, ""
        self.streams = False
        with contextlib.suppress(OSError, AttributeError):  # not Linux, or forbidden
            self.exit_fd = os.pidfd_open(self.process.pid)
        self.enter(Phase.LOADING)
        self.due_at = now + self.load_timeout_s
        self.jobs, self.fits, self.helpers = 0, 0, []
        self.recycling, self.outgrown, self.stacks_requested = "", False, False
        self.device_lost = False
        self.room = self.offline_room = self._sent = self._received = 0
        self.generation = IDLE
        self._send(Init(self.init))
        return self.frames

    def _send(self, frame: ToModel) -> None:
        """Send a frame; if the process is gone, its socket reads EOF."""
        if self.frames is not None:
            with contextlib.suppress(OSError):
                self.frames.send(frame)

    @property
    def takes_second(self) -> bool:
        """Whether it takes a batch behind the one that runs.

        A job that was in a lost batch runs alone in the process, so that no other is to blame.
        """
        running = self.batch
        return (
            self.state is Phase.READY
            and self.overlap
            and self.staged is None
            and running is not None
            and running.reason != "alone"
        )

    def run(self, batch: Batch) -> None:
        """Send a batch; if another batch runs, it joins that of a generator, or is staged.

        If the process is gone, the batch counts as lost with it.
        """
        if self.batch is None:
            self.batch = batch
        elif self.continuous:
            self.joined.append(batch)
        else:
            self.staged, self.staged_began, self.preempt_requested = batch, False, False
        count = len(batch.jobs)
        self.room, self.offline_room = self.room - count, self.offline_room - count
        self._sent += count
        batch.number = self._sent
        # Jobs of a staged batch can expire before it begins, which only the process notices.
        staged = batch is self.staged
        rows = [_row(job, job.expires_at if staged else NEVER) for job in batch.jobs]
        parents = batch.traces if batch.traced else None
        traces = Traces(parents, batch.span) if parents else None
        joins = _joins(batch) if self.continuous else None
        self._send(RunBatch(batch.seq, rows, traces, joins))

    def preempt_staged(self) -> None:
        """Request the staged batch back, because another model has the device first."""
        if self.staged is not None and not self.preempt_requested:
            self.preempt_requested = True
            self._send(YieldBatch(self.staged.seq))

    def drop(self, job: LeasedJob) -> None:
        """Request that the process skips a job of its batches."""
        for batch in self.batches:
            if job in batch.jobs:
                self._send(Drop(batch.seq, batch.jobs.index(job)))

    def profile(self, profile_id: str, kind: str, batches: int, seconds: float) -> None:
        """Request a profile of the process; it answers with a frame `profiled`."""
        self._send(StartProfile(profile_id, kind, batches, seconds))

    def finished(self, seq: int, now: float) -> Batch | None:
        """Remove and return a batch that the process has ended, or None; a staged one then runs."""
        batch, staged = self.batch, self.staged
        if batch is not None and batch.seq == seq:
            self.batch, self.staged, self.idle_since = staged, None, now
            if staged is not None:
                staged.begin(now)
            if self.joined:
                self.batch = self.joined.pop(0)
            return batch
        if staged is not None and staged.seq == seq:
            self.staged = None
            return staged
        joined = next((batch for batch in self.joined if batch.seq == seq), None)
        if joined is not None:
            self.joined.remove(joined)
        return joined

    def room_reported(self, received: int, room: int, offline_room: int) -> None:
        """Take how many more jobs a generator takes, besides those that it has not received."""
        self._received, coming = received, self._sent - received
        self.room, self.offline_room = room - coming, offline_room - coming

    def waiting_reported(self, seq: int, waits: bool, now: float) -> None:
        """Note that a job of a generator waits for room in its process, or runs on."""
        batch = self.batch_of(seq)
        if batch is not None:
            batch.wait(now, waits=waits)

    def take_batches(self) -> tuple[list[Batch], list[Batch]]:
        """Remove and return the batches that the process had begun, and those that it had not.

        Jobs of a generator that wait for room count as not begun. If others have just joined, those
        that have run a step count as not begun too.
        """
        begun = self.running
        untouched: list[Batch] = []
        ran = [batch for batch in begun if not batch.waits]
        new = [batch for batch in ran if self.continuous and batch.number > self._received]
        if suspects := new or ran:
            begun, untouched = suspects, [batch for batch in begun if batch not in suspects]
        if self.staged is not None:
            (begun if self.staged_began else untouched).append(self.staged)
        if self.device_lost:
            begun, untouched = [], [*begun, *untouched]
        self.batch = self.staged = None
        self.joined = []
        return begun, untouched

    def ready(self, process: Loaded) -> None:
        """Note that the process has loaded its handler and run it."""
        self.enter(Phase.READY)
        self.idle_since = time.monotonic()
        self.error = ""
        self.due_at = NEVER
        self.fits, self.helpers = process.fits, process.helpers
        self.overlap, self.continuous = process.overlap, process.continuous
        self.variant, self.preprocess = process.variant, process.preprocess
        self.yields = process.yields

    def overdue(self, now: float) -> bool:
        """Handle a load or a stop that takes too long; return whether to give up the process."""
        if now < self.due_at or self.state not in STARTING:
            return now >= self.due_at
        if not self.stacks_requested and self.process is not None:
            self.stacks_requested = True
            self.due_at = now + STACKS_S
            self.process.send_signal(TRACE_SIGNAL)
            return False
        self.error = self.why_not_loaded()
        return True

    def why_not_loaded(self, end: str = "") -> str:
        """Return the error of a process that ended (how: `end`) in its load, after its stacks."""
        why = f"the model process ended {end} while it loaded"
        if self.stacks_requested:
            why = f"{LOAD_TOO_LONG}, {self.load_timeout_s:g} s; the process was killed"
        trace = self.trace().rstrip()
        return f"The stacks of the process:\n{trace}\n{why}" if trace else why

    def hangs(self, batch: Batch, now: float) -> bool:
        """Have the processes of a late batch write their stacks; return whether to give up now."""
        if self._stacks is None or self.process is None:
            return True
        if not self.stacks_requested:
            self.stacks_requested = True
            waits = self._stacks.request(self.pids, now)
        else:
            waits = not self._stacks.complete(now)
        if waits:
            batch.deadline = now + LOOK_S
        return not waits

    def trace(self) -> str:
        """Return the stacks that the process' C code has written, at a crash or on request."""
        return self._stacks.text() if self._stacks is not None else ""

    @property
    def pids(self) -> list[int]:
        """The process and its helpers; empty without a process. Any thread may read it."""
        process = self.process
        return [process.pid, *self.helpers] if process is not None else []

    def memory_mib(self) -> float:
        """Return the resident memory of the process and its helpers, in MiB."""
        return resident_bytes(self.pids) / MIB

    def lost_device(self, cause: str, now: float) -> None:
        """Note that the process has lost its device to a job and ends; send it no more batches."""
        self.device_lost, self.cause = True, cause
        self.enter(Phase.DRAINING)
        self.due_at = now + STOP_S

    def retire(self, now: float) -> None:
        """Order the process, which runs nothing, to stop; its socket then reads EOF."""
        self.enter(Phase.STOPPED)
        self.due_at = now + STOP_S
        self._send(Stop())

    def exited(self, wait_s: float = 0.0) -> bool:
        """Return whether the process has ended, or ends within `wait_s`."""
        return self.exit_fd is not None and readable(self.exit_fd, wait_s)

    def end_process(self) -> int | None:
        """Kill the process, unless it has ended, and all that it started.

        A process that has closed its socket gets a moment to end.

        Returns:
            Its exit status, or a signal as a negative number; None if it was killed here.
        """
        process = self.process
        if process is None:
            return None
        exited = self.exited(EXIT_S if self.frames is not None and self.frames.closed else 0.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        self.process = None
        self.core_sets.free(self.core_set)
        if self.state is not Phase.STOPPED:
            # Also those that left the process group; after an orderly end none is left.
            end_marked(LIFE_VARIABLE, self._life)
        return None if not exited and status == -signal.SIGKILL else status

    def ended(self, now: float) -> None:
        """Clean up after a process that is gone, and set `restart_at`."""
        self.kill()
        self.due_at = NEVER
        if self.recycling and self.state is Phase.STOPPED:
            self.restart_at = now
            self.enter(Phase.RESTARTING)
            return
        if self.loaded:
            # `ReplicaHistory` limits how often a loaded process may be lost.
            self._failures = 0
            self.restart_at = now
            self.enter(Phase.RESTARTING)
            return
        delay = 0.0 if not self._failures and not self.error else RESTART_MIN_S * 2**self._failures
        self._failures = min(self._failures + 1, 10)
        self.restart_at = now + min(delay, RESTART_MAX_S)
        self.enter(Phase.FAILED if self.error else Phase.RESTARTING)

    def kill(self) -> None:
        """Kill the process and all that it started, and close what leads to it."""
        self.end_process()
        if self.frames is not None:
            self.frames.close()
            self.frames = None
        if self.exit_fd is not None:
            os.close(self.exit_fd)
            self.exit_fd = None
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None

    def stop(self) -> None:
        """Wait for a process that was ordered to stop; kill any other."""
        if self.process is not None and self.state is Phase.STOPPED:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()
        self.enter(Phase.STOPPED)

    def enter(self, state: Phase) -> None:
        """Note that the process has entered a phase."""
        if state is not self.state:
            self.state = state
            self.since = time.time()


def _joins(batch: Batch) -> Joins:
    job = batch.jobs[0]
    pieces, tokens = job.log or ([], [])
    yields_s = job.overdue_at - batch.started_at if batch.offline else None
    return Joins(pieces, tokens, yields_s, job.message is not None and job.message.quiet)


def _row(job: LeasedJob, expires_at: float) -> tuple[Any, ...]:
    """Return the row of a job in the frame of its batch, without the values that it lacks."""
    if job.details:
        return (job.id, job.input, job.content_type, expires_at, job.details)
    if expires_at != NEVER:
        return (job.id, job.input, job.content_type, expires_at)
    return (job.id, job.input, job.content_type) if job.content_type else (job.id, job.input)
