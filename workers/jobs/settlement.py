"""Settlements: how a job ends, or why it waits again, as the arguments of jobs/settle.lua.

A retry follows exponential backoff with full jitter. The n-th retry comes after a random time
between 0 and `base * 2^(n-1)`, at most `max_s`. So jobs that failed together do not return together
(AWS architecture blog, 2015). The job waits in Redis. For jobs that were lost with their process,
`lib/release.lua` uses the same rule. `read_message` also makes a settlement, of a claimed job that
cannot run now.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from handlers.extension import handler_parts
from headrace.config.inputs.parameters import check_parameters, with_defaults
from headrace.config.model.catalog import ModelConfig
from headrace.config.model.shared import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S
from headrace.errors import BY_CODE, NOT_STARTED, HeadraceError, InvalidRequest
from headrace.jobs.job import State
from headrace.jobs.message import Message, decode_message
from headrace.jobs.options import NO_DETAILS, read_object
from headrace.jobs.values.encoding import parses
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import Arg
from headrace.redis.scripts.jobs import DEAD, Run
from headrace.redis.scripts.jobs import Settlement as Settlement
from headrace.response import split_details
from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import NEVER, Batch, LeasedJob

#: What the stacks of a timeout have in their heads.
_STACKS: Final = "(most recent call first)"
#: What the lines of an ExceptionGroup begin with, and what is between it and its parts.
_GROUP_LINE: Final = re.compile(r"^  [|+] ", re.MULTILINE)
_GROUP_PARTS: Final = "\n  +-+--"
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
#: The line after the frames of a traceback begins with the exception's name.
_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.]*)", re.MULTILINE)
#: Files whose frames are not the handler's own: libraries, and the model process.
_LIBRARY: Final = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*|model_process)/|^<")
_PACKAGE: Final = f"{Path(__file__).parents[2] / 'headrace'}/"


class Raised(NamedTuple):
    """An exception, and the place in the handler's own code.

    Attributes:
        exception: the class, without its module.
        where: file and line, such as `words.py:7`: the last frame that is the handler's own. The
            folder is left out, as it differs between hosts.
    """

    exception: str
    where: str

    @property
    def text(self) -> str:
        """Both, for a log."""
        return f"{self.exception} at {self.where}"


def read_raised(traceback: str) -> Raised | None:
    """Read a traceback; None if it has no frames, or is the stacks of a timeout."""
    # An error in a task group has its place where the group is; its parts may have none.
    traceback = _GROUP_LINE.sub("", traceback.partition(_GROUP_PARTS)[0])
    frames = [] if _STACKS in traceback else list(_FRAME.finditer(traceback))
    if not frames:
        return None
    last_first = [
        frame
        for frame in reversed(frames)
        if not (_LIBRARY.search(frame[1]) or frame[1].startswith(_PACKAGE))
    ] or [frames[-1]]
    # The author's handler may extend that of an extension.
    extended = tuple(f"{part.folder}/" for part in handler_parts().values())
    own = next((frame for frame in last_first if not frame[1].startswith(extended)), last_first[0])
    # Only the first line after the frames: the exception's text may have lines of its own.
    kind = _EXCEPTION.search(traceback, frames[-1].end())
    name = kind[1].rpartition(".")[2] if kind else "exception"
    return Raised(name, f"{Path(own[1]).name}:{own[2]}")


_CHANCE: Final = random.Random()  # noqa: S311 - jitter


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a job is tried again.

    Attributes:
        base_s: the limit of the first wait.
        max_s: the limit of every wait.
    """

    max_retries: int = 0
    base_s: float = RETRY_BACKOFF_S
    max_s: float = RETRY_BACKOFF_MAX_S

    def for_job(self, message: Message | None) -> RetryPolicy:
        """Return the policy of a job: the options in its message, else this policy."""
        if message is None:
            return self
        own: dict[str, Any] = {
            "max_retries": message.max_retries,
            "base_s": message.retry_backoff_s,
            "max_s": message.retry_backoff_max_s,
        }
        return replace(self, **{name: value for name, value in own.items() if value is not None})

    def bound_s(self, retries: int) -> float:
        """Return the longest wait of a job that was retried `retries` times before."""
        return min(self.max_s, self.base_s * 2.0**retries)

    def retry_us(self, retries: int, chance: random.Random = _CHANCE) -> str:
        """Return the wait in microseconds, or DEAD if no retries are left, for jobs/settle.lua."""
        if retries >= self.max_retries:
            return DEAD
        return str(int(chance.uniform(0, self.bound_s(retries)) * US_PER_S))

    def loss_arguments(self, max_deliveries: int, failures_kept: str) -> str:
        """Return the `losses` argument of the scripts that release lost jobs."""
        base_us, most_us = self.backoff_us
        return f"{max_deliveries} {base_us} {most_us} {failures_kept}"

    @property
    def backoff_us(self) -> tuple[int, int]:
        """The limits of the first wait and of every wait, in microseconds."""
        return int(self.base_s * US_PER_S), int(self.max_s * US_PER_S)


