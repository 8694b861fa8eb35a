"""Offline runs in OpenAPI: operations and schemas."""

from __future__ import annotations

from typing import Final

from api.openapi.operations import (
    STRING,
    TIME,
    Description,
    Descriptions,
    Schema,
    array,
    json_body,
    object_of,
    ok,
    parameter,
    properties_of,
    ref,
)
from headrace.runs.records import RunStatus

_REPORT: Final = properties_of(
    RunStatus,
    {
        "name": "The name that its user has given.",
        "source": "The source of its inputs.",
        "output": "The destination of its rows.",
        "total": "The number of inputs, if known.",
        "succeeded": "Rows with a result.",
        "failed": "Rows without one.",
        "command": "The command that resumes it.",
        "folder": "Its working directory on the host.",
        "error": "Why it failed.",
    },
)
_EXAMPLE: Final = {
    "model": "digits", "name": "", "source": "/data/scans", "output": "/data/out.jsonl",
    "state": "running", "total": 1000000, "succeeded": 40123, "failed": 2, "in_flight": 4000,
    "per_second": 812.5, "command": ["headrace", "run", "digits", "scans", "-o", "out.jsonl"],
    "host": "gpu-1", "folder": "/data", "error": "",
}  # fmt: skip
_ID: Final = "run-5d0c1a9e4b7f3a6c2d81"

RUN_SCHEMAS: Final[dict[str, Schema]] = {
    "RunTold": object_of(
        _REPORT,
        optional=tuple(name for name in _REPORT if name != "model"),
        additionalProperties=False,
        examples=[{"model": "digits", "succeeded": 40123, "started_at": 1795280422.5}],
    ),
    "Run": object_of(
        {
            "id": STRING,
            **_REPORT,
            "state": {"enum": [*_REPORT["state"]["enum"], "lost"]},
            "started_at": TIME,
            "told_at": TIME,
            "cancel_requested": {"type": "boolean"},
        },
        description="As it last reported; `lost` if it runs and has not reported for 30 s.",
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

_BEGUN: Final = parameter(
    "begun",
    {"type": "string", "enum": ["0", "1"], "default": "0"},
    "1 when a process has just started it: an earlier cancellation is dropped.",
)
_ONE: Final = ("run-not-found",)

RUN_OPERATIONS: Final[Descriptions] = {
    "list_runs": Description("Offline runs, newest report first", ok("The newest 1,000.", "Runs")),
    "get_run": Description("One offline run", ok("The run as it last reported.", "Run"), _ONE),
    "tell_run": Description(
        "Report the progress of a run",
        ok("Whether its cancellation is requested.", "RunHeard"),
        ("invalid-request", "invalid-id", "conflict", "payload-too-large"),
        [_BEGUN],
        json_body("RunTold"),
    ),
    "cancel_run": Description("Cancel a run", ok("Its record.", "Run"), _ONE),
}
