"""A leased job, which is a claimed job inside a worker; how a claim gives it; and a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from headrace.jobs.message import Message, arguments_repr
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import OFFLINE_STEP, TASK_NAME
from headrace.redis.scripts.jobs import ClaimedRow, ClaimReply
from workers.jobs.canvas import Canvas

NEVER: Final = float("inf")
#: `dropped` of a job that ran longer than its timeout, while others run on.
TIMED_OUT: Final = "timed out"
#: The best priority step, as the reply to a claim has it; its jobs never yield.
BEST_STEP: Final = b"0"
#: A batch that has not ended after this many seconds is worth a call of its own for its start.
START_WRITTEN_S: Final = 0.1
#: The field `x` of a record. EXCLUSIVE: nothing else runs in the worker while the job runs.
#: WITHHELD: its message, too, is read only then.
EXCLUSIVE: Final = b"2"
WITHHELD: Final = b"3"


class Log(NamedTuple):
    """The log of a generator's job: JSON arrays of its pieces, and of their tokens."""

    pieces: list[bytes]
    tokens: list[bytes]


def log_of(entries: Iterable[tuple[int, bytes, bytes]]) -> Log | None:
    """Return what follows the last restart mark of a log; None if a job cannot go on there.

    That is so if the log is empty or incomplete, or if its pieces have no tokens. The entries are
    those of `job_scripts.read_entries`.
    """
    log, end = Log([], []), 0
    whole = True
    for last, pieces, tokens in entries:
        if not pieces:
            log, whole = Log([], []), True
        else:
            count = len(msgspec.json.decode(pieces, type=list[msgspec.Raw]))
            whole = whole and bool(tokens) and last - count == end
            log.pieces.append(pieces)
            log.tokens.append(tokens)
        end = last
    return log if whole and log.pieces else None


class LeasedJob(msgspec.Struct, eq=False, weakref=True):
    """One leased job. Times that end in `_at` are the worker's monotonic seconds.

    Attributes:
        message: its message; None until it is read, or if it cannot be read.
        created_us: when it was submitted, by Redis' clock.
        attempts: how often it was claimed, this time included.
        isolated: it was in a batch that was lost, so it runs alone in its model process.
        exclusive: it was lost with its worker while it ran isolated, so nothing else runs in the
            worker meanwhile.
        withheld: its worker was lost so often before it ran that its message is read only when
            nothing else goes on in the worker.
        ready_at: from when on it could have run: its claim, or when its input was fetched.
        dispatched_at: when it was sent to a model process; 0 before.
        cost: its share of `max_batch_cost`.
        key: only jobs of the same key share a batch.
        step: its priority, a value of `headrace.redis.keys.STEPS`.
        overdue_at: from then on it no longer yields to better priorities.
        content_type: of an input that was fetched and is not JSON; else empty.
        canvas: the tasks that follow it; None for most jobs.
        result: its result as JSON text, kept only if tasks follow it.
        dropped: why its outcome no longer counts here: "cancelled", TIMED_OUT, or "lost" to
            another worker.
        expires_at: until when it must have begun; NEVER without an `expires`.
        log: what its earlier attempts have generated, if it can go on there.
        run: the number of the run that yields its pieces; 0 before the first run.
        used: how many tokens its request took, as text; "" if that is unknown.
        details: what comes with its input, as `InputDetails.text` writes it; b"" for nothing.
    """

    id: str
    token: str
    message: Message | None
    created_us: int
    enqueued_at: float
    claimed_at: float
    attempts: int
    ready_at: float = 0.0
    isolated: bool = False
    exclusive: bool = False
    withheld: bool = False
    dispatched_at: float = 0.0
    dispatched_epoch_s: float = 0.0
    cost: int = 0
    key: str | None = None
    step: int = 0
    overdue_at: float = NEVER
    content_type: str = ""
    canvas: Canvas | None = None
    result: bytes = b"null"
    dropped: str = ""
    expires_at: float = NEVER
    retries: int = 0
    details: bytes = b""
    log: Log | None = None
    run: int = 0
    used: str = ""

    def set_deadlines(self, message: Message, now: float, now_us: int) -> float:
        """Set `expires_at`, and return how many seconds before its eta the job was claimed.

        `now` is the time of its claim, and `now_us` the same by Redis' clock.

        The message has both times by its sender's clock. They are compared with Redis' clock, which
        all workers share, and from then on measured by the monotonic clock.
        """
        ahead_s = now - now_us / US_PER_S
        if message.expires_s is not None:
            self.expires_at = message.expires_s + ahead_s
        return 0.0 if message.eta_s is None else max(0.0, message.eta_s + ahead_s - now)

    def hold_s(self, free_at: float) -> float:
        """Return for how long it waited in the worker for something else than the device.

        That is until its input was here, and from `free_at`, when the device was free for its
        batch, until the batch left: for other jobs.
        """
        held_from = max(self.ready_at, free_at)
        return self.ready_at - self.claimed_at + self.dispatched_at - held_from

    def redis_us(self, at: float) -> int:
        """Return a monotonic time as microseconds of Redis' clock, as its claim had it."""
        return self.created_us + round((at - self.enqueued_at) * US_PER_S)

    @property
    def claimed_us(self) -> int:
        """When it was claimed, by Redis' clock in microseconds."""
        return self.redis_us(self.claimed_at)

    @property
    def input(self) -> bytes:
        """The input's JSON text, or its bytes if it was fetched."""
        return self.message.input if self.message is not None else b"null"

    def info(self) -> dict[str, Any]:
        """Return what `celery inspect active` and Flower's worker page show of a running job."""
        message = self.message
        kwargs = "{}"
        if message is not None:
            kwargs = arguments_repr(message.model, message.input, message.source)
        return {
            "id": self.id,
            "name": TASK_NAME,
            "type": TASK_NAME,
            "args": [],
            "kwargs": kwargs,
            "time_start": self.dispatched_epoch_s or None,
            "acknowledged": False,
            "hostname": None,
            "delivery_info": {"redelivered": self.attempts > 1},
            "worker_pid": None,
        }


