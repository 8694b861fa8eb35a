"""Offline runs in OpenAPI: routes and schemas."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.operations import JSON, answer, operation, path_parameter
from api.openapi.problems import BROKER_PROBLEMS, PATH_PROBLEMS
from api.openapi.shapes import COUNT, STRING, TIME, Schema, array, nullable, object_of, ref

_TAG: Final = "runs"
_PATH: Final = "/api/v1/runs"
_PROBLEMS: Final = (*PATH_PROBLEMS, *BROKER_PROBLEMS)
_TOLD: Final = ("running", "ended", "stopped", "cancelled", "failed")
_COUNT: Final = {**COUNT, "maximum": 2**53 - 1}
_SAID: Final[dict[str, Schema]] = {
    "model": STRING,
    "name": {**STRING, "description": "What its user calls it."},
    "source": {**STRING, "description": "Where its inputs come from."},
    "output": {**STRING, "description": "Where its rows go."},
    "state": STRING,
    "total": nullable({**_COUNT, "description": "How many inputs there are, where that is known."}),
    "succeeded": {**_COUNT, "description": "Rows with a result."},
    "failed": {**_COUNT, "description": "Rows without one."},
    "in_flight": _COUNT,
    "per_second": {"type": "number", "minimum": 0},
    "command": {**array(STRING), "description": "What goes on with it."},
    "host": STRING,
    "folder": {**STRING, "description": "The working directory there."},
    "error": {**STRING, "description": "Why it failed."},
}
_EXAMPLE: Final = {
    "model": "digits", "name": "", "source": "/data/scans", "output": "/data/out.jsonl",
    "state": "running", "total": 1000000, "succeeded": 40123, "failed": 2, "in_flight": 4000,
    "per_second": 812.5, "command": ["headrace", "run", "digits", "scans", "-o", "out.jsonl"],
    "host": "gpu-1", "folder": "/data", "error": "",
}  # fmt: skip
_ID: Final = "run-5d0c1a9e4b7f3a6c2d81"

RUN_SCHEMAS: Final[dict[str, Schema]] = {
    "RunTold": object_of(
        {
            **_SAID,
            "state": {"enum": list(_TOLD), "default": "running"},
            "started_at": {"type": "number", "minimum": 0, "maximum": 1e11},
        },
        optional=tuple(name for name in (*_SAID, "started_at") if name != "model"),
        additionalProperties=False,
        examples=[{"model": "digits", "succeeded": 40123, "started_at": 1795280422.5}],
    ),
    "Run": object_of(
        {
            "id": STRING,
            **_SAID,
            "state": {"enum": [*_TOLD, "lost"]},
            "started_at": TIME,
            "told_at": TIME,
            "cancel_requested": {"type": "boolean"},
        },
        description="As it told last; `lost` where it runs and has told nothing for 30 s.",
        examples=[
            {
                "id": _ID, **_EXAMPLE, "started_at": "2026-11-21T10:15:00.123456+00:00",
                "told_at": "2026-11-21T10:16:00.000000+00:00", "cancel_requested": False,
            }
        ],
    ),
    "RunHeard": object_of(
        {"id": STRING, "cancel_requested": {"type": "boolean"}},
        examples=[{"id": _ID, "cancel_requested": False}],
    ),
}  # fmt: skip
RUN_SCHEMAS["Runs"] = object_of(
    {"runs": array(ref("Run"))}, examples=[{"runs": RUN_SCHEMAS["Run"]["examples"]}]
)


def run_paths() -> dict[str, Any]:
    """The paths of offline runs."""
    one = ("run-not-found", *_PROBLEMS)
    begun = {
        "name": "begun",
        "in": "query",
        "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
        "description": "1 where a process has just begun with it: an older cancel is over.",
    }
    return {
        _PATH: {
            "get": operation(
                "list_runs", "Offline runs, that told last first", _TAG,
                {"200": answer("The newest 1,000.", ref("Runs"))}, BROKER_PROBLEMS,
            )
        },
        f"{_PATH}/{{run_id}}": {
            "parameters": [path_parameter("run_id")],
            "get": operation(
                "get_run", "One offline run", _TAG,
                {"200": answer("As it told last.", ref("Run"))}, one,
            ),
            "put": operation(
                "tell_run", "Tell how far a run is", _TAG,
                {"200": answer("Whether its end was asked for.", ref("RunHeard"))},
                ("invalid-request", "invalid-id", "conflict", "payload-too-large", *_PROBLEMS),
                parameters=[begun],
                requestBody={"required": True, "content": {JSON: {"schema": ref("RunTold")}}},
            ),
        },
        f"{_PATH}/{{run_id}}/cancel": {
            "parameters": [path_parameter("run_id")],
            "post": operation(
                "cancel_run", "End a run", _TAG,
                {"200": answer("Its record.", ref("Run"))}, one,
            ),
        },
    }  # fmt: skip
