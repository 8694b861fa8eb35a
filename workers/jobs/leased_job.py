"""A claimed job inside a worker, the batch that it runs in, and the settlement that ends it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import BY_CODE, HeadraceError, InvalidRequest
from headrace.jobs.encoding import parses
from headrace.jobs.job import State
from headrace.jobs.media_types import JSON_TYPE
from headrace.jobs.message import Message, arguments_repr
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import OFFLINE_STEP, TASK_NAME, F
from headrace.redis.scripts import Arg
from workers.jobs.canvas import Canvas
from workers.jobs.retries import DEAD, RetryPolicy

NO_RETRIES: Final = RetryPolicy()
NEVER: Final = float("inf")
#: The step that yields to none, as a claim's answer names it.
BEST_STEP: Final = b"0"
#: What stands around the base64 of a result that is not JSON (workers/model_process/executor.py).
BINARY_RESULT: Final = b'{"__type__": "base64", "__value__": ""}'
_NO_CHILDREN: Final = b', "children": [], '
_META: Final = (
    b'{"status": "%s", "result": %s, "traceback": %s%s"date_done": "%s", "task_id": "%s"%s}'
)
_encode: Final = msgspec.json.encode
#: As the scripts write it for jobs that they cancel themselves.
REVOKED_JSON: Final = (
    b'{"exc_type": "TaskRevokedError", "exc_message": ["cancelled"],'
    b' "exc_module": "celery.exceptions"}'
)


class LeasedJob(msgspec.Struct, eq=False, weakref=True):
    """One leased job. Times ending in `_at` are the worker's monotonic seconds.

    Attributes:
        token: the fence of this claim.
        created_us: when it was submitted, by Redis' clock.
        attempts: how often it was handed out, this time included.
        cost: its share of `max_batch_cost`.
        key: only items of one key run together.
        step: its priority, one of `headrace.redis.keys.STEPS`.
        overdue_at: from then on it no longer yields to better priorities.
        content_type: content type of an input that was fetched and is not JSON.
        expires_at: until when it must have begun; NEVER where its message does not say.
        dropped: why nothing is to come of it here any more: "cancelled", or "lost" to another
            worker.
        retries: how often it was tried again after an error.
        canvas: what follows it; None for most jobs.
        result: what it gave, as JSON text, where something follows.
    """

    id: str
    token: str
    message: Message | None
    created_us: int
    enqueued_at: float
    claimed_at: float
    attempts: int
    isolated: bool
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

    def set_deadlines(self, message: Message, now: float, now_us: int) -> float:
        """Note until when it must have begun; how many seconds too early it was claimed.

        A message has both times by the clock of whoever wrote it. They are held against Redis'
        clock, which is one for all workers, and from then on against one that nobody sets.

        Args:
            message: its message.
            now: the time of its claim.
            now_us: the same by Redis' clock.
        """
        ahead_s = now - now_us / US_PER_S
        if message.expires_s is not None:
            self.expires_at = message.expires_s + ahead_s
        return 0.0 if message.eta_s is None else max(0.0, message.eta_s + ahead_s - now)

    @property
    def input(self) -> bytes:
        """The input's JSON text."""
        return self.message.input if self.message is not None else b"null"

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What `celery inspect active` and Flower's worker page show of a running job."""
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


def claimed_job(row: Sequence[Any], now: float, now_us: int, yield_s: float) -> LeasedJob:
    """A job as jobs/claim.lua gave it, still without its message.

    Args:
        row: its answer for the job, after the raw message.
        now: the time.
        now_us: the time by Redis' clock.
        yield_s: how long jobs of the model yield to better ones.
    """
    job_id, token, created, attempts, alone, retries, waits = row
    created_us = int(created) if created else now_us
    enqueued_at = now - (now_us - created_us) / US_PER_S
    # By place, and what is as it is by default set after: a name costs as much as its value here.
    job = LeasedJob(
        job_id.decode(),
        token.decode(),
        None,
        created_us,
        enqueued_at,
        now,
        int(attempts),
        alone != b"",
    )
    if retries:
        job.retries = int(retries)
    if waits != BEST_STEP:
        place, _, since = waits.partition(b" ")
        job.step = int(place)
        waited_from = now - (now_us - int(since)) / US_PER_S if since else enqueued_at
        job.overdue_at = yield_s + waited_from
    return job


