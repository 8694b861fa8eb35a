"""Batches in Redis: the API creates, lists and cancels them; runners lease and execute them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from typing_extensions import override

from extensions.openai.batches.lists import RecordStore
from extensions.openai.redis import keys as batch_keys
from extensions.openai.redis import script
from extensions.openai.redis.keys import BatchField
from extensions.openai.schema.batch_lines import SHAPES
from headrace.access.api_key import EVERYBODY, NO_OWNER, Caller
from headrace.errors import BatchNotFound
from headrace.jobs.job import Count
from headrace.redis.clock import US_PER_S
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Arg
from headrace.redis.scripts import jobs as job_scripts

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

#: Each line names its model in its body.
OPENAI_ENDPOINTS: Final = tuple(SHAPES)

VERSION_ENDPOINT: Final = "/api/v1/models/{model}/versions/{version}/jobs"
_MODEL_ENDPOINT: Final = re.compile(
    r"/api/v1/models/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})"
    r"(?:/versions/([A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}))?/jobs"
)


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client requested.

    Attributes:
        endpoint: JOBS_ENDPOINT, or MODEL_ENDPOINT of a model, or VERSION_ENDPOINT of its version,
            or one of OPENAI_ENDPOINTS; the `url` of every line.
        window: the completion window, as the client wrote it.
        window_s: the same in seconds.
        output_ttl_s: how long its output is kept; None for as long as files are.
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
        return endpoint_model(self.endpoint)[0]


class LineError(msgspec.Struct, frozen=True):
    """An error in an input file, for programs (`code`) and for people."""

    code: str
    message: str
    line: Annotated[Count | None, Meta(description="Counted from 1.")] = None
    param: Annotated[str | None, Meta(description="The member of the line.")] = None


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
    def owner(self) -> str:
        """The id of the API key that owns it; "" without keys."""
        return self.spec.owner

    @property
    def expires_at(self) -> int:
        """When the completion window ends, in seconds since 1970."""
        return self.moments["expires_at"]


def endpoint_model(endpoint: str) -> tuple[str | None, str | None]:
    """Return the model and the version of an endpoint; None for what it does not name.

    Raises:
        ValueError: batches do not have this endpoint.
    """
    if endpoint == JOBS_ENDPOINT or endpoint in OPENAI_ENDPOINTS:
        return None, None
    found = _MODEL_ENDPOINT.fullmatch(endpoint)
    if found is None:
        raise ValueError(endpoint)
    return found[1], found[2]


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that is leased to one runner.

    Attributes:
        now_s: when that was, by the clock of Redis, in seconds since 1970.
    """

    batch: BatchRecord
    token: int
    now_s: int


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """The part of a file that was written since it was last saved.

    Attributes:
        owner: the id of the API key that owns it; "" without keys.
        keep_s: how long it is kept once the batch has ended.
        replaced: the part that the first new part replaces; "" for none.
        parts: reference and offset of each new part.
    """

    id: str
    name: str
    owner: str
    bytes: int
    keep_s: int
    replaced: str
    parts: Sequence[tuple[str, int]]

    @property
    def arguments(self) -> list[Arg]:
        """The arguments of batches/save.lua."""
        parts = [value for part in self.parts for value in part]
        return [
            self.id, self.name, self.owner, self.bytes, self.keep_s, self.replaced,
            len(self.parts), *parts,
        ]  # fmt: skip


class BatchStore(RecordStore[BatchRecord]):
    """Batches.

    Args:
        keep_s: how long a batch is kept after its end.
        lease_s: how long a lease lasts without renewal.
    """

    prefix = "batch_"
    record_key = batch_keys.batch
    every = batch_keys.BATCHES
    of = batch_keys.batches_of

    def __init__(self, client: ScriptClient, keep_s: int, lease_s: float) -> None:
        super().__init__(client)
        self._keep_s = keep_s
        self._lease_s = lease_s

    @override
    def decode(self, item_id: str, record: Mapping[bytes, bytes]) -> BatchRecord | None:
        values: dict[str, Any] = {name.decode(): value for name, value in record.items()}
        if BatchField.STATUS not in values:
            return None

        def text(name: str) -> str:
            return bytes(values.get(name, b"")).decode("utf-8", "replace")

        errors = values.get(BatchField.ERRORS)
        return BatchRecord(
            id=item_id,
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

    @override
    def missing(self, item_id: str) -> BatchNotFound:
        return BatchNotFound(
            f"there is no batch {item_id[:64]!r}", hint="GET /v1/batches lists the batches."
        )

    def create(self, spec: BatchSpec) -> BatchRecord:
        """Create a batch, which waits for a runner."""
        batch_id = self.new_id()
        text = msgspec.json.encode(spec)
        create = script("batches/create").call(
            [], batch_id, text, spec.window_s, self._keep_s, spec.owner
        )
        return self.decoded(batch_id, self.client.call(create))

    def cancel(self, batch_id: str, caller: Caller = EVERYBODY) -> tuple[BatchRecord, bool]:
        """Request the cancellation of a batch; return it, and whether it will be cancelled.

        Raises:
            BatchNotFound: no such batch.
        """
        self.get(batch_id, caller)
        cancelling, *record = self.client.call(script("batches/cancel").call([], batch_id))
        return self.decoded(batch_id, record), bool(cancelling)

    def claim(self, runner: str = "", before_s: int | None = None) -> Lease | None:
        """Lease the batch whose window ends first; return None if no batch waits.

        With `before_s`, in seconds since 1970, only one whose window ends before that.
        """
        lease_us = round(self._lease_s * US_PER_S)
        before = "" if before_s is None else before_s
        reply = self.client.call(script("batches/claim").call([], lease_us, runner, before))
        if not reply:
            return None
        raw_id, token, now_s, *record = reply
        return Lease(self.decoded(raw_id.decode(), record), int(token), int(now_s))

    def release(self, runner: str) -> int:
        """Release the batches of a runner that is gone; return how many these were."""
        return int(self.client.call(script("batches/release").call([], runner))[0])

    def save(
        self,
        lease: Lease,
        status: str = "",
        fields: Mapping[str, str | bytes | int] | None = None,
        written: Sequence[SavedProgress] = (),
        lease_s: float | None = None,
    ) -> tuple[int, str] | None:
        """Save the progress of a batch in one step, and renew the lease.

        Args:
            status: the new status; "" for no change.
            lease_s: how long the lease lasts from now; None for the default.

        Returns:
            The time by the clock of Redis in seconds since 1970, and the current status. None if
            another runner has the batch; then nothing was changed. After a BrokerError it is
            unknown if it was saved, and it can be saved again.
        """
        changes: list[Arg] = [value for pair in (fields or {}).items() for value in pair]
        lease_us = round((self._lease_s if lease_s is None else lease_s) * US_PER_S)
        save = script("batches/save").call(
            [], lease.batch.id, lease.token, lease_us, status, self._keep_s, len(changes), *changes,
            *(value for file in written for value in file.arguments),
        )  # fmt: skip
        saved, *rest = self.client.call(save)
        return (int(rest[0]), rest[1].decode()) if saved else None

    def cancel_jobs(self, batch: BatchRecord, ids: Sequence[str]) -> None:
        """Cancel jobs that belong to the owner of a batch whose API key is no longer valid."""
        owner = batch.spec.owner or NO_OWNER
        self.client.call(job_scripts.cancel([f"{one} {owner}" for one in ids]))
