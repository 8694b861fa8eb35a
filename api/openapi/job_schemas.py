"""The schemas of jobs: requests and answers."""

from __future__ import annotations

from typing import Any, Final

from api.http.bodies import CONTENT_TYPE_MAX_CHARS
from api.openapi.operations import (
    COUNT,
    JOB_ID,
    MODEL,
    STRING,
    TIME,
    Schema,
    array,
    described,
    nullable,
    object_of,
    properties_of,
)
from headrace.jobs.job import State
from headrace.jobs.options import JobOptions
from headrace.payloads.input_ref import REFERENCE_MAX_CHARS
from headrace.webhooks.endpoint import URL_MAX_CHARS

IDEMPOTENCY_KEY: Final = r"^[!-~]{1,255}$"
#: The parts of a path or key are not empty, and neither `.` nor `..`.
INPUT_REF: Final = (
    r"^(file:(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+"
    r"|s3://[A-Za-z0-9][A-Za-z0-9._-]{1,62}(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+)$"
)
CONTENT_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(;[\x20-\x7e]*)?$"

_MS: Final = {"type": "number"}
_ID: Final = "0195d0b2-7c4e-7d1a-9f3b-2c5e8a7d6f10"

QUEUED_JOB: Final = {
    "id": _ID,
    "model": "digits",
    "version": "1.0",
    "status": "queued",
    "created_at": "2026-11-21T10:15:00.123456+00:00",
    "started_at": None,
    "finished_at": None,
    "attempts": 0,
    "queue_position": 3,
    "batch_size": None,
    "timings": None,
    "metadata": {"batch": 7},
    "waiting_for": None,
    "urls": {"self": f"/api/v1/jobs/{_ID}", "result": f"/api/v1/jobs/{_ID}/result"},
}
SUCCEEDED_JOB: Final = {
    **QUEUED_JOB,
    "status": "succeeded",
    "started_at": "2026-11-21T10:15:00.131002+00:00",
    "finished_at": "2026-11-21T10:15:00.140250+00:00",
    "attempts": 1,
    "queue_position": None,
    "batch_size": 4,
    "timings": {
        "queued": 7.5, "hold": 0.2, "preprocess": 1.1, "inference": 5.9, "postprocess": 0.3,
        "total": 16.8,
    },
    "result": {"digit": 3, "probability": 0.98},
}  # fmt: skip

_STAGES: Final = ("queued", "hold", "preprocess", "inference", "postprocess", "total")
_TIMINGS: Final = object_of(
    dict.fromkeys(_STAGES, _MS),
    description="Durations in ms; preprocess, inference and postprocess are those of the batch.",
)

_STAGE: Final = object_of(
    {
        "name": STRING,
        "model": STRING,
        "status": {"enum": ["waiting", "running", "succeeded", "failed"]},
        "jobs": described(COUNT, "The number of its jobs; 0 while unknown."),
        "done": described(COUNT, "The number of its jobs with a result."),
        "timings": nullable(
            object_of(
                dict.fromkeys(_STAGES, _MS),
                optional=("total",),
                description="In ms: means over its jobs; `total` is from the first to the last.",
            )
        ),
    },
)

_PROGRESS: Final = object_of(
    {
        "fraction": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "done": {"type": "number"},
        "total": {"type": "number", "exclusiveMinimum": 0},
        "message": STRING,
    },
    optional=("done", "total", "message"),
    description="While it runs, as its handler reports; for a pipeline, by its stages.",
)

JOB: Final = object_of(
    {
        "id": {"type": "string", "pattern": r"^[^\s]{1,128}$"},
        "model": STRING,
        "version": STRING,
        "status": {"enum": [state.status for state in State]},
        "created_at": TIME,
        "started_at": nullable(TIME),
        "finished_at": nullable(TIME),
        "attempts": described(COUNT, "How often a worker has claimed it."),
        "queue_position": described(
            nullable({**COUNT, "minimum": 1}),
            "Its approximate position while it is queued; 1 is next.",
        ),
        "batch_size": described(nullable(COUNT), "The size of its batch."),
        "batch_padding": described(
            COUNT, "Inputs that were added to its batch to reach an allowed size."
        ),
        "timings": nullable(_TIMINGS),
        "stages": described(array(_STAGE), "The progress of the stages of a pipeline's job."),
        "progress": _PROGRESS,
        "metadata": {"type": ["object", "null"], "description": "The client's own."},
        "waiting_for": {
            "enum": ["replica", None],
            "description": "`replica` while it is queued and no worker has the model loaded.",
        },
        "urls": object_of({"self": STRING, "result": STRING}),
        "result": {
            "description": "After success: JSON, or {content_type, base64} for bytes; null if it "
            "is too long for the job object: read `urls.result`."
        },
        "result_size": described(COUNT, "The size in bytes of such a long result."),
        "error": object_of(
            {
                "type": described(STRING, "The code of a problem type."),
                "message": STRING,
                "retryable": {"type": "boolean"},
            },
            description="After a failure; while it is retried, the error of the last try.",
        ),
        "due_at": described(TIME, "While it is scheduled: when it joins its queue."),
        "dead_lettered": {"const": True},
        "cancel_requested": {"const": True},
    },
    optional=(
        "batch_padding",
        "stages",
        "progress",
        "result",
        "result_size",
        "error",
        "due_at",
        "dead_lettered",
        "cancel_requested",
    ),
    examples=[SUCCEEDED_JOB, QUEUED_JOB],
)