NOT_RUN: Final = Run("", "0.0", "")
NO_RETRIES: Final = RetryPolicy()
_NO_CHILDREN: Final = b', "children": [], '
_META: Final = (
    b'{"status": "%s", "result": %s, "traceback": %s%s"date_done": "%s", "task_id": "%s"%s}'
)
_encode: Final = msgspec.json.encode
#: The scripts write the same text for jobs that they cancel themselves.
REVOKED_JSON: Final = (
    b'{"exc_type": "TaskRevokedError", "exc_message": ["cancelled"],'
    b' "exc_module": "celery.exceptions"}'
)


def date_done() -> str:
    """Return the current time as Celery writes `date_done`."""
    return datetime.now(UTC).isoformat()


def _meta(
    job: LeasedJob, status: bytes, result: bytes, traceback: bytes = b"null", done: str = ""
) -> bytes:
    message, family = job.message, b""
    if message is not None:
        if message.ignore_result:
            return b""
        if message.group is not None:
            family += b', "group_id": ' + _encode(message.group)
        if message.parent_id is not None:
            family += b', "parent_id": ' + _encode(message.parent_id)
    at = (done or date_done()).encode()
    # A job id needs no JSON escapes.
    return _META % (status, result, traceback, _NO_CHILDREN, at, job.id.encode(), family)


def _ended(
    job: LeasedJob,
    state: State,
    meta: bytes,
    batch: Arg,
    run: Run,
    field: str,
    value: Arg,
    retry_us: str = "",
) -> Settlement:
    return Settlement(
        job.id, job.token, state, meta, batch, run.timings, field, value, retry_us,
        run.began, run.device_wait, job.used,
    )  # fmt: skip


def with_children(settlement: Settlement, children: bytes) -> Settlement:
    """Return the settlement with the JSON list of the tasks that follow its result."""
    # Split at the last match: a result may contain the same text, the fields behind it cannot.
    head, separator, tail = settlement.meta.rpartition(_NO_CHILDREN)
    if not separator:
        return settlement
    return settlement._replace(meta=head + b', "children": ' + children + b", " + tail)


def succeeded(
    job: LeasedJob, result: bytes, content_type: str, batch: Arg, run: Run, done: str = ""
) -> Settlement:
    """End a job with a result (JSON text).

    Args:
        content_type: empty if the result is JSON.
        done: what `date_done` returned for its batch; by default the present time.
    """
    message = job.message
    if not content_type and message is not None and message.quiet:
        return _ended(job, State.SUCCEEDED, b"", batch, run, JobField.RESULT, result)
    meta = _meta(job, b"SUCCESS", result, done=done)
    field = JobField.RESULT_TYPE if content_type else ""
    return _ended(job, State.SUCCEEDED, meta, batch, run, field, content_type)


def stored(
    job: LeasedJob, ref: str, length: int, content_type: str, batch: Arg, run: Run, done: str = ""
) -> Settlement:
    """End a job with a result of `length` bytes in the payload store; Celery's has its URL."""
    kind, _ = split_details(content_type)
    shown = {"size": length, "content_type": kind, "url": f"/api/v1/jobs/{job.id}/result"}
    meta = _meta(job, b"SUCCESS", _encode(shown), done=done)
    value = f"{ref} {length} {content_type}"
    return _ended(job, State.SUCCEEDED, meta, batch, run, JobField.RESULT_REF, value)


def failed(
    job: LeasedJob,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    traceback: str = "",
    batch: Arg = 0,
    run: Run = NOT_RUN,
    retries: RetryPolicy = NO_RETRIES,
    response: bytes = b"",
) -> Settlement:
    """End a job with this error, or postpone it for a retry.

    It is retried if the error is retryable, retries are left, and the retry would begin before the
    job's `expires`. `response` is the JSON of the handler's `ErrorResponse`.
    """
    shown: dict[str, Any] = {"type": code, "message": message, "retryable": retryable}
    raised = read_raised(traceback)
    if raised is not None:
        shown |= {"exception": raised.exception, "where": raised.where}
    error = _encode({**shown, "response": msgspec.Raw(response)} if response else shown)
    retry_us = ""
    if retryable:
        retry_us = retries.for_job(job.message).retry_us(job.retries)
        if job.expires_at != NEVER and retry_us != DEAD:
            late = time.monotonic() + int(retry_us) / US_PER_S > job.expires_at
            retry_us = "" if late else retry_us
    cls = BY_CODE.get(code, HeadraceError)
    result = _encode(
        {"exc_type": cls.__name__, "exc_message": [message], "exc_module": cls.__module__}
    )
    state = State.EXPIRED if code == "expired" else State.FAILED
    meta = _meta(job, b"FAILURE", result, _encode(traceback or None))
    return _ended(job, state, meta, batch, run, JobField.ERROR, error, retry_us)


