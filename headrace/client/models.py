"""The API's jobs, models and dead letters as the client shows them; see headrace/schema."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from headrace.errors import UnexpectedAnswer
from headrace.jobs.progress import Progress
from headrace.jobs.values.media_types import is_json
from headrace.schema.jobs import JobObject
from headrace.schema.operation import DeadLetterEntry

In = TypeVar("In")

ENDED: Final = frozenset({"succeeded", "failed", "expired", "cancelled"})


class Job(JobObject, frozen=True, kw_only=True, omit_defaults=False):  # type: ignore[misc]
    """A job as the API returns it, with plain dicts; docs/api.md documents the fields."""

    timings: dict[str, float] | None  # type: ignore[assignment]
    urls: dict[str, str]  # type: ignore[assignment]
    stages: list[dict[str, Any]] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    earlier_attempts: list[dict[str, Any]] = msgspec.field(  # type: ignore[assignment]
        default_factory=list
    )
    progress: Progress | None = None  # type: ignore[assignment]

    @property
    def ended(self) -> bool:
        """Return whether the job has ended, with or without success."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """Return whether the job has succeeded."""
        return self.status == "succeeded"

    @property
    def value(self) -> Any:
        """Return the decoded result: a JSON value, str for text/*, else bytes.

        Raises:
            UnexpectedAnswer: the base64 is invalid.
        """
        return decode_result(self.result)


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a cancellation.

    Attributes:
        outcome: `removed` (it will not run), `asked` (it runs; its result will be discarded),
            `ended` (it had already ended) or `unknown`.
        status: the job's present status; None if it is unknown.
    """

    id: str
    outcome: str
    status: str | None = None


class Result(msgspec.Struct, Generic[In], frozen=True, kw_only=True):
    """The outcome of one input of a `map`.

    Attributes:
        index: the input's index, from 0.
        input: the input as the caller gave it.
        job: its job; None if the input was refused.
        value: the decoded result; None if there is an error.
        error: why there is no result.
    """

    index: int
    input: In
    job: Job | None
    value: Any = None
    error: Exception | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A registered model. `client.model(name)` sets fields that are None in the list of all.

    Attributes:
        inputs: what it takes: `schema`, `content_types`, `example`; None: anything is accepted.
        outputs: what it returns, in the same form; None: it declares nothing.
        versions: those that jobs may ask for; the workers may serve others than the declared one.
        traffic: where jobs go that name no version; None: to the default version.
        unserved: why no worker can host it; None: one can.
    """

    name: str
    version: str
    queue: str
    state: str
    ready_replicas: int
    versions: list[str] = []
    handler: str | None = None
    device: str | None = None
    labels: list[str] | None = None
    replicas: int | Literal["auto"] | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    scale_down_s: float | None = None
    total_replicas: int | None = None
    max_batch_size: int | None = None
    max_batch_delay_ms: float | None = None
    max_queue_depth: int | None = None
    timeout_s: float | None = None
    max_retries: int | None = None
    parameters: dict[str, Any] | None = None
    headers: list[str] | None = None
    error: str | None = None
    unserved: str | None = None
    workers: list[dict[str, Any]] | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    traffic: dict[str, Any] | None = None


class DeadLetter(DeadLetterEntry, frozen=True, kw_only=True):
    """A message that could not be processed, kept until it is requeued or deleted, at most 14 days.

    Attributes:
        traceback: the handler's traceback, if it raised. None in a list.
        message: the task message, as `text` or `base64`. None in a list; `raw` is decoded.
    """

    model: str = ""
    traceback: str | None = None
    message: dict[str, str] | None = None

    @property
    def raw(self) -> bytes:
        """Return the task message, byte for byte.

        Raises:
            UnexpectedAnswer: the base64 is invalid.
        """
        message = self.message or {}
        return message["text"].encode() if "text" in message else _unpack(message.get("base64", ""))


def decode_result(result: Any) -> Any:
    """Decode a result in the API's form of a job; raise UnexpectedAnswer for bad base64."""
    if not isinstance(result, dict) or result.keys() != {"content_type", "base64"}:
        return result
    kind, text = result["content_type"], result["base64"]
    if not isinstance(kind, str) or not isinstance(text, str):
        return result
    return decode_output(_unpack(text), kind)


def decode_output(body: bytes, content_type: str) -> Any:
    """Decode an output by its content type: a JSON value, str for text/*, else bytes.

    Raises:
        UnexpectedAnswer: it is not valid JSON or text.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if is_json(kind):
            return msgspec.json.decode(body)
        return body.decode() if kind.startswith("text/") else body
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"a result with type {kind} cannot be decoded: {error}") from None


def _unpack(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UnexpectedAnswer(f"the base64 of an answer cannot be read: {error}") from None
