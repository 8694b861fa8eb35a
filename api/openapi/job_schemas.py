"""The schemas of jobs: what is asked for, and what is answered."""

from __future__ import annotations

from typing import Any, Final

from api.http.bodies import CONTENT_TYPE_MAX_CHARS
from api.openapi.shapes import COUNT, MODEL, STRING, TIME, Schema, array, nullable, object_of
from headrace.jobs.job import State
from headrace.jobs.options import MAX_WAIT_FOR_START_S
from headrace.payloads.input_ref import REFERENCE_MAX_CHARS
from headrace.webhooks.endpoint import URL_MAX_CHARS
from headrace.webhooks.task_message import EVENTS

JOB_ID: Final = r"^[A-Za-z0-9_.:@-]{1,128}$"
IDEMPOTENCY_KEY: Final = r"^[!-~]{1,255}$"
#: A path's parts are not empty, and like a key's neither `.` nor `..`.
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
    description="Where the time went, in ms; the three stages are those of its batch.",
)

_STAGE: Final = object_of(
    {
        "name": STRING,
        "model": STRING,
        "status": {"enum": ["waiting", "running", "succeeded", "failed"]},
        "jobs": {**COUNT, "description": "How many jobs it has; 0 while that is not known."},
        "done": {**COUNT, "description": "How many of them have given a result."},
        "timings": nullable(
            object_of(
                dict.fromkeys(_STAGES, _MS),
                optional=("total",),
                description="In ms: the means over its jobs, and from its first to its last.",
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
    description="While it runs, as its handler says; of a pipeline's job, by its stages.",
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
        "attempts": {**COUNT, "description": "How often it was handed to a worker."},
        "queue_position": {
            **nullable({**COUNT, "minimum": 1}),
            "description": "Its place while it is queued, 1 being next; approximate.",
        },
        "batch_size": {
            **nullable(COUNT),
            "description": "How many jobs ran together with it, itself included.",
        },
        "batch_padding": {
            **COUNT,
            "description": "How many inputs were added to its batch to reach an allowed size.",
        },
        "timings": nullable(_TIMINGS),
        "stages": {
            **array(_STAGE),
            "description": "Of a pipeline's job that has begun: how far its stages have come.",
        },
        "progress": _PROGRESS,
        "metadata": {"type": ["object", "null"], "description": "The client's own."},
        "waiting_for": {
            "enum": ["replica", None],
            "description": "`replica` while it is queued and no worker has the model loaded.",
        },
        "urls": object_of({"self": STRING, "result": STRING}),
        "result": {
            "description": "Once it has succeeded: JSON, or {content_type, base64} for bytes; "
            "null where it is too long for this, and `urls.result` gives it."
        },
        "result_size": {**COUNT, "description": "The bytes of a result that is too long."},
        "error": object_of(
            {
                "type": {**STRING, "description": "The code of a problem type."},
                "message": STRING,
                "retryable": {"type": "boolean"},
            },
            description="Once it has ended without success; before, of its last try.",
        ),
        "due_at": {
            **TIME,
            "description": "While it is scheduled: when it joins its queue, at first or again.",
        },
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
_SECONDS: Final = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_FOR_START_S}
_BACKOFF: Final = {"type": "number", "minimum": 0, "maximum": 86_400}
#: A job's options, as `headrace.jobs.options.JobOptions` has them.
OPTIONS: Final[dict[str, Schema]] = {
    "priority": {
        "type": "integer", "minimum": 0, "maximum": 9, "default": 0,
        "description": "0 (first) to 9 (offline work).",
    },
    "expires": {
        **_SECONDS,
        "description": "Seconds from submit within which it must have started.",
    },
    "countdown": {
        "type": "number", "minimum": 0, "maximum": MAX_WAIT_FOR_START_S,
        "description": "Seconds before it joins the queue.",
    },
    "timeout": {**_SECONDS, "description": "Seconds that it may run."},
    "result_ttl": {
        "type": "integer", "minimum": 1, "maximum": MAX_WAIT_FOR_START_S,
        "description": "Seconds that the job and its result are kept after its end.",
    },
    "max_retries": {
        "type": "integer", "minimum": 0, "maximum": 100,
        "description": "How often an error that can pass is tried again.",
    },
    "retry_backoff": {
        **_BACKOFF,
        "description": "Seconds: the longest wait before the first retry; each more doubles it.",
    },
    "retry_backoff_max": {**_BACKOFF, "description": "Seconds: the longest wait of all."},
    "metadata": {
        "type": "object",
        "description": "The client's own, given back with the job; at most 4 KiB as JSON.",
    },
    "webhook": {
        "type": "string", "pattern": WEBHOOK_URL, "maxLength": URL_MAX_CHARS,
        "description": "A URL that is told of the job, where this server sends webhooks; an "
        "address in a private network is refused unless `webhook_allow_networks` has it.",
    },
    "webhook_events": {
        "type": "array", "items": {"enum": list(EVENTS)}, "minItems": 1,
        "description": "Of what it is told; left out, of the end, whichever it is.",
    },
}  # fmt: skip

_REQUEST: Final[dict[str, Schema]] = {
    "model": {**MODEL, "examples": ["echo"]},
    "version": {**nullable(STRING), "description": "Only a model of this version."},
    "input": {"description": "Any JSON, or {content_type, base64} for bytes."},
    "input_ref": {
        **nullable({"type": "string", "pattern": INPUT_REF, "maxLength": REFERENCE_MAX_CHARS}),
        "description": "In place of input: file:/folder/name or s3://bucket/key, a file or object "
        "of the operator's own.",
    },
    "content_type": {
        **nullable(
            {"type": "string", "pattern": CONTENT_TYPE, "maxLength": CONTENT_TYPE_MAX_CHARS}
        ),
        "description": "What the file of input_ref is; left out, its name says.",
    },
    "options": object_of(
        {
            name: schema if name == "priority" else nullable(schema)
            for name, schema in OPTIONS.items()
        },
        optional=tuple(OPTIONS),
        additionalProperties=False,
        dependentRequired={"webhook_events": ["webhook"]},
    ),
}
_OWN_ID: Final = {
    **nullable({"type": "string", "pattern": JOB_ID, "not": {"enum": [".", ".."]}}),
    "description": "The job's id; left out, the server makes one.",
}
_REQUEST_EXAMPLE: Final = {"model": "echo", "input": {"x": 1}, "options": {"priority": 3}}


def _request(properties: dict[str, Schema], example: dict[str, Any]) -> Schema:
    optional = tuple(name for name in properties if name != "model")
    # Either an input, which may be null, or the name of one; a content type only for the latter.
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