def unreadable_message(job: LeasedJob, raw: bytes, error: InvalidRequest) -> Settlement:
    """End a job whose message cannot be read.

    A message that is not JSON becomes a dead letter, because only a dead letter keeps its bytes.
    The script jobs/claim.lua does the same with messages that it parses itself.
    """
    settlement = failed(job, error.code, error.message)
    return settlement if parses(raw) else settlement._replace(retry_us=DEAD)


def cancelled(job: LeasedJob) -> Settlement:
    """End a job as cancelled; it has not run."""
    meta = _meta(job, b"REVOKED", REVOKED_JSON)
    return Settlement(job.id, job.token, State.CANCELLED, meta, 0, "", "", "", "")


def postponed(job: LeasedJob, delay_s: float) -> Settlement:
    """Put a job back until its eta, without an error and without counting the attempt."""
    wait_us = str(int(delay_s * US_PER_S))
    return Settlement(job.id, job.token, State.SCHEDULED, b"", 0, "", "", "", wait_us)


def stages(times: Sequence[float]) -> str:
    """Return the part of the timings that all jobs of a batch share: its three stages in ms."""
    return f"{times[0]:.3f},{times[1]:.3f},{times[2]:.3f}"


def began(job: LeasedJob, at: float, wait_s: float) -> tuple[str, str]:
    """Return the `st` and `dw` of a job that began at `at`, after a wait for its device."""
    # Sums of floats can be a little below 0.
    return str(job.redis_us(at)), f"{max(wait_s, 0.0) * 1000:.3f}"


def timings(job: LeasedJob, hold_s: float, shared: str) -> str:
    """Return the record's `tm`: ms from submit to claim, of hold, and of the stages."""
    return since_submit(job) + since_claim(hold_s, shared)


def since_submit(job: LeasedJob) -> str:
    """Return the part of the timings that differs for each job."""
    return f"{(job.claimed_at - job.enqueued_at) * 1000:.3f}"


def since_claim(hold_s: float, shared: str) -> str:
    """Return the rest, which is the same for all jobs of a batch that were claimed together."""
    return f",{hold_s * 1000:.3f},{shared}"


def unfinished(job: LeasedJob, batch: Batch, now: float) -> Run:
    """Return how a job ran whose batch returned nothing: all of its time is `inference`."""
    hold_s, at = job.hold_s(batch.free_at), batch.started_at
    start = began(job, at, at - job.claimed_at - hold_s)
    return Run(*start, timings(job, hold_s, stages([0.0, (now - at) * 1000, 0.0])))


def read_message(
    job: LeasedJob, raw: bytes, model: str, queue: str, now_us: int
) -> Settlement | None:
    """Read and set the message of a claimed job; return its settlement if it will not run now."""
    try:
        message = job.message = decode_message(raw)
    except InvalidRequest as error:
        job.canvas = read_canvas(raw)
        return unreadable_message(job, raw, error)
    if message.has_callbacks:
        job.canvas = read_canvas(raw)
        if job.canvas is None:
            problem = "the signatures of the job's callbacks cannot be read"
            return failed(job, InvalidRequest.code, problem)
    if message.model != model:
        problem = f"the queue {queue} serves {model!r}, not {message.model[:64]!r}"
        return failed(job, InvalidRequest.code, problem)
    if message.expires_s is None and message.eta_s is None:
        return None
    wait_s = job.set_deadlines(message, job.claimed_at, now_us)
    if job.expires_at <= job.claimed_at:
        return failed(job, "expired", NOT_STARTED)
    return postponed(job, wait_s) if wait_s else None


def read_details(job: LeasedJob, model: ModelConfig) -> Settlement | None:
    """Set what comes with the input of a job, with the defaults of the model's parameters.

    The API has checked the parameters already, but not those of a Celery client.

    Returns:
        The settlement of a job with wrong parameters; else None.
    """
    message = job.message
    if message is None or (message.details is None and not model.parameters):
        return None
    details = message.details or NO_DETAILS
    try:
        given = read_object(details.parameters, "parameters")
        checked = check_parameters(model.parameters, given, model.name)
    except InvalidRequest as error:
        return failed(job, error.code, error.message_with_hint)
    values = with_defaults(model.parameters, checked)
    parameters = _encode(values) if values else b""
    job.details = msgspec.structs.replace(details, parameters=parameters).text()
    return None