@dataclass(slots=True)
class Batch:
    """Jobs that run together on a replica.

    Attributes:
        reason: why it was dispatched, a `workers.batching.batcher.Reason`.
        started_at: when it was dispatched; for a staged batch, when the batch before it ended.
        free_at: since when the device was free for it; its dispatch, unless it was held back.
        start_due_at: when its start is written into the records of its jobs, if it has not ended.
        deadline: when the shortest timeout of its jobs ends.
        staged: another batch ran before it in its model process.
        seq: its number on the frame socket.
        id: its name in logs and traces.
        traced: some of its jobs may belong to a trace.
        span: the `traceparent` of its own span; empty if it has none.
        number: how many jobs its generator had been sent with it.
        waits: its job waits for room in the process of a generator, so its timeout does not run.
        left_s: how much of its timeout is left then.
    """

    jobs: list[LeasedJob]
    reason: str
    started_at: float
    deadline: float
    free_at: float = 0.0
    start_due_at: float = 0.0
    staged: bool = False
    seq: int = 0
    id: str = ""
    traced: bool = False
    span: str = ""
    number: int = 0
    waits: bool = False
    left_s: float = 0.0

    @property
    def traces(self) -> dict[str, str]:
        """The `traceparent` with which each job was submitted, by job id."""
        return {
            job.id: job.message.trace.parent
            for job in self.jobs
            if job.message is not None and job.message.trace is not None
        }

    @property
    def offline(self) -> bool:
        """Whether all of its jobs have the offline priority."""
        return not self.online

    @property
    def online(self) -> int:
        """How many of its jobs have a better priority."""
        return sum(job.step != OFFLINE_STEP for job in self.jobs)

    def wait(self, now: float, *, waits: bool) -> None:
        """Stop the clock of its timeout while its job waits, and let it go on then."""
        if waits and not self.waits:
            self.left_s, self.deadline = self.deadline - now, NEVER
        elif self.waits and not waits:
            self.deadline = now + self.left_s
        self.waits = waits

    def begin(self, now: float) -> None:
        """Restart the clock of a staged batch when the batch before it ends."""
        self.deadline += now - self.started_at
        self.started_at, self.staged = now, True
        self.start_due_at = now + START_WRITTEN_S

    def began_at(self, ended_at: float, times: Sequence[float]) -> float:
        """Return when the device began to work for a staged batch, for the timings of its jobs.

        It is counted back from its end by its own stages (ms), because its `preprocess` may have
        run during the batch before it.
        """
        ran_s = sum(times[:3]) / 1000
        return min(self.started_at, max(self.jobs[0].dispatched_at, ended_at - ran_s))


def read_jobs(reply: ClaimReply, now: float, yield_s: float) -> Iterator[tuple[LeasedJob, bytes]]:
    """Yield the claimed jobs, each with its raw message, which is not read yet.

    For `yield_s` they yield to better priorities.
    """
    for row in reply.jobs:
        yield _leased_job(row, now, reply.now_us, yield_s), row[0]


def _leased_job(row: ClaimedRow, now: float, now_us: int, yield_s: float) -> LeasedJob:
    _, job_id, token, created, attempts, isolated, retries, waits = row
    created_us = int(created) if created else now_us
    enqueued_at = now - (now_us - created_us) / US_PER_S
    # Positional, and fields with default values are set later: a keyword costs as much as a value.
    job = LeasedJob(
        job_id.decode(),
        token.decode(),
        None,
        created_us,
        enqueued_at,
        now,
        int(attempts),
        now,
    )
    if isolated:
        job.isolated, job.exclusive = True, isolated in {EXCLUSIVE, WITHHELD}
        job.withheld = isolated == WITHHELD
    if retries:
        job.retries = int(retries)
    if waits != BEST_STEP:
        step, _, since = waits.partition(b" ")
        job.step = int(step)
        waited_from = now - (now_us - int(since)) / US_PER_S if since else enqueued_at
        job.overdue_at = yield_s + waited_from
    return job
