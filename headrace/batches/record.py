"""The record of a batch in Redis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.jobs.ids import new_id
from headrace.redis.fields import BatchField

VALIDATING: Final = "validating"
IN_PROGRESS: Final = "in_progress"
FINALIZING: Final = "finalizing"
COMPLETED: Final = "completed"
EXPIRED: Final = "expired"
CANCELLING: Final = "cancelling"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
STATUSES: Final = (
    VALIDATING, FAILED, IN_PROGRESS, FINALIZING, COMPLETED, EXPIRED, CANCELLING, CANCELLED,
)  # fmt: skip
ENDED: Final = frozenset({COMPLETED, EXPIRED, CANCELLED, FAILED})
#: The fields with the times at which a batch came to a status.
MOMENTS: Final = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
    "cancelling_at", "cancelled_at",
)  # fmt: skip

JOBS_ENDPOINT: Final = "/api/v1/jobs"
MODEL_ENDPOINT: Final = "/api/v1/models/{model}/jobs"

_ID: Final = re.compile(r"batch_[0-9a-f]{32}")
_MODEL_ENDPOINT: Final = re.compile(r"/api/v1/models/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})/jobs")


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client requested.

    Attributes:
        endpoint: JOBS_ENDPOINT, or MODEL_ENDPOINT of a model; the `url` of every line.
        window: the completion window, as the client wrote it.
        window_s: the same in seconds.
        output_ttl_s: how long its output is kept; None for as long as files are.
        rerun_of: the batch whose failed lines this one runs again.
        failed_file_id: the error file with those lines.
        owner: the id of the API key that owns the batch, its jobs and its files; "" without keys.
    """

    endpoint: str
    input_file_id: str
    window: str
    window_s: int
    metadata: dict[str, str] | None = None
    output_ttl_s: int | None = None
    rerun_of: str | None = None
    failed_file_id: str | None = None
    owner: str = ""

    @property
    def model(self) -> str | None:
        """The model of every line; None if each line names its own."""
        return endpoint_model(self.endpoint)


class LineError(msgspec.Struct, frozen=True):
    """An error in an input file.

    Attributes:
        code: a constant for programs.
        message: the reason, for people.
        line: the line, from 1; None if the error is not one line's.
        param: the member of the line.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch, as its record holds it.

    Attributes:
        moments: when it came to its statuses, in seconds since 1970, by the names of MOMENTS.
        checkpoint: its runner's; b"" before the first and after its end.
    """

    id: str
    status: str
    spec: BatchSpec
    created_at: int
    moments: dict[str, int]
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[LineError] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    checkpoint: bytes = b""

    @property
    def expires_at(self) -> int:
        """When the completion window ends, in seconds since 1970."""
        return self.moments["expires_at"]


def new_batch_id() -> str:
    """Return an id that sorts behind those created before."""
    return "batch_" + new_id().replace("-", "")


def is_batch_id(text: str) -> bool:
    """Return whether a batch can have this id."""
    return _ID.fullmatch(text) is not None


def endpoint_model(endpoint: str) -> str | None:
    """Return the model of an endpoint; None if each line names its own.

    Raises:
        ValueError: batches do not have this endpoint.
    """
    if endpoint == JOBS_ENDPOINT:
        return None
    found = _MODEL_ENDPOINT.fullmatch(endpoint)
    if found is None:
        raise ValueError(endpoint)
    return found[1]


def read_batch(batch_id: str, record: Mapping[bytes, bytes]) -> BatchRecord | None:
    """Read a record (the fields of HGETALL); None if there is no batch."""
    values: dict[str, Any] = {name.decode(): value for name, value in record.items()}
    if BatchField.STATUS not in values:
        return None

    def text(name: str) -> str:
        return bytes(values.get(name, b"")).decode("utf-8", "replace")

    errors = values.get(BatchField.ERRORS)
    return BatchRecord(
        id=batch_id,
        status=text(BatchField.STATUS),
        spec=msgspec.json.decode(values[BatchField.SPEC], type=BatchSpec),
        created_at=int(text(BatchField.CREATED)),
        moments={name: int(values[name]) for name in MOMENTS if name in values},
        total=int(text(BatchField.TOTAL) or 0),
        completed=int(text(BatchField.COMPLETED) or 0),
        failed=int(text(BatchField.FAILED) or 0),
        errors=msgspec.json.decode(errors, type=list[LineError]) if errors else [],
        output_file_id=text(BatchField.OUTPUT) or None,
        error_file_id=text(BatchField.ERROR) or None,
        checkpoint=values.get(BatchField.CHECKPOINT, b""),
    )
