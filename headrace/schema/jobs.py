"""The job object."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.jobs.job import Count, JobFailure, Status, True_
from headrace.jobs.progress import Progress
from headrace.schema.members import Moment, Word, WordOrNull


class StageTimings(msgspec.Struct):
    """In ms: means over its jobs; `total` is from the first to the last."""

    queued: float
    hold: float
    device_wait: float
    preprocess: float
    inference: float
    postprocess: float
    total: float | UnsetType = UNSET


class Timings(StageTimings):
    """Durations in ms; preprocess, inference and postprocess are those of the batch."""

    total: float


class JobStage(msgspec.Struct):
    """A stage of a pipeline's job."""

    name: str
    model: str
    status: Annotated[
        Word, Meta(extra_json_schema={"enum": ["failed", "running", "succeeded", "waiting"]})
    ]
    jobs: Annotated[Count, Meta(description="The number of its jobs; 0 while unknown.")]
    done: Annotated[Count, Meta(description="The number of its jobs with a result.")]
    timings: StageTimings | None


class JobAttempt(msgspec.Struct):
    """An attempt that has ended without a result, and the worker that had it."""

    attempt: Annotated[int, Meta(ge=1)]
    worker: str


class JobUrls(msgspec.Struct):
    """The paths of a job and of its result."""

    self: str
    result: str


_Position = Annotated[int, Meta(ge=1)]
_TraceId = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{32}$"})]


class JobObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job, as the API shows it."""

    id: Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\s]{1,128}$"})]
    model: str
    version: Annotated[str, Meta(description="Of the worker that claimed it last.")]
    status: Status
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    attempts: Annotated[Count, Meta(description="How often it has begun.")]
    queue_position: Annotated[
        _Position | None,
        Meta(description="Its approximate position while it is queued; 1 is next."),
    ]
    batch_size: Count | None
    timings: Timings | None
    metadata: Annotated[dict[str, Any] | None, Meta(description="The client's own.")]
    waiting_for: Annotated[
        WordOrNull,
        Meta(
            description="Set while it is queued and no worker has the model loaded, in the version "
            "that it asks for. It is `load` if a worker loads it on demand, else `replica`.",
            extra_json_schema={"enum": [None, "load", "replica"]},
        ),
    ]
    trace_id: Annotated[
        _TraceId | None,
        Meta(description="The id of the W3C trace in which it was submitted."),
    ]
    urls: JobUrls
    waiting_reason: Annotated[
        str | None,
        Meta(description="While it is queued: why no worker can load the model, if none can."),
    ] = None
    requested_version: Annotated[
        str | None, Meta(description="The version that it asks for, if it asks for one.")
    ] = None
    worker: Annotated[
        str, Meta(description="The worker that claimed it last; its `worker` among the workers.")
    ] = ""
    earlier_attempts: Annotated[
        list[JobAttempt],
        Meta(description="The newest attempts before the last one, at most 5, in their order."),
    ] = []
    stages: Annotated[
        list[JobStage], Meta(description="The progress of the stages of a pipeline's job.")
    ] = []
    progress: Progress | UnsetType = UNSET
    batch_padding: Annotated[
        Count, Meta(description="Inputs that were added to its batch to reach an allowed size.")
    ] = 0
    dead_lettered: True_ = False
    replayed: Annotated[
        True_,
        Meta(
            description="In an answer to a submit of several jobs: an earlier request has "
            "submitted this one."
        ),
    ] = False
    cancel_requested: True_ = False
    result: Annotated[
        Any,
        Meta(
            description="After success: JSON, or {content_type, base64} for bytes; null if it is "
            "too long for the job object: read `urls.result`."
        ),
    ] = None
    result_size: Annotated[
        Count | None, Meta(description="The size in bytes of such a long result.")
    ] = None
    due_at: Annotated[
        Moment | None, Meta(description="While it is scheduled: when it joins its queue.")
    ] = None
    error: Annotated[
        JobFailure | None,
        Meta(description="After a failure; while it is retried, the error of the last try."),
    ] = None
    traceback: Annotated[
        str,
        Meta(description="After a failure: the handler's traceback, or the stacks at the timeout."),
    ] = ""
