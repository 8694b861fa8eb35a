"""Headers and bodies of requests and answers, as the table of operations describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.jobs.ids import KEY
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.schema.jobs import JobObject

_ID: Final = "0195d0b2-7c4e-7d1a-9f3b-2c5e8a7d6f10"

QUEUED_JOB: Final[dict[str, Any]] = {
    "id": _ID, "model": "digits", "version": "1.0", "status": "queued",
    "created_at": "2026-11-21T10:15:00.123456+00:00", "started_at": None, "finished_at": None,
    "attempts": 0, "queue_position": 3, "batch_size": None, "timings": None,
    "metadata": {"batch": 7}, "waiting_for": None, "trace_id": None,
    "urls": {"self": f"/api/v1/jobs/{_ID}", "result": f"/api/v1/jobs/{_ID}/result"},
}  # fmt: skip
SUCCEEDED_JOB: Final = {
    **QUEUED_JOB, "status": "succeeded", "started_at": "2026-11-21T10:15:00.131002+00:00",
    "finished_at": "2026-11-21T10:15:00.140250+00:00", "attempts": 1, "queue_position": None,
    "batch_size": 4,
    "timings": {
        "queued": 7.5, "hold": 0.2, "device_wait": 1.8,
        "preprocess": 1.1, "inference": 5.9, "postprocess": 0.3, "total": 16.8,
    },
    "result": {"digit": 3, "probability": 0.98},
}  # fmt: skip
REFUSED_LINE: Final = {
    "error": {
        "type": "/problems/queue-full", "title": "Queue full", "status": 429,
        "detail": "the queue of model digits holds 10000 jobs, its max_queue_depth",
        "instance": "/api/v1/jobs/bulk", "line": 2,
    }
}  # fmt: skip
#: By the name of the type.
Examples = Mapping[str, Sequence[Mapping[str, Any]]]
EXAMPLES: Final[Examples] = {
    "JobRequest": [{"model": "echo", "input": {"x": 1}, "options": {"priority": 3}}],
    "JobObject": [SUCCEEDED_JOB],
    "Run": [
        {
            "id": "run-5d0c1a9e4b7f3a6c2d81", "model": "digits", "name": "",
            "source": "/data/scans", "output": "/data/out.jsonl", "state": "running",
            "total": 1000000, "succeeded": 40123, "failed": 2, "in_flight": 4000,
            "per_second": 812.5,
            "command": ["headrace", "run", "digits", "scans", "-o", "out.jsonl"], "host": "gpu-1",
            "folder": "/data", "error": "", "started_at": "2026-11-21T10:15:00.123456+00:00",
            "told_at": "2026-11-21T10:16:00.000000+00:00", "cancel_requested": False,
        }
    ],
}  # fmt: skip


Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string"}
BINARY: Final[Schema] = {"type": "string", "format": "binary"}
NDJSON: Final = "application/x-ndjson"


class Header(NamedTuple):
    """A header of a request or of an answer."""

    name: str
    description: str = ""
    schema: Schema = STRING


class Body(NamedTuple):
    """The body of a request.

    Attributes:
        content: the type of its JSON, or its media types as OpenAPI describes them.
        description: what it is, where the type does not show that.
        required: whether it may be absent.
    """

    content: type | Schema
    description: str = ""
    required: bool = True


class PathParameter(NamedTuple):
    """A parameter of a path.

    Attributes:
        pattern: of its values.
        example: a value that exists on every server.
        may_be_empty: the endpoints answer for an empty text too.
    """

    pattern: str
    example: str = ""
    may_be_empty: bool = False


class Success(NamedTuple):
    """A successful answer: its content as of a `Body` or None, and whether it can be a stream."""

    description: str
    content: type | Schema | None = None
    headers: Sequence[Header] = ()
    events: bool = False


def _job_answers(ended: str, *headers: Header, events: bool = False) -> Mapping[int, Success]:
    """Return the answers of an operation that returns a job, ended or not."""
    return {
        200: Success(ended, JobObject, (*headers, _APPLIED), events=events),
        202: Success("The job has not ended yet.", JobObject, (*headers, _APPLIED, _POLL)),
    }


PREFER: Final = Header("Prefer", "`wait=N`, as `?wait=N`, which wins.")
# No example: the documentation page would send the same key with every request.
IDEMPOTENCY_KEY: Final = Header(
    "Idempotency-Key",
    "With the same key a repeat is the same job, and another request a conflict; use a random "
    "UUID.",
    {"type": "string", "pattern": KEY},
)
RANGE: Final = Header("Range", "One range of bytes, such as bytes=0-99.")
IF_MATCH: Final = Header("If-Match", "Change it only if the model still has this generation.")
IF_NONE_MATCH: Final = Header("If-None-Match", "Answer 304 if the answer still has this ETag.")
IF_RANGE: Final = Header("If-Range", "Apply the range only if the output has this ETag.")
LAST_EVENT_ID: Final = Header(
    "Last-Event-ID",
    "The id of the last event that the client has; only later events are sent. An unknown id is "
    "ignored.",
)

_POLL: Final = Header(
    "Retry-After", "Seconds after which to poll again.", {"type": "integer", "minimum": 1}
)
_APPLIED: Final = Header("Preference-Applied", "The wait that was applied, if the request has one.")
JOB: Final = _job_answers("The job has ended.")
SUBMITTED: Final = _job_answers(
    "The job has ended within the wait. With `Accept: text/event-stream`, the pieces of the job at "
    "once, as its stream has them.",
    Header("Location", "The job's own path."),
    Header(
        "Idempotency-Replayed",
        "Present if an earlier request has submitted the job.",
        {"const": "true"},
    ),
    events=True,
)

INPUT: Final = Body(
    {
        JSON_TYPE: {"schema": {}, "example": {"x": 1}},
        "text/plain": {"schema": STRING, "example": "water finds its way"},
        "image/png": {"schema": BINARY},
        "application/octet-stream": {"schema": BINARY},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["data"],
                "properties": {"data": BINARY},
                "propertyNames": {"minLength": 1},
            }
        },
    },
    "The input itself, with any content type; some examples. Several parts of a form are one "
    "input. A part with the name of a parameter of the model is that parameter.",
)
_OUTPUT: Final[Schema] = {JSON_TYPE: {"schema": {}}, "*/*": {"schema": {}}}
_OUTPUT_HEADERS: Final = (
    Header(
        "Content-Security-Policy", "An output that is a web page runs no script in this origin."
    ),
    Header("Accept-Ranges", schema={"const": "bytes"}),
    Header("ETag", "For If-Range."),
)
_CONTENT_RANGE: Final = Header("Content-Range", schema={"type": "string", "pattern": "^bytes "})
RESULT: Final[Mapping[int, Success]] = {
    200: Success("The output, with the content type of its handler.", _OUTPUT, _OUTPUT_HEADERS),
    206: Success("The requested range of the output.", _OUTPUT, (*_OUTPUT_HEADERS, _CONTENT_RANGE)),
    202: JOB[202],
    204: Success("A Celery client submitted it with `ignore_result`."),
}
KEPT_INPUT: Final = Success("The input, with the content type that the client gave.", _OUTPUT)
EVENTS: Final[Mapping[int, Success]] = {
    200: Success(
        "Events until the job has ended: `queued`, `scheduled`, `running`, `progress`, and "
        "`ended` with the job object. docs/api.md describes each.",
        {"text/event-stream": {"schema": {}}},
    ),
    204: Success("The client has received the last event already."),
}


PIECES: Final[Mapping[int, Success]] = {
    200: Success(
        "The pieces until the job has ended: events `pieces`, `restarted`, `missing`, and `ended` "
        "with the job object. docs/streaming.md describes each, and the other formats.",
        {
            "text/event-stream": {"schema": {}},
            NDJSON: {"schema": {"type": "string"}},
            "text/plain": {"schema": {"type": "string"}},
        },
    ),
    204: Success("The client has received the last event already."),
}
CHANGE_EVENTS: Final = {
    200: Success(
        "An event `change` with each change of a model, as the list of changes has it.",
        {"text/event-stream": {"schema": {}}},
    )
}


def _lines(*documents: Any) -> Schema:
    text = "".join(f"{json.dumps(document)}\n" for document in documents)
    return {NDJSON: {"schema": STRING, "example": text}}


LINES: Final = Body(
    _lines({"model": "echo", "input": {"x": 1}}, {"model": "digits", "input": 1}),
    "Each line is a JobRequest, which may have a `traceparent` of its own instead of the "
    "request's. A body without lines has an empty answer.",
    required=False,
)
LINE_ANSWERS: Final = Success(
    "A line for each line that is not empty, in order, while the body is still received. It is "
    "the job object, with `replayed` if an earlier request has submitted it, or {error}: the "
    "problem of that line, with its number as `line`.",
    _lines(QUEUED_JOB, REFUSED_LINE),
)
PROFILE_FILE: Final = Success(
    "Its bytes; a trace is compressed by gzip.",
    {"application/octet-stream": {"schema": BINARY, "example": "preprocess: 812 samples"}},
)


def watched(description: str, content: type) -> Mapping[int, Success]:
    """Return the answers of an operation that clients poll."""
    etag = (Header("ETag", "For If-None-Match."),)
    return {
        200: Success(description, content, etag),
        304: Success("It is as the client has it.", headers=etag),
    }


METRICS: Final = Success("Prometheus' text format.", {"text/plain": {"schema": STRING}})
