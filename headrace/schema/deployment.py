"""What operators see of a deployment: workers, API keys and who changed what."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.access.api_key import NAME_MAX_CHARS, Scope
from headrace.jobs.job import Amount, Count
from headrace.schema.members import Moment, Word


class WorkerHost(msgspec.Struct, frozen=True, kw_only=True):
    """The host of a worker."""

    name: str
    cpus: Count
    cpu_ratio: Annotated[Amount, Meta(description="The load of all of them, 0 to 1.")]
    memory_bytes: Count
    memory_available_bytes: Count
    disk_bytes: Annotated[Count, Meta(description="Of the worker's file system.")]
    disk_available_bytes: Count


class WorkerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or MIG device of a worker; null is what its driver does not report."""

    id: Annotated[str, Meta(description="Its number on the host; the UUID of a MIG device.")]
    name: str
    busy_ratio: Annotated[
        Amount | None, Meta(description="The share of the last seconds in which it computed.")
    ]
    memory_used_bytes: Count | None
    memory_bytes: Count | None
    temperature_celsius: float | None
    power_watts: Amount | None


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A model process."""

    pid: int
    state: str
    since: Moment
    gpu_memory_bytes: Annotated[Count | None, Meta(description="Null: not reported.")]


class WorkerModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has of one model."""

    model: str
    version: Annotated[str, Meta(description="Empty for a pipeline.")]
    state: Annotated[str, Meta(description="The best of its processes.")]
    device: str
    replicas: Annotated[Count, Meta(description="How many processes it should have.")]
    ready_replicas: Count
    jobs: Annotated[Count, Meta(description="Jobs that the worker has claimed and not ended.")]
    memory_bytes: Annotated[Count, Meta(description="Of its processes, in the host's memory.")]
    restarts: Annotated[Count, Meta(description="How many of its processes have died.")]
    recycled: Annotated[Count, Meta(description="How many its options had replaced.")]
    error: Annotated[
        str | None, Meta(description="Why it is not loaded, or is not started again yet.")
    ]
    processes: list[WorkerProcess]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it reports itself each second."""

    worker: Annotated[str, Meta(description="Its name, unique for each start.")]
    node: Annotated[str, Meta(description="Its Celery node name.")]
    pid: int
    state: Annotated[
        Word,
        Meta(
            description="`draining`: it claims nothing more; `drained`: nor does it hold a job.",
            extra_json_schema={"enum": ["drained", "draining", "serving"]},
        ),
    ]
    can_drain: Annotated[
        bool, Meta(description="False for background workers, and those of an older version.")
    ]
    started_at: Moment | None
    reported_at: Moment | None
    version: Annotated[str, Meta(description="Of Headrace; empty if it is not reported.")]
    labels: list[str]
    jobs: Annotated[Count, Meta(description="Jobs that it has claimed and not ended.")]
    unloaded: Annotated[
        list[str], Meta(description="`model@version` that it loads at the first job.")
    ]
    host: WorkerHost | None
    devices: list[WorkerDevice]
    models: list[WorkerModel]


class Workers(msgspec.Struct):
    """The live workers, by node."""

    workers: list[Worker]


class KeySelf(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller may do; without API keys everybody may do everything."""

    id: Annotated[str | None, Meta(description="Null: the server requires no API keys.")]
    name: str | None
    scopes: list[Word]
    expires_at: Moment | None


class ApiKeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. A limit of null is no limit."""

    id: Annotated[str, Meta(description="The middle part of its text; no secret.")]
    name: str
    scopes: list[Word]
    rate: Annotated[Amount | None, Meta(description="Requests and jobs a second.")]
    max_in_flight: Count | None
    tokens_per_minute: Count | None
    in_flight: Annotated[Count, Meta(description="Its jobs that have not ended.")]
    created_at: Moment
    last_used_at: Annotated[
        Moment | None, Meta(description="To about a minute; null: not since it was made.")
    ]
    expires_at: Moment | None
    expired: bool
    internal: Annotated[bool, Meta(description="A component of the deployment uses it.")]


class ApiKeys(msgspec.Struct):
    """All API keys, the oldest first."""

    keys: list[ApiKeyEntry]


class NewApiKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key to make. A limit of 0 is no limit."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_CHARS)]
    scopes: Annotated[
        list[Literal["submit", "read", "manage"]], Meta(min_length=1, max_length=len(Scope))
    ] = msgspec.field(default_factory=lambda: ["submit", "read"])
    rate: Annotated[float, Meta(ge=0)] = 0.0
    max_in_flight: Annotated[int, Meta(ge=0, le=2**31)] = 0
    tokens_per_minute: Annotated[int, Meta(ge=0)] = 0
    expires_in_s: Annotated[
        int, Meta(ge=0, le=100 * 366 * 86_400, description="0: it does not expire.")
    ] = 0


class CreatedApiKey(ApiKeyEntry, frozen=True, kw_only=True):
    """A new key. Its text is in this answer alone."""

    key: Annotated[str, Meta(description="As clients send it.")]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and who made it."""

    id: str
    at: Moment
    by: Annotated[str, Meta(description="The id of an API key, or who else it was.")]
    action: Annotated[str, Meta(description="An `operationId`; `registry` for changes of models.")]
    target: Annotated[str, Meta(description="What was changed: a queue, a model, a key, a worker.")]
    detail: str


class Audit(msgspec.Struct):
    """Changes, the newest first."""

    entries: list[AuditEntry]
    cursor: Annotated[str | None, Meta(description="Of the next page; null on the last one.")]
