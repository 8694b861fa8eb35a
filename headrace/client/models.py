"""What the API tells of jobs, models, queues and dead letters, typed.

A newer server's fields pass by.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from headrace.errors import UnexpectedAnswer
from headrace.jobs.media_types import is_json
from headrace.jobs.progress import Progress

In = TypeVar("In")

Status = Literal["queued", "scheduled", "running", "succeeded", "failed", "expired", "cancelled"]
ENDED: Final = frozenset({"succeeded", "failed", "expired", "cancelled"})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended that did not succeed.

    Attributes:
        type: a code of `headrace.errors`.
        message: what was wrong.
        retryable: whether the same job can succeed another time.
    """

    type: str = "error"
    message: str = ""
    retryable: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the API shows it; docs/api.md says what each field means.

    Attributes:
        timings: milliseconds, by stage.
        result: the result as the API shows it: JSON, or `{"content_type", "base64"}`; None before
            the end, and where it is too long to be shown. `value` has it decoded.
        result_size: its bytes, where it is too long to be shown; `client.result` fetches it.
        due_at: when it joins its queue, while it is scheduled: at first, or for another try.
        progress: how far it has come, while it runs and its handler says so.
        stages: of a pipeline's job that has begun: how far its stages have come.
        error: how it ended, where it did not succeed; before the end, how its last try did.
    """

    id: str
    model: str
    version: str
    status: str
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    queue_position: int | None = None
    batch_size: int | None = None
    timings: dict[str, float] | None = None
    metadata: dict[str, Any] | None = None
    waiting_for: str | None = None
    urls: dict[str, str] = {}
    batch_padding: int = 0
    dead_lettered: bool = False
    cancel_requested: bool = False
    result: Any = None
    result_size: int | None = None
    due_at: datetime | None = None
    stages: list[dict[str, Any]] = []
    progress: Progress | None = None
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.status == "succeeded"

    @property
    def value(self) -> Any:
        """The result decoded: a JSON value, str for text/*, bytes for everything else.

        Raises:
            UnexpectedAnswer: it says that it is base64, and is not.
        """
        return decode_result(self.result)


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancellation did.

    Attributes:
        id: the job.
        outcome: `removed` (it will not run), `asked` (it runs; its result will be discarded),
            `ended` (it had ended before) or `unknown`.
        status: the job's status now; None where it is unknown.
    """

    id: str
    outcome: str
    status: str | None = None


class Result(msgspec.Struct, Generic[In], frozen=True, kw_only=True):
    """What came of one input of a `map`.

    Attributes:
        index: the input's place, from 0.
        input: the input, as it was given.
        job: the job that it became; None where it was refused.
        value: the decoded result; None where there is an error.
        error: why there is none.
    """

    index: int
    input: In
    job: Job | None
    value: Any = None
    error: Exception | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A registered model. `client.model(name)` fills what the list of all leaves None."""

    name: str
    version: str
    queue: str
    state: str
    ready_replicas: int
    handler: str | None = None
    device: str | None = None
    replicas: int | None = None
    max_batch_size: int | None = None
    max_batch_delay_ms: float | None = None
    max_queue_depth: int | None = None
    timeout_s: float | None = None
    max_retries: int | None = None
    error: str | None = None
    workers: list[dict[str, Any]] | None = None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of one model.

    Attributes:
        depth: waiting jobs, by priority step.
        paused: no worker claims from it until it is resumed.
        oldest_age_s: how long the oldest waiting job has waited; None where none waits.
    """

    name: str
    model: str
    version: str
    depth: dict[str, int]
    scheduled: int
    in_flight: int
    dead_letters: int
    max_queue_depth: int
    paused: bool = False
    oldest_age_s: float | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What could not run, kept until it is put back or removed, for 14 days at the most.

    Attributes:
        id: its name: the job's id; of what is no job, a name of its own.
        model: whose queue it is from.
        job_id: the job that it was; None where the message could not be read.
        reason: the code of an error, or why the message is no job.
        error: the same in a sentence.
        attempts: how often it was handed out.
        created_at: when it was submitted.
        died_at: when it came here.
        requeueable: whether it can be put back.
        traceback: the handler's, where it raised. None in a list.
        message: the task message, as `text` or `base64`. None in a list; `raw` has it decoded.
    """

    id: str
    model: str = ""
    job_id: str | None = None
    reason: str
    error: str
    attempts: int
    created_at: datetime
    died_at: datetime
    requeueable: bool
    traceback: str | None = None
    message: dict[str, str] | None = None

    @property
    def raw(self) -> bytes:
        """The task message, byte for byte.

        Raises:
            UnexpectedAnswer: it says that it is base64, and is not.
        """
        message = self.message or {}
        return message["text"].encode() if "text" in message else _unpack(message.get("base64", ""))


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """What became of dead letters that were to be put back.

    Attributes:
        requeued: how many were.
        left: which were not, and why: `unknown`, `unreadable` (no job that could run) or `alive`
            (a job of its id waits or runs, or is a later one).
    """

    requeued: int
    left: dict[str, str] = {}


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try to deliver a webhook.

    Attributes:
        status: what the receiver answered; None where it did not.
        error: what was wrong; None where nothing was.
    """

    at: datetime
    duration_ms: int = 0
    status: int | None = None
    error: str | None = None


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook was told of a job, or is to be told.

    Attributes:
        id: the header `webhook-id` of each try.
        type: such as `job.succeeded`.
        url: where to, without its query.
        state: `pending`, `delivered` or `failed`.
        next_attempt_at: when it is tried again, while it is pending.
        tries: how many there were.
        attempts: the newest of them.
    """

    id: str
    type: str
    url: str
    state: str
    created_at: datetime
    next_attempt_at: datetime | None = None
    tries: int = 0
    attempts: list[WebhookAttempt] = []


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An offline run, as it told of itself last.

    Attributes:
        state: `running`, `ended`, `stopped`, `cancelled`, `failed`, or `lost`: it has told nothing
            for half a minute.
        source: where its inputs come from.
        output: where its rows go.
        total: how many inputs there are; None where that is not known.
        succeeded: rows with a result.
        failed: rows without one.
        per_second: how many have ended a second.
        command: what goes on with it, on that host and in that folder.
        error: why it failed.
    """

    id: str
    model: str
    state: str
    told_at: datetime
    started_at: datetime
    name: str = ""
    source: str = ""
    output: str = ""
    total: int | None = None
    succeeded: int = 0
    failed: int = 0
    in_flight: int = 0
    per_second: float = 0.0
    command: list[str] = []
    host: str = ""
    folder: str = ""
    error: str = ""
    cancel_requested: bool = False

    @property
    def ended(self) -> int:
        """How many inputs have their row."""
        return self.succeeded + self.failed


def decode_result(result: Any) -> Any:
    """A result as the API shows it in a job, decoded.

    Raises:
        UnexpectedAnswer: it says that it is base64, and is not.
    """
    if not isinstance(result, dict) or result.keys() != {"content_type", "base64"}:
        return result
    kind, text = result["content_type"], result["base64"]
    if not isinstance(kind, str) or not isinstance(text, str):
        return result
    return decode_output(_unpack(text), kind)


def decode_output(body: bytes, content_type: str) -> Any:
    """An output by its content type: a JSON value, str for text/*, bytes for everything else.

    Raises:
        UnexpectedAnswer: it says that it is JSON, or text, and is not.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if is_json(kind):
            return msgspec.json.decode(body)
        return body.decode() if kind.startswith("text/") else body
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"a result says that it is {kind}, and is not: {error}") from None


def _unpack(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UnexpectedAnswer(f"the base64 of an answer cannot be read: {error}") from None