@dataclass(slots=True)
class Batch:
    """Items that run together on one replica.

    Attributes:
        reason: why it left, one of `workers.batching.batcher.Reason`.
        deadline: when the first of their timeouts runs out; not before it `runs_from` some time.
        seq: its number on the frame socket.
        id: its name in logs and traces.
        traced: some of its jobs may be part of a trace.
        span: where in a trace it runs itself (`traceparent`); "" for nowhere.
    """

    jobs: list[LeasedJob]
    reason: str
    started_at: float
    deadline: float
    seq: int = 0
    id: str = ""
    traced: bool = False
    span: str = ""

    @property
    def traces(self) -> dict[str, str]:
        """By job, where in a trace it was submitted."""
        return {
            job.id: job.message.trace.parent
            for job in self.jobs
            if job.message is not None and job.message.trace is not None
        }

    @property
    def offline(self) -> bool:
        """Whether nobody waits for it: all of its jobs are offline."""
        return all(job.step == OFFLINE_STEP for job in self.jobs)

    def runs_from(self, now: float) -> None:
        """It was handed over behind another batch, and is the one that runs now."""
        self.deadline += now - self.started_at
        self.started_at = now


class Settlement(NamedTuple):
    """The arguments of jobs/settle.lua for one job."""

    id: str
    token: str
    state: str
    meta: bytes
    batch: Arg
    timings: str
    extra: str
    value: Arg
    ttl: str
    retry_us: str

    @property
    def retried(self) -> bool:
        """Whether it waits for another try instead of ending."""
        return self.retry_us not in ("", DEAD)


def date_done() -> str:
    """Now, as Celery writes `date_done`."""
    return datetime.now(UTC).isoformat()


def _meta(job: LeasedJob, status: bytes, result: bytes, traceback: bytes, done: str) -> bytes:
    message, family = job.message, b""
    if message is not None:
        if message.ignore_result:
            return b""
        if message.group is not None:
            family += b', "group_id": ' + _encode(message.group)
        if message.parent_id is not None:
            family += b', "parent_id": ' + _encode(message.parent_id)
    # An id has no character that JSON writes otherwise.
    return _META % (
        status, result, traceback, _NO_CHILDREN, done.encode(), job.id.encode(), family
    )  # fmt: skip


def with_children(settlement: Settlement, children: bytes) -> Settlement:
    """The settlement, with what was sent for its result as Celery lists it, in JSON."""
    # The last of them: a result may hold these words too, what stands behind it cannot.
    head, found, tail = settlement.meta.rpartition(_NO_CHILDREN)
    if not found:
        return settlement
    return settlement._replace(meta=head + b', "children": ' + children + b", " + tail)


