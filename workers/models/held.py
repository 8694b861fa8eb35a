"""What a worker has leased of one model and not yet run.

`Claims` has the jobs that are not prepared yet: their message, input or log is being read. It also
knows which of the model's two queues each job came from, because the job is settled there.
`Deadlines` knows until when each prepared job must begin. A job expires when its `expires` passes,
or as soon as the running batches are sure to end later. A job whose timeout is shorter than any
recent batch does not run, because it would only cost a model process.

`PendingPayloads` and `PendingCallbacks` have what threads do for the jobs. `ServedModel` and
`LeaseManager` fill their lists. `workers.consumer.payload_transfer` and `workers.canvas.notifier`
empty them. All run on the consumer's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.errors import NOT_STARTED, HeadraceError
from headrace.jobs.message import InputSource
from headrace.jobs.values.encoding import kombu_bytes
from headrace.jobs.values.media_types import is_json
from headrace.payloads.store import PayloadEntry
from headrace.redis.scripts.jobs import ClaimReply
from workers.batching.batcher import STEP_PLACE, Batcher
from workers.batching.estimates import LEAST_SHARE, LeastTime
from workers.jobs.leased_job import NEVER, Batch, LeasedJob, log_of, read_jobs
from workers.jobs.settlement import (
    Settlement,
    cancelled,
    failed,
    read_details,
    read_message,
    unfinished,
)
from workers.models.backlog import OWN, VERSION
from workers.replicas.replica import Replica

#: Results for stock Celery clients up to this size stay in the Celery result, as users expect.
STOCK_RESULT_MAX_BYTES: Final = 16 * 1024 * 1024
#: While this many jobs wait for their callbacks, nothing more is claimed.
NOTIFYING_MAX: Final = 256
#: The most orphaned ends that a sweep returns.
ORPHANED_MAX: Final = 100

#: One claim of a job.
C = TypeVar("C", LeasedJob, Settlement)


class Claims:
    """The claimed jobs of a model that are not prepared yet, and the queue of each job.

    Args:
        queues: the names of its queues, as `Backlog` numbers them.
        held: gets each job that is read, by id.
        prepare: takes a job whose input is here.

    Attributes:
        unread: the replies to claims whose jobs are not read yet.
        withheld: by token, the withheld jobs whose message is being read.
        versioned: the queue of its version has had jobs.
        misplaced: the jobs that ask for another version.
        cancelled_tokens: the tokens of jobs that were cancelled before their claim was read.
        traced: a job belonged to a trace, so others may too.
        logs_wanted: the jobs of a generator whose logs must be read before they run.
        reading_logs: by token, the jobs of a generator that wait for their log.
    """

    def __init__(
        self,
        config: ModelConfig,
        queues: tuple[str, str],
        held: dict[str, LeasedJob],
        batcher: Batcher[LeasedJob],
        payloads: PendingPayloads,
        callbacks: PendingCallbacks,
        prepare: Callable[[LeasedJob], None],
    ) -> None:
        self.unread: list[ClaimReply] = []
        self.withheld: dict[str, LeasedJob] = {}
        self.versioned = False
        self.misplaced: list[LeasedJob] = []
        self.cancelled_tokens: set[str] = set()
        self.traced = False
        self.logs_wanted: list[LeasedJob] = []
        self.reading_logs: dict[str, LeasedJob] = {}
        self._config = config
        self._queues = queues
        self._held = held
        self._batcher = batcher
        self._payloads = payloads
        self._callbacks = callbacks
        self._prepare = prepare
        # The tokens of the jobs that came from the queue of its version.
        self._of_version: set[str] = set()

    def add(self, reply: ClaimReply, number: int) -> None:
        """Keep the reply to a claim from a queue."""
        if number == VERSION and reply.jobs:
            self.versioned = True
            self._of_version.update(row[2].decode() for row in reply.jobs)
        self.unread.append(reply)

    def read(self, now: float) -> list[Settlement]:
        """Read the claimed jobs; return the settlements of those that will not run now.

        Withheld ones are read by `message_read`.
        """
        replies, self.unread = self.unread, []
        ended: list[Settlement] = []
        yield_s = self._config.max_yield_s or NEVER
        for reply in replies:
            ended += self._read(read_jobs(reply, now, yield_s), reply.now_us)
        return ended

    def _read(self, jobs: Iterable[tuple[LeasedJob, bytes]], now_us: int) -> list[Settlement]:
        ended, name = [], self._config.name
        for job, raw in jobs:
            self._held[job.id] = job
            if not raw:
                self._batcher.add(job)  # withheld
                continue
            settlement = read_message(job, raw, name, self._queues[OWN], now_us)
            message = job.message
            if job.canvas is not None:
                self._callbacks.linked[job.token] = job
            if message is not None:
                if message.trace is not None:
                    self.traced = True
                if job.token in self.cancelled_tokens:
                    settlement = cancel(job)
            asked = message.version if message is not None else ""
            if settlement is None and asked not in ("", self._config.version):
                self.misplaced.append(job)
                continue
            settlement = settlement or read_details(job, self._config)
            if settlement is not None:
                ended.append(settlement)
                continue
            if message is not None and message.source:
                self._payloads.add_fetch(job, name, message.source)
            else:
                self._prepare(job)
        return ended

    def begin_reading(self, job: LeasedJob) -> bool:
        """Take a withheld job to read its message; return False if it does not wait here."""
        if not self._batcher.remove(job):
            return False
        self.withheld[job.token] = job
        return True

    def message_read(self, job: LeasedJob, raw: bytes | None) -> Settlement | None:
        """Note the message of a withheld job; return its settlement if it will not run now.

        Without a message the job waits as before.
        """
        if self.withheld.pop(job.token, None) is None:
            return None  # it has ended meanwhile
        if raw is None:
            self._batcher.add(job)
            return None
        job.withheld = False
        ended = self._read([(job, raw)], job.claimed_us)
        return ended[0] if ended else None

    def input_read(self, job: LeasedJob, body: bytes) -> None:
        """Note the input of a job, which the payload store had."""
        message = job.message
        if message is None or message.source is None:
            raise RuntimeError(f"no input was requested for job {job.id}")
        kind = message.source.type
        job.ready_at = time.monotonic()
        job.content_type = "" if is_json(kind.partition(";")[0].strip().lower()) else kind
        job.message = msgspec.structs.replace(message, input=body)
        self._prepare(job)

    def want_log(self, job: LeasedJob) -> None:
        """Have the log of a generator's job read; then the job may run."""
        self.reading_logs[job.token] = job
        self.logs_wanted.append(job)

    def log_read(self, job: LeasedJob, entries: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Note the log of a generator's job, which then runs."""
        if self.reading_logs.pop(job.token, None) is None:
            return  # it has ended meanwhile
        job.log = log_of(entries)
        self._batcher.add(job)

    @property
    def reading(self) -> list[LeasedJob]:
        """The jobs whose message or log is being read."""
        return [*self.withheld.values(), *self.reading_logs.values()]

    def take_out(self, job: LeasedJob) -> bool:
        """Remove a job if its message or log is being read; return whether it was."""
        if self.withheld.pop(job.token, None) is not None:
            return True
        return self.reading_logs.pop(job.token, None) is not None

    def queue_number(self, claim: LeasedJob | Settlement) -> int:
        """Return the number of the queue from which a job was claimed."""
        return VERSION if claim.token in self._of_version else OWN

    def by_queue(self, claims: list[C]) -> list[tuple[str, list[C]]]:
        """Return the name of each queue from which claims came, with these claims."""
        if not self._of_version:
            return [(self._queues[OWN], claims)]
        split: tuple[list[C], list[C]] = ([], [])
        for claim in claims:
            split[self.queue_number(claim)].append(claim)
        return [pair for pair in zip(self._queues, split, strict=True) if pair[1]]

    def let_go(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """Forget the queues of these claims, which are over."""
        if self._of_version:
            self._of_version.difference_update([claim.token for claim in claims])


class Deadlines:
    """The deadlines of a model's jobs.

    Attributes:
        least_time: the least time that its batches take.
        next_at: when `expire` must be called; it may be too early, but never too late.
        ended: the settlements of the jobs that could not begin in time.
    """

    def __init__(self, config: ModelConfig, batcher: Batcher[LeasedJob]) -> None:
        self.least_time = LeastTime()
        self.next_at = NEVER
        self.ended: list[Settlement] = []
        self._config = config
        self._batcher = batcher
        # The prepared jobs that have an `expires`, by token.
        self._expiring: dict[str, LeasedJob] = {}

    def take_ended(self) -> list[Settlement]:
        """Return the settlements of the jobs that could not begin, since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def expires_too_soon(self, job: LeasedJob, replicas: Sequence[Replica]) -> bool:
        """End a job that expires before a replica is free, or watch it; return whether it ended."""
        if job.expires_at == NEVER:
            return False
        if job.expires_at < self._free_at(replicas, time.monotonic()):
            why = f"{NOT_STARTED}: the running batches end later"
            self.ended.append(failed(job, "expired", why))
            return True
        self._expiring[job.token] = job
        self.next_at = min(self.next_at, job.expires_at)
        return False

    def _free_at(self, replicas: Sequence[Replica], now: float) -> float:
        """Return when a replica can take the next batch at the earliest; 0 for now."""
        least_s = self.least_time.at(now)
        started = [
            replica.batch.started_at
            for replica in replicas
            if replica.batch is not None and not replica.joinable
        ]
        busy = least_s and started and len(started) == len(replicas)
        return min(started) + least_s if busy else 0.0

    def unwatch(self, jobs: Iterable[LeasedJob]) -> None:
        """Stop watching jobs that have left the batcher."""
        if not self._expiring:
            return
        for job in jobs:
            self._expiring.pop(job.token, None)
        if not self._expiring:
            self.next_at = NEVER

    def expire(self, now: float) -> None:
        """End the prepared jobs that have expired."""
        if now < self.next_at:
            return
        for job in [job for job in self._expiring.values() if job.expires_at <= now]:
            del self._expiring[job.token]
            if self._batcher.remove(job):
                self.ended.append(failed(job, "expired", NOT_STARTED))
        self.next_at = min((job.expires_at for job in self._expiring.values()), default=NEVER)

    def keep_feasible(self, jobs: list[LeasedJob], least_s: float) -> list[LeasedJob]:
        """Return the jobs whose timeout is at least `least_s`; end the others."""
        kept = []
        for job in jobs:
            limit = self.timeout_s((job,))
            if limit >= least_s:
                kept.append(job)
                continue
            why = (
                f"the job was not run: its timeout of {limit:g} s cannot be met, no recent batch "
                f"took less than {least_s / LEAST_SHARE:.3g} s"
            )
            self.ended.append(failed(job, "expired", why))
        return kept

    def timeout_s(self, jobs: Iterable[LeasedJob]) -> float:
        """Return how long a batch of these jobs may run: the shortest of their timeouts."""
        timeouts = {job.message.timeout_s if job.message is not None else None for job in jobs}
        shortest = min(timeout or self._config.timeout_s for timeout in timeouts)
        return max(shortest, self._config.min_timeout_s)

    def timed_out(
        self, batch: Batch, now: float, trace: str = "", *, killed: bool = True
    ) -> Settlement:
        """Return the settlement of a job that ran alone in this batch and exceeded its timeout.

        Args:
            now: when its end was seen.
            trace: the stacks of the model process; empty if they are unknown.
            killed: the process was killed; else the job has left a generator, which runs on.
        """
        job = batch.jobs[0]
        limit = self.timeout_s((job,))
        run = unfinished(job, batch, now)
        end = "its model process was killed" if killed else "it was stopped, and other jobs run on"
        return failed(
            job, "timeout", f"the job ran longer than its timeout of {limit:g} s; {end}",
            traceback=trace, batch=1, run=run,
        )  # fmt: skip


class PendingResult(NamedTuple):
    """A result to store, JSON text or bytes, and the settlement that names it."""

    job: LeasedJob
    settlement: Settlement
    entry: PayloadEntry
    result: bytes


class TransferOutcome(NamedTuple):
    """The outcome of a transfer; after a `retryable` error the job may be tried again."""

    job: LeasedJob
    body: bytes | None = None
    result: PendingResult | None = None
    error: HeadraceError | None = None
    retryable: bool = False


@dataclass(slots=True)
class PendingPayloads:
    """The payload work of a model.

    Attributes:
        store: the store for new results; empty keeps every result in its message.
        inline_limit_bytes: longer results of API jobs are stored.
        in_transfer: jobs whose payload is being fetched or stored, by token. They are in no batch.
    """

    store: str = ""
    inline_limit_bytes: int = STOCK_RESULT_MAX_BYTES
    in_transfer: dict[str, LeasedJob] = field(default_factory=dict)
    _fetches: list[LeasedJob] = field(default_factory=list)
    _results: list[PendingResult] = field(default_factory=list)
    _ended: list[PayloadEntry] = field(default_factory=list)
    _entries: dict[str, list[PayloadEntry]] = field(default_factory=dict)

    def add_fetch(self, job: LeasedJob, model: str, source: InputSource) -> None:
        """Fetch the job's input from its source."""
        if source.ref:
            self._remember(job.token, PayloadEntry(source.ref, job.id, model, "i"))
        self.in_transfer[job.token] = job
        self._fetches.append(job)

    def must_store(self, job: LeasedJob, size: int) -> bool:
        """Return whether a result of `size` bytes is too long for its Celery result."""
        message = job.message
        if not self.store or message is None or message.ignore_result:
            return False
        limit = self.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
        return size > limit

    def add_result(self, result: PendingResult) -> None:
        """Store a result before its job is settled."""
        self._remember(result.job.token, result.entry)
        self.in_transfer[result.job.token] = result.job
        self._results.append(result)

    def take_work(self) -> tuple[list[LeasedJob], list[PendingResult], list[PayloadEntry]]:
        """Return what was added since the last call.

        Returns:
            Jobs whose input must be fetched, results to store, and payloads that are deleted unless
            their job still needs them.
        """
        work = self._fetches, self._results, self._ended
        self._fetches, self._results, self._ended = [], [], []
        return work

    def room_left(self, room: list[int]) -> list[int]:
        """Return the room for each step that is left once all jobs in transfer have arrived."""
        left = list(room)
        for job in self.in_transfer.values():
            for place in range(STEP_PLACE[job.step], len(left)):
                left[place] = max(0, left[place] - 1)
        return left

    def let_go(self, claims: Iterable[LeasedJob | Settlement]) -> None:
        """Queue the payloads of ended claims for deletion; the store checks the job's record."""
        for claim in claims if self._entries else ():
            self._ended += self._entries.pop(claim.token, ())

    def _remember(self, token: str, entry: PayloadEntry) -> None:
        self._entries.setdefault(token, []).append(entry)


class UnsentCallbacks(NamedTuple):
    """A job that has ended and has callbacks, with the settlement to send after these."""

    job: LeasedJob
    settlement: Settlement


class OrphanedEnd(NamedTuple):
    """The end of a job that a Redis script settled, so no worker has sent its callbacks.

    Attributes:
        name: the name of the entry in the queue's list of such ends.
        entry: the entry, as `save_orphaned_end` in lib/callbacks.lua writes it.
    """

    queue: str
    name: bytes
    entry: bytes


@dataclass(slots=True)
class PendingCallbacks:
    """The callbacks of a model's jobs.

    Attributes:
        linked: held jobs that have callbacks, by token.
        notifying: ended jobs whose callbacks have not been sent, by token.
        orphaned_pending: how many orphaned ends the notifier has not handled.
    """

    linked: dict[str, LeasedJob] = field(default_factory=dict)
    notifying: dict[str, LeasedJob] = field(default_factory=dict)
    orphaned_pending: int = 0
    _ends: list[UnsentCallbacks] = field(default_factory=list)
    _orphaned: list[OrphanedEnd] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether so many callbacks are pending that nothing more should be claimed."""
        return len(self.notifying) >= NOTIFYING_MAX

    @property
    def orphaned_room(self) -> int:
        """How many orphaned ends the next sweep may return."""
        return 0 if self.orphaned_pending else ORPHANED_MAX

    def keep_results(self, jobs: Iterable[LeasedJob], outcomes: Iterable[Any]) -> None:
        """Keep the results that callbacks need."""
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.canvas is not None and not job.dropped and outcome[0]:
                job.result = kombu_bytes(outcome[1]) if outcome[2] else outcome[1]

    def hold_for_callbacks(self, settlements: list[Settlement]) -> list[Settlement]:
        """Keep the settlements that must wait for callbacks; return the others."""
        if not self.linked:
            return settlements
        free = []
        for settlement in settlements:
            job = None if settlement.retried else self.linked.pop(settlement.token, None)
            if job is None:
                free.append(settlement)
            else:
                self.notifying[settlement.token] = job
                self._ends.append(UnsentCallbacks(job, settlement))
        return free

    def add_orphaned(self, queue: str, pairs: Iterable[bytes]) -> None:
        """Add the orphaned ends that a sweep returned: the name and the entry of each in turn."""
        flat = iter(pairs)
        ends = [OrphanedEnd(queue, name, entry) for name, entry in zip(flat, flat, strict=False)]
        self._orphaned += ends
        self.orphaned_pending += len(ends)

    def take_work(self) -> tuple[list[UnsentCallbacks], list[OrphanedEnd]]:
        """Return what was added since the last call."""
        work = self._ends, self._orphaned
        self._ends, self._orphaned = [], []
        return work


def cancel(job: LeasedJob) -> Settlement:
    """Mark a job as cancelled before it ran, and return its settlement."""
    job.dropped = "cancelled"
    return cancelled(job)
