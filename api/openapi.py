"""The hot routes in OpenAPI, written by hand: FastAPI does not see them."""

from __future__ import annotations

from typing import Any, Final

from api.front import HOT_ROUTES, JOB, JOBS, MODEL_JOBS, RESULT

_JOB: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
_PROBLEM: Final = {
    "description": "A problem (RFC 9457).",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_NULLABLE_TIME: Final = {"type": ["string", "null"], "format": "date-time"}
_COUNT: Final = {"type": ["integer", "null"]}

SCHEMAS: Final[dict[str, Any]] = {
    "Job": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model": {"type": "string"},
            "version": {"type": "string"},
            "status": {
                "enum": [
                    "queued", "scheduled", "running", "succeeded", "failed", "expired", "cancelled",
                ]
            },
            "created_at": {"type": "string", "format": "date-time"},
            "started_at": _NULLABLE_TIME,
            "finished_at": _NULLABLE_TIME,
            "attempts": {"type": "integer"},
            "queue_position": _COUNT,
            "batch_size": _COUNT,
            "timings": {
                "type": ["object", "null"],
                "additionalProperties": {"type": "number"},
                "description": "queued, hold, preprocess, inference, postprocess and total, in ms.",
            },
            "metadata": {"type": ["object", "null"]},
            "waiting_for": {"enum": ["replica", None]},
            "urls": {"type": "object", "additionalProperties": {"type": "string"}},
            "dead_lettered": {"type": "boolean"},
            "cancel_requested": {"type": "boolean"},
            "result": {"description": "Once it has succeeded."},
            "error": {
                "type": "object",
                "description": "Once it has ended otherwise.",
                "properties": {
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                    "retryable": {"type": "boolean"},
                },
            },
        },
    },
    "Problem": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "description": "/problems/<code>"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "instance": {"type": "string"},
            "remedy": {"type": "string"},
        },
    },
}  # fmt: skip

ID_PATTERN: Final = "^[A-Za-z0-9_.:@-]{1,128}$"
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    "description": "Under the same key a repeat is the same job, and another request a conflict.",
    "example": "0e5f3c1c-6a0e-4a55-9f0e-3f7c3c7c2a11",
}
_WAIT: Final = [
    {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number", "minimum": 0},
        "description": "Seconds to wait for the job's end.",
    },
    {
        "name": "Prefer",
        "in": "header",
        "schema": {"type": "string"},
        "description": "wait=N, as `?wait=N`.",
    },
]
_OPTIONS: Final = [
    {"name": name, "in": "query", "schema": {"type": kind}}
    for name, kind in (
        ("priority", "integer"),
        ("expires", "number"),
        ("countdown", "number"),
        ("timeout", "number"),
        ("result_ttl", "integer"),
        ("max_retries", "integer"),
        ("metadata", "string"),
    )
]
_JOB_REQUEST: Final = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string"},
        "version": {"type": "string"},
        "input": {"description": "Any JSON, or {content_type, base64} for bytes."},
        "id": {
            "type": ["string", "null"],
            "pattern": ID_PATTERN,
            "description": "The job's id; left out, the server makes one.",
        },
        "options": {
            "type": "object",
            "properties": {option["name"]: option["schema"] for option in _OPTIONS}
            | {"metadata": {"type": "object"}},
        },
    },
}
_JOB_BODY: Final = {
    "required": True,
    "content": {
        "application/json": {
            "schema": _JOB_REQUEST,
            "example": {"model": "echo", "input": {"x": 1}, "options": {"priority": 3}},
        }
    },
}


def _operation(summary: str, *, ended: str, **members: Any) -> dict[str, Any]:
    return {
        "summary": summary,
        "tags": ["jobs"],
        "responses": {
            "200": {"description": ended, "content": _JOB},
            "202": {"description": "It has not ended yet.", "content": _JOB},
            "default": _PROBLEM,
        },
        **members,
    }


def _path_name(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _submit_input(method: str) -> dict[str, Any]:
    return _operation(
        "Submit the body as the input of a job",
        ended="It has ended within the wait.",
        operationId=f"submit_input_{method}",
        parameters=[*_OPTIONS, *_WAIT, _KEY],
        requestBody={"required": True, "content": {"*/*": {"schema": {}}}},
    )


def hot_paths() -> dict[str, Any]:
    """The paths of the hot routes."""
    result = _operation("The output as it is", ended="The output.", operationId="get_result")
    result["responses"]["200"] = {"description": "The output.", "content": {"*/*": {"schema": {}}}}
    return {
        MODEL_JOBS: {
            "parameters": [_path_name("model")],
            **{method.lower(): _submit_input(method.lower()) for method in HOT_ROUTES[MODEL_JOBS]},
        },
        JOBS: {
            "post": _operation(
                "Submit a job",
                ended="It has ended within the wait.",
                operationId="submit_job",
                parameters=[*_WAIT, _KEY],
                requestBody=_JOB_BODY,
            )
        },
        JOB: {
            "parameters": [_path_name("job_id")],
            "get": _operation(
                "One job", ended="It has ended.", operationId="get_job", parameters=_WAIT
            ),
            "put": _operation(
                "Submit a job under an id of your own; a repeat is the same job",
                ended="It has ended within the wait, or had before.",
                operationId="put_job",
                parameters=_WAIT,
                requestBody=_JOB_BODY,
            ),
            "delete": _operation(
                "Cancel a job",
                ended="It was removed, or had ended before: see `outcome`.",
                operationId="cancel_job",
            ),
        },
        RESULT: {"parameters": [_path_name("job_id")], "get": {**result, "parameters": _WAIT}},
    }
