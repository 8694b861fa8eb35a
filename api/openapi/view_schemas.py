"""The schemas of models, queues and health."""

from __future__ import annotations

from typing import Final

from api.components.model_status import BEST_FIRST, NO_WORKER
from api.openapi.shapes import COUNT, MODEL, STRING, Schema, array, nullable, object_of, ref
from headrace.redis import keys

_MODEL_STATE: Final = {"enum": [*BEST_FIRST, NO_WORKER]}
_ERROR: Final = {
    "type": ["string", "null"],
    "description": "The traceback of a failed load, or why processes that were lost wait.",
}
_SUMMARY: Final[dict[str, Schema]] = {
    "name": MODEL,
    "version": STRING,
    "queue": {**STRING, "description": "What a Celery client gives as `queue=`."},
    "state": {
        **_MODEL_STATE,
        "description": "The best that any worker says; of a pipeline the worst of its models'.",
    },
    "ready_replicas": COUNT,
}
_SUMMARY_EXAMPLE: Final = {
    "name": "digits", "version": "1.0", "queue": "headrace.digits", "state": "ready",
    "ready_replicas": 1,
}  # fmt: skip
_WORKER: Final = object_of(
    {
        "worker": {**STRING, "description": "This start of it."},
        "node": {**STRING, "description": "Its Celery node name."},
        "pid": {"type": "integer"},
        "device": STRING,
        "state": {**STRING, "description": "As of the model, of this worker alone."},
        "replicas": COUNT,
        "ready_replicas": COUNT,
        "model_pids": array({"type": "integer"}),
        "error": _ERROR,
    }
)
_WORKER_EXAMPLE: Final = {
    "worker": "cpu0@host-5f1c9a2e", "node": "cpu0@host", "pid": 4710, "device": "cpu",
    "state": "ready", "replicas": 1, "ready_replicas": 1, "model_pids": [4711], "error": None,
}  # fmt: skip

_STAGE: Final = object_of(
    {"name": STRING, "model": MODEL, "from": array(STRING)},
    description="Of a pipeline: a stage, its model, and where its input comes from.",
)

_QUEUE: Final = object_of(
    {
        "name": {**STRING, "description": "What a Celery client gives as `queue=`."},
        "model": MODEL,
        "version": STRING,
        "depth": object_of(
            {str(step): COUNT for step in keys.STEPS},
            description="Jobs that wait, by priority step.",
        ),
        "paused": {"type": "boolean", "description": "Whether no worker may claim from it."},
        "scheduled": COUNT,
        "in_flight": COUNT,
        "dead_letters": COUNT,
        "max_queue_depth": COUNT,
        "oldest_age_s": {"type": ["number", "null"], "minimum": 0},
    }
)
_QUEUE_EXAMPLE: Final = {
    "name": "headrace.digits", "model": "digits", "version": "1.0",
    "depth": {"0": 12, "3": 0, "6": 0, "9": 400}, "paused": False, "scheduled": 2, "in_flight": 32,
    "dead_letters": 0, "max_queue_depth": 10000, "oldest_age_s": 0.25,
}  # fmt: skip

_READINESS: Final = object_of(
    {"state": _MODEL_STATE, "ready_replicas": COUNT, "error": STRING}, optional=("error",)
)

#: By the name of the component.
VIEW_SCHEMAS: Final[dict[str, Schema]] = {
    "Model": object_of(_SUMMARY, examples=[_SUMMARY_EXAMPLE]),
    "Models": object_of(
        {"models": array(ref("Model"))}, examples=[{"models": [_SUMMARY_EXAMPLE]}]
    ),
    "ModelDetail": object_of(
        {
            **_SUMMARY,
            "handler": STRING,
            "device": STRING,
            "replicas": COUNT,
            "weight": {"type": "number", "minimum": 0},
            "max_batch_size": COUNT,
            "max_batch_delay_ms": {"type": "number", "minimum": 0},
            "allowed_batch_sizes": nullable(array(COUNT)),
            "max_batch_cost": nullable(COUNT),
            "cost": STRING,
            "batch_key": nullable(STRING),
            "max_queue_depth": COUNT,
            "timeout_s": {"type": ["number", "null"]},
            "min_timeout_s": {"type": "number", "minimum": 0},
            "max_restarts_per_minute": COUNT,
            "max_retries": {"type": ["integer", "null"]},
            "retry_backoff_s": {"type": "number", "minimum": 0},
            "retry_backoff_max_s": {"type": "number", "minimum": 0},
            "error": _ERROR,
            "workers": array(_WORKER),
            "max_running": COUNT,
            "max_items": COUNT,
            "stages": array(_STAGE),
            "result": array(STRING),
        },
        optional=("max_running", "max_items", "stages", "result"),
        examples=[
            {
                **_SUMMARY_EXAMPLE, "handler": "digits", "device": "auto", "replicas": 1,
                "weight": 1.0, "max_batch_size": 64, "max_batch_delay_ms": 5.0,
                "allowed_batch_sizes": None, "max_batch_cost": None, "cost": "bytes",
                "batch_key": None, "max_queue_depth": 10000,
                "timeout_s": 60.0, "min_timeout_s": 0.1, "max_restarts_per_minute": 10,
                "max_retries": None, "retry_backoff_s": 1.0, "retry_backoff_max_s": 60.0,
                "error": None,
                "workers": [_WORKER_EXAMPLE],
            }
        ],
    ),
    "Queues": object_of({"queues": array(_QUEUE)}, examples=[{"queues": [_QUEUE_EXAMPLE]}]),
    "QueuePause": object_of(
        {"name": STRING, "paused": {"type": "boolean"}},
        examples=[{"name": "headrace.digits", "paused": True}],
    ),
    "QueuePurge": object_of(
        {"name": STRING, "cancelled": COUNT},
        examples=[{"name": "headrace.digits", "cancelled": 414}],
    ),
    "Live": object_of({"status": {"const": "live"}}, examples=[{"status": "live"}]),
    "Ready": object_of(
        {
            "status": {"const": "ready"},
            "broker": {"const": "ok"},
            "models": {"type": "object", "additionalProperties": _READINESS},
        },
        examples=[
            {
                "status": "ready", "broker": "ok",
                "models": {"digits": {"state": "ready", "ready_replicas": 1}},
            }
        ],
    ),
    "ProblemType": object_of(
        {
            "type": STRING,
            "title": STRING,
            "status": {"type": "integer"},
            "retryable": {"type": "boolean"},
            "cause": STRING,
        },
        examples=[
            {
                "type": "/problems/queue-full", "title": "Queue full", "status": 429,
                "retryable": True,
                "cause": "The model's queue holds max_queue_depth jobs; nothing was enqueued.",
            }
        ],
    ),
}  # fmt: skip