def succeeded(
    job: LeasedJob, result: bytes, kind: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """The job ends with this result (JSON text); `kind` is its content type if it is not JSON."""
    message = job.message
    if not kind and message is not None and message.quiet:
        own: tuple[bytes, str, Arg] = (b"", F.RESULT, result)
    else:
        meta = _meta(job, b"SUCCESS", result, b"null", done)
        own = (meta, F.RESULT_TYPE, kind) if kind else (meta, "", "")
    meta, field, value = own
    return Settlement(
        job.id, job.token, State.SUCCEEDED, meta, batch, timings, field, value, "", ""
    )


def stored(
    job: LeasedJob, ref: str, result: bytes, kind: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """The job ends with a result that lies in the payload store, under this reference.

    Its Celery result says how large it is and where the API gives it.
    """
    length, shown = (binary_size(result), kind) if kind else (len(result), JSON_TYPE)
    return stored_as(job, ref, length, shown, batch, timings, done)


def stored_as(
    job: LeasedJob, ref: str, length: int, shown: str, batch: Arg, timings: str, done: str
) -> Settlement:
    """As `stored`, of so many bytes of such a content type."""
    told = {"size": length, "content_type": shown, "url": f"/api/v1/jobs/{job.id}/result"}
    meta = _meta(job, b"SUCCESS", _encode(told), b"null", done)
    value = f"{ref} {length} {shown}"
    return Settlement(
        job.id, job.token, State.SUCCEEDED, meta, batch, timings, F.RESULT_REF, value, "", ""
    )


def binary_size(result: bytes | memoryview) -> int:
    """The bytes in a result that is not JSON, as the model process wrote it."""
    base64_chars = len(result) - len(BINARY_RESULT)
    return base64_chars * 3 // 4 - bytes(result[-4:]).count(b"=")


def failed(
    job: LeasedJob,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    traceback: str = "",
    batch: Arg = 0,
    timings: str = "",
    retries: RetryPolicy = NO_RETRIES,
) -> Settlement:
    """The job ends with this error, or is put off for a retry.

    The latter if a retry can help, is allowed and would come before the job's `expires`.
    """
    error = _encode({"type": code, "message": message, "retryable": retryable})
    retry_us = ""
    if retryable:
        retry_us = retries.for_job(job.message).retry_us(job.retries)
        if job.expires_at != NEVER and retry_us != DEAD:
            # It would wait for a time at which it is not to begin any more.
            late = time.monotonic() + int(retry_us) / US_PER_S > job.expires_at
            retry_us = "" if late else retry_us
    cls = BY_CODE.get(code, HeadraceError)
    result = _encode(
        {"exc_type": cls.__name__, "exc_message": [message], "exc_module": cls.__module__}
    )
    state = State.EXPIRED if code == "expired" else State.FAILED
    meta = _meta(job, b"FAILURE", result, _encode(traceback or None), date_done())
    return Settlement(job.id, job.token, state, meta, batch, timings, F.ERROR, error, "", retry_us)


def unreadable_message(job: LeasedJob, raw: bytes, error: InvalidRequest) -> Settlement:
    """The end of a job whose message cannot be read.

    The claim knows our own messages by their two ends alone. One with a broken middle, of which
    nobody else has the bytes, goes to the dead letters, as the claim does it with what it parses.
    """
    settlement = failed(job, error.code, error.message)
    return settlement if parses(raw) else settlement._replace(retry_us=DEAD)


def cancelled(job: LeasedJob) -> Settlement:
    """The job ends as cancelled, without having run."""
    meta = _meta(job, b"REVOKED", REVOKED_JSON, b"null", date_done())
    return Settlement(job.id, job.token, State.CANCELLED, meta, 0, "", "", "", "", "")


def postponed(job: LeasedJob, delay_s: float) -> Settlement:
    """The job waits in Redis until its eta: no error, no attempt charged for running."""
    return Settlement(
        job.id, job.token, State.SCHEDULED, b"", 0, "", "", "", "", str(int(delay_s * US_PER_S))
    )


def stages(times: Sequence[float]) -> str:
    """The part of the timings that all jobs of a batch share: its stages in ms."""
    return f"{times[0]:.3f},{times[1]:.3f},{times[2]:.3f}"


def timings(job: LeasedJob, shared: str) -> str:
    """The record's `tm`: ms from submit to claim, from claim to hand-over, and the stages."""
    return since_submit(job) + since_claim(job, shared)


def since_submit(job: LeasedJob) -> str:
    """The part of the timings that is the job's own."""
    return f"{(job.claimed_at - job.enqueued_at) * 1000:.3f}"


def since_claim(job: LeasedJob, shared: str) -> str:
    """The rest of them, the same for all jobs of a batch that were claimed together."""
    return f",{(job.dispatched_at - job.claimed_at) * 1000:.3f},{shared}"
