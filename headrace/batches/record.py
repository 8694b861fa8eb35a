"""What a batch is, as its record in Redis tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.jobs.job import new_id
from headrace.redis.keys import BatchField

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
#: When a batch came to a status, by the name of the field.
MOMENTS: Final = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
    "cancelling_at", "cancelled_at",
)  # fmt: skip

JOBS_ENDPOINT: Final = "/api/v1/jobs"
MODEL_ENDPOINT: Final = "/api/v1/models/{model}/jobs"

_ID: Final = re.compile(r"batch_[0-9a-f]{32}")
_MODEL_ENDPOINT: Final = re.compile(r"/api/v1/models/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})/jobs")


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for.

    Attributes:
        endpoint: JOBS_ENDPOINT, or MODEL_ENDPOINT of a model; the `url` of every line.
        window: within which it is to be done, as the client wrote it.
        window_s: the same in seconds.
        output_ttl_s: how long its output is kept; None for as long as files are.
        rerun_of: the batch whose lines that did not succeed this one runs again.
        failed_file_id: which names those lines.
        owner: the id of the API key whose it is, and its jobs and files; "" for nobody's.
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
        """The model of every line; None where each names its own."""
        return endpoint_model(self.endpoint)


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with an input file.

    Attributes:
        line: where, counted from 1; None where it is no line's.
        param: which member.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, kw_only=True):
    """A batch.

    Attributes:
        moments: when it came where, in seconds since 1970, by the names of MOMENTS.
        checkpoint: how far its runner is; b"" before it has begun, and after its end.
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
        """Until when it is to be done."""
        return self.moments["expires_at"]


def new_batch_id() -> str:
    """An id that sorts behind those made before."""
    return "batch_" + new_id().replace("-", "")


def is_batch_id(text: str) -> bool:
    """Whether a batch can have this id."""
    return _ID.fullmatch(text) is not None


def endpoint_model(endpoint: str) -> str | None:
    """The model of an endpoint; None where each line names its own.

    Raises:
        ValueError: batches know no such endpoint.
    """
    if endpoint == JOBS_ENDPOINT:
        return None
    found = _MODEL_ENDPOINT.fullmatch(endpoint)
    if found is None:
        raise ValueError(endpoint)
    return found[1]


def read_batch(batch_id: str, record: Mapping[bytes, bytes]) -> Batch | None:
    """Read a record (HGETALL's fields); None where there is no batch."""
    values: dict[str, Any] = {name.decode(): value for name, value in record.items()}
    if BatchField.STATUS not in values:
        return None

    def text(name: str) -> str:
        return bytes(values.get(name, b"")).decode("utf-8", "replace")

    errors = values.get(BatchField.ERRORS)
    return Batch(
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
