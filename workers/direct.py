"""Runs a model without a queue: its model process belongs to the process that calls.

A process of another system, such as an actor of Ray, uses it. The handler, its options, the batches
and what isolates a bad input are those of a worker: jobs that were lost with a model process run
alone next, so that only the one that ends it fails.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from typing_extensions import override

from headrace.config.inputs.parameters import check_parameters, with_defaults
from headrace.config.model.catalog import ModelConfig
from headrace.config.model.optimize import OPTIMIZED
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.jobs.options import InputDetails
from headrace.schema.serialization import shown_result
from workers.batching.input_cost import InputCost
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.jobs.settlement import RetryPolicy, read_raised
from workers.protocol.frames import (
    Began,
    Done,
    Loaded,
    NotLoaded,
    Phase,
    Room,
    Waits,
    Warming,
    readable,
)
from workers.replicas.devices import device_of, model_environ, tuned
from workers.replicas.process_end import ProcessEnd
from workers.replicas.replica import Replica

#: The longest wait for a frame.
WAIT_S: Final = 1.0
#: How often an input runs alone whose model process something else ends.
ALONE_RUNS: Final = 3
_ALONE: Final = "alone"


class DirectOutcome(NamedTuple):
    """How an input has ended.

    Attributes:
        result: JSON, as in a job object; None after an error.
        code: of the error; "" for a result.
        where: the line of the handler's own code that raised; "" if none did.
    """

    attempts: int
    result: bytes | None = None
    code: str = ""
    message: str = ""
    retryable: bool = False
    where: str = ""


class _Job(LeasedJob, eq=False, weakref=True):
    """An input; `place` is its place among those of one call."""

    place: int = 0
    body: bytes = b"null"

    @property
    @override
    def input(self) -> bytes:
        return self.body


class DirectModel:
    """A loaded model. One thread at a time may call it.

    Args:
        folder: that of the models file.
        parameters: values for the parameters that the model declares, for all inputs.
        environ: of the model process; `CUDA_VISIBLE_DEVICES` names its GPU.

    Raises:
        ConfigError: the model cannot be loaded.
        InvalidRequest: a parameter is unknown, missing or not valid.
    """

    def __init__(
        self,
        config: ModelConfig,
        folder: Path,
        settings: Settings,
        parameters: Mapping[str, Any],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        given = with_defaults(
            config.parameters, check_parameters(config.parameters, parameters, config.name)
        )
        self._details = InputDetails(parameters=msgspec.json.encode(given)).text() if given else b""
        self._config = config
        self._cost = InputCost(config)
        retries = settings.max_retries if config.max_retries is None else config.max_retries
        self._retries = RetryPolicy(retries, config.retry_backoff_s, config.retry_backoff_max_s)
        self._timeout_s = config.timeout_s
        device = device_of(config, environ)
        variables = model_environ(environ, 1)
        init = {
            **config.init_frame(folder, device),
            "logs": [settings.log_format, settings.log_level, str(os.getpid())],
            "optimize_cache": str(settings.state_dir.absolute() / OPTIMIZED),
        }
        self._replica = Replica(
            init, tuned(variables, device) if config.malloc_tuning else variables,
            config.load_timeout_s,
        )  # fmt: skip
        self._most = config.max_batch_size
        self._seq = 0
        self._waiting: deque[tuple[str, list[_Job]]] = deque()
        self._outcomes: dict[int, DirectOutcome] = {}
        self._again: list[_Job] = []
        # The kernel kills the process when the thread that started it ends.
        self._starter = ThreadPoolExecutor(1, "headrace-direct")
        self._start()

    @property
    def max_batch_size(self) -> int:
        """The most inputs of one batch."""
        return self._config.max_batch_size

    def run(self, inputs: Sequence[tuple[str, bytes]]) -> list[DirectOutcome]:
        """Run inputs, each with a name for logs, and its JSON; return how each has ended.

        Raises:
            ConfigError: the model process has ended, and a new one cannot load the model.
        """
        now = time.monotonic()
        jobs = [
            _Job(name, str(place), None, 0, now, now, 0, place=place, body=body,
                 details=self._details)
            for place, (name, body) in enumerate(inputs)
        ]  # fmt: skip
        self._outcomes = {}
        self._waiting.extend(("full", batch) for batch in self._batches(jobs))
        while self._waiting or self._replica.batches:
            self._dispatch()
            self._receive()
            if self._again and not self._waiting and not self._replica.batches:
                self._retry()
        return [self._outcomes[place] for place in range(len(inputs))]

    def close(self) -> None:
        """End the model process."""
        self._replica.kill()
        self._starter.shutdown()

    def _batches(self, jobs: list[_Job]) -> Iterator[list[_Job]]:
        groups: dict[str | None, list[_Job]] = {}
        for job in jobs:
            if self._cost.needed:
                job.cost, job.key = self._cost.cost(job.body), self._cost.key(job.body)
            groups.setdefault(job.key, []).append(job)
        limit = self._config.max_batch_cost or NEVER
        most = 1 if self._replica.continuous else max(1, self._most)
        for group in groups.values():
            batch: list[_Job] = []
            cost = 0
            for job in group:
                if batch and (len(batch) == most or cost + job.cost > limit):
                    yield batch
                    batch, cost = [], 0
                batch.append(job)
                cost += job.cost
            yield batch

    def _dispatch(self) -> None:
        replica = self._replica
        while self._waiting and replica.state is Phase.READY:
            reason, jobs = self._waiting[0]
            running = replica.batch
            if running is not None and (
                _ALONE in (reason, running.reason)
                or (not replica.joinable if replica.continuous else replica.staged is not None)
            ):
                return
            self._waiting.popleft()
            self._seq += 1
            now = time.monotonic()
            for job in jobs:
                job.attempts += 1
                job.dispatched_at = now
            leased: list[LeasedJob] = list(jobs)
            replica.run(Batch(leased, reason, now, now + self._timeout_s, seq=self._seq))

    def _receive(self) -> None:
        replica, now = self._replica, time.monotonic()
        due = min([replica.due_at, *(batch.deadline for batch in replica.running)])
        frames = replica.frames
        assert frames is not None  # noqa: S101 - a process runs while this is called
        wait_s = min(WAIT_S, max(0.0, due - now))
        if replica.stacks_requested:
            time.sleep(wait_s)  # what it sends now does not count: the signal may have woken it
        elif readable(frames.fileno(), wait_s):
            try:
                received = frames.receive()
            except EOFError:
                self._lost(hung=None)
                return
            for frame in received:
                self._take(frame)
            return
        now = time.monotonic()
        hung = next((batch for batch in replica.running if now >= batch.deadline), None)
        if hung is not None and replica.hangs(hung, now):
            self._lost(hung)
        elif replica.due_at <= now and replica.overdue(now):
            self._lost(hung=None)

    def _take(self, frame: object) -> None:
        replica, now = self._replica, time.monotonic()
        match frame:
            case Done():
                batch = replica.finished(frame.seq, now)
                if batch is not None:
                    for job, outcome in zip(batch.jobs, frame.outcomes, strict=True):
                        self._ended(job, outcome)
                if frame.fits:
                    self._most = frame.fits
                if frame.device_lost:
                    replica.lost_device("", now)
            case Warming():
                replica.enter(Phase.WARMING)
            case Loaded():
                replica.ready(frame)
                self._most = frame.fits or self._most
            case NotLoaded(error):
                replica.error = error
            case _:
                self._take_report(frame, now)

    def _take_report(self, frame: object, now: float) -> None:
        """Take what a process reports; progress, pieces and metrics have no reader here."""
        replica = self._replica
        match frame:
            case Began():
                replica.staged_began = True
            case Room(received, online, offline):
                replica.room_reported(received, online, offline)
            case Waits(seq, waits):
                replica.waiting_reported(seq, waits, now)
            case _:
                pass

    def _ended(self, job: LeasedJob, outcome: Sequence[Any]) -> None:
        assert isinstance(job, _Job)  # noqa: S101 - it has no others
        if outcome[0]:
            result = shown_result(outcome[1], outcome[2])
            self._outcomes[job.place] = DirectOutcome(job.attempts, result)
            return
        _, code, message, retryable, traceback, *_ = outcome
        if retryable and job.retries < self._retries.max_retries:
            self._again.append(job)
            return
        raised = read_raised(traceback)
        self._outcomes[job.place] = DirectOutcome(
            job.attempts, None, code, message, retryable, raised.where if raised else ""
        )

    def _retry(self) -> None:
        """Let the jobs that failed for a reason that can pass wait, and run them again."""
        retries = max(job.retries for job in self._again)
        time.sleep(random.uniform(0, self._retries.bound_s(retries)))  # noqa: S311 - jitter
        for job in self._again:
            job.retries += 1
        self._waiting.extend(("full", batch) for batch in self._batches(self._again))
        self._again = []

    def _lost(self, hung: Batch | None) -> None:
        """Give up a process that is gone or must go, and start the next one."""
        replica = self._replica
        loaded = replica.loaded
        end = ProcessEnd(replica.end_process())
        if not loaded:
            why = replica.error or replica.why_not_loaded(end.how)
            replica.kill()
            raise ConfigError(f"model {self._config.name} cannot be loaded: {why}")
        begun, untouched = replica.take_batches()
        for batch in reversed(untouched):
            self._wait(batch.reason, batch.jobs)
        for batch in reversed(begun):
            alone = len(begun) == 1 and len(batch.jobs) == 1
            if not alone:
                for job in reversed(batch.jobs):
                    self._wait(_ALONE, [job])
            elif hung is not None:
                limit = f"{self._timeout_s:g} s; its model process was killed"
                self._failed(
                    batch.jobs[0], "timeout", f"the job ran longer than its timeout of {limit}"
                )
            elif end.by_itself or batch.jobs[0].attempts >= ALONE_RUNS:
                died = f"the model process died while it ran this input alone; it ended {end.how}"
                self._failed(batch.jobs[0], "replica-lost", died)
            else:
                self._wait(_ALONE, batch.jobs)
        replica.ended(time.monotonic())
        self._start()

    def _wait(self, reason: str, jobs: Sequence[LeasedJob]) -> None:
        self._waiting.appendleft((reason, [job for job in jobs if isinstance(job, _Job)]))

    def _failed(self, job: LeasedJob, code: str, message: str) -> None:
        self._ended(job, [False, code, message, False, ""])

    def _start(self) -> None:
        """Start a process and wait until it is loaded."""
        mark = f"{os.getpid()}:{secrets.token_hex(8)}"
        start: Callable[[float, str], object] = self._replica.start
        self._starter.submit(start, time.monotonic(), mark).result()
        while not self._replica.loaded:
            self._receive()
