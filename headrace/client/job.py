"""What the API tells of jobs, models and queues, typed. A newer server's fields pass by."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from headrace.errors import UnexpectedAnswer
from headrace.media import is_json

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
        error: how it ended, where it did not succeed.
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
    try:
        body = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UnexpectedAnswer(f"the base64 of a result cannot be read: {error}") from None
    return decode_output(body, kind)


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