WEBHOOK_URL: Final = r"^https?://[A-Za-z0-9._~:/?\[\]!$&'()*+,;=%-]+$"
_OPTION_TEXTS: Final = {
    "priority": "0 (first) to 9 (offline work).",
    "expires": "Seconds after the submit within which it must have started.",
    "countdown": "Seconds before it joins the queue.",
    "timeout": "Seconds for which it may run.",
    "result_ttl": "Seconds for which the job and its result are kept after its end.",
    "max_retries": "Retries after a retryable error.",
    "retry_backoff": "Seconds: the longest wait before the first retry; it doubles each time.",
    "retry_backoff_max": "Seconds: the longest wait before any retry.",
    "metadata": "The client's own data, returned with the job; at most 4 KiB as JSON.",
    "webhook": "The URL that receives events of the job, if this server sends webhooks; an address "
    "in a private network is refused unless `webhook_allow_networks` has it.",
    "webhook_events": "The events to send; by default every event of the job's end.",
}
_OPTIONS: Final = properties_of(JobOptions, _OPTION_TEXTS)
_OPTIONS["webhook"] |= {"pattern": WEBHOOK_URL, "maxLength": URL_MAX_CHARS}
#: A job's options, without null.
OPTIONS: Final[dict[str, Schema]] = {
    name: {**schema, "type": schema["type"] if name == "priority" else schema["type"][0]}
    for name, schema in _OPTIONS.items()
}

_REQUEST: Final[dict[str, Schema]] = {
    "model": {**MODEL, "examples": ["echo"]},
    "version": described(nullable(STRING), "Refuse the request unless the model has this version."),
    "input": {"description": "Any JSON, or {content_type, base64} for bytes."},
    "input_ref": described(
        nullable({"type": "string", "pattern": INPUT_REF, "maxLength": REFERENCE_MAX_CHARS}),
        "Instead of input: file:/folder/name or s3://bucket/key, a file or object of the operator.",
    ),
    "content_type": described(
        nullable({"type": "string", "pattern": CONTENT_TYPE, "maxLength": CONTENT_TYPE_MAX_CHARS}),
        "The content type of the file of input_ref; by default derived from its name.",
    ),
    "options": object_of(
        _OPTIONS,
        optional=tuple(OPTIONS),
        additionalProperties=False,
        dependentRequired={"webhook_events": ["webhook"]},
    ),
}
_OWN_ID: Final = described(
    nullable({"type": "string", "pattern": JOB_ID, "not": {"enum": [".", ".."]}}),
    "The job's id; by default the server makes one.",
)
_REQUEST_EXAMPLE: Final = {"model": "echo", "input": {"x": 1}, "options": {"priority": 3}}


def _request(properties: dict[str, Schema], example: dict[str, Any]) -> Schema:
    optional = tuple(name for name in properties if name != "model")
    # Either an input, which may be null, or a reference to one, which may have a content type.
    named = {"required": ["input_ref"], "properties": {"input_ref": STRING}}
    given = {
        "required": ["input"],
        "properties": {"input_ref": {"type": "null"}, "content_type": {"type": "null"}},
    }
    return object_of(
        properties,
        optional=optional,
        additionalProperties=False,
        examples=[example],
        oneOf=[given, {**named, "not": {"required": ["input"]}}],
    )


#: By the name of the component.
JOB_SCHEMAS: Final[dict[str, Schema]] = {
    "Job": JOB,
    "JobRequest": _request({**_REQUEST, "id": _OWN_ID}, _REQUEST_EXAMPLE),
    "NamedJobRequest": _request(_REQUEST, _REQUEST_EXAMPLE),
    "Cancellation": object_of(
        {
            "id": STRING,
            "outcome": {
                "enum": ["removed", "asked", "ended"],
                "description": "`removed`: it will not run. `asked`: it runs; its result will be "
                "discarded. `ended`: it had ended before.",
            },
            "status": {"enum": [state.status for state in State]},
        },
        examples=[{"id": _ID, "outcome": "removed", "status": "cancelled"}],
    ),
}
