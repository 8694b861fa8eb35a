"""Examples of requests and answers, for the API's description; a test compares them with types."""

from __future__ import annotations

from typing import Any, Final

_ID: Final = "0195d0b2-7c4e-7d1a-9f3b-2c5e8a7d6f10"
_RUN_ID: Final = "run-5d0c1a9e4b7f3a6c2d81"
_DELIVERY_ID: Final = "msg_5f2b7c1a9e4d3a6c2d81b0f47e6a9d35"
_OPENAI_MODEL: Final = {
    "id": "python_docs", "object": "model", "created": 1795519263, "owned_by": "headrace",
}  # fmt: skip
_CHOICE: Final = "Choose a random element from a non-empty sequence."
_ANSWER: Final = {
    "created": 1795519268, "model": "python_docs", "service_tier": "default",
    "usage": {"prompt_tokens": 13, "completion_tokens": 11, "total_tokens": 24},
}  # fmt: skip
_RESPONSE: Final[dict[str, Any]] = {
    "id": f"resp_{_ID}", "object": "response", "created_at": 1795519268,
    "completed_at": 1795519269, "status": "completed", "background": True, "error": None,
    "incomplete_details": None, "instructions": None, "max_output_tokens": None, "metadata": {},
    "model": "python_docs",
    "output": [
        {
            "id": f"msg_{_ID}", "type": "message", "status": "completed", "role": "assistant",
            "content": [
                {"type": "output_text", "text": _CHOICE, "annotations": [], "logprobs": []}
            ],
        }
    ],
    "parallel_tool_calls": True, "previous_response_id": None, "service_tier": "default",
    "store": True, "temperature": None, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": None, "truncation": "disabled",
    "usage": {
        "input_tokens": 13, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 11, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 24,
    },
    "user": None,
}  # fmt: skip
_FILE_ID: Final = "file-0193f1a2b3c47d5e8f60718293a4b5c6"

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
_REQUEST: Final = {"model": "echo", "input": {"x": 1}, "options": {"priority": 3}}
_CANCELLATION: Final = {"id": _ID, "outcome": "removed", "status": "cancelled"}
_OUTCOME: Final = {
    name: SUCCEEDED_JOB[name] for name in ("status", "attempts", "timings", "result")
}
_LETTER: Final = {
    "id": "order-7", "job_id": "order-7", "reason": "replica-lost",
    "error": "the model process died each of the 3 times that it ran this input alone",
    "attempts": 4, "created_at": "2026-11-21T10:15:00.123456+00:00",
    "died_at": "2026-11-21T10:16:30.500000+00:00", "requeueable": True,
}  # fmt: skip
_MODEL: Final = {
    "name": "digits", "version": "1.0", "queue": "headrace.digits", "state": "ready",
    "ready_replicas": 1, "versions": ["1.0", "1.1"],
}  # fmt: skip
_WORKER: Final = {
    "worker": "cpu0@host-5f1c9a2e", "node": "cpu0@host", "pid": 4710, "version": "1.0",
    "device": "cpu", "labels": ["gpu=a100"],
    "state": "ready", "replicas": 1, "ready_replicas": 1, "threads": 4, "cpus": ["0-3"],
    "memory_mb": 214, "variant": "", "model_pids": [4711], "error": None,
}  # fmt: skip
_QUEUE: Final = {
    "name": "headrace.digits", "model": "digits", "version": "1.0",
    "depth": {"0": 12, "3": 0, "6": 0, "9": 400}, "paused": False, "scheduled": 2, "in_flight": 32,
    "dead_letters": 0, "max_queue_depth": 10000, "oldest_age_s": 0.25,
    "tokens": None, "max_queued_tokens": None,
    "versions": [
        {
            "name": "headrace.digits@1.1", "version": "1.1",
            "depth": {"0": 2, "3": 0, "6": 0, "9": 0}, "paused": False, "scheduled": 0,
            "in_flight": 0, "dead_letters": 0, "oldest_age_s": 0.1,
        }
    ],
}  # fmt: skip
_RUN: Final = {
    "id": _RUN_ID, "model": "digits", "name": "", "source": "/data/scans",
    "output": "/data/out.jsonl", "state": "running", "total": 1000000, "succeeded": 40123,
    "failed": 2, "in_flight": 4000, "per_second": 812.5,
    "command": ["headrace", "run", "digits", "scans", "-o", "out.jsonl"], "host": "gpu-1",
    "folder": "/data", "error": "", "started_at": "2026-11-21T10:15:00.123456+00:00",
    "told_at": "2026-11-21T10:16:00.000000+00:00", "cancel_requested": False,
}  # fmt: skip
_DELIVERY: Final = {
    "id": _DELIVERY_ID, "type": "job.succeeded", "url": "https://example.com/hook",
    "state": "pending", "created_at": "2026-11-21T10:15:00.140250+00:00",
    "next_attempt_at": "2026-11-21T10:15:03.912345+00:00", "tries": 1,
    "attempts": [
        {"at": "2026-11-21T10:15:00.150000+00:00", "duration_ms": 12, "status": 503,
         "error": "answered 503"}
    ],
}  # fmt: skip
_FILE: Final = {
    "id": _FILE_ID, "object": "file", "bytes": 1204, "created_at": 1795279329,
    "expires_at": 1797871329, "filename": "requests.jsonl", "purpose": "batch",
    "status": "processed", "status_details": None,
}  # fmt: skip
_BATCH: Final = {
    "id": "batch_0193f1a2b3c47d5e8f60718293a4b5c6", "object": "batch",
    "endpoint": "/api/v1/models/echo/jobs", "model": "echo", "errors": None,
    "input_file_id": _FILE_ID, "completion_window": "24h", "status": "completed",
    "output_file_id": "file-0193f1a2b3c47d5e8f60718293a4b5c7", "error_file_id": None,
    "created_at": 1795279329, "in_progress_at": 1795279330, "expires_at": 1795365729,
    "finalizing_at": 1795279400, "completed_at": 1795279401, "failed_at": None, "expired_at": None,
    "cancelling_at": None, "cancelled_at": None,
    "request_counts": {"total": 1000, "completed": 1000, "failed": 0}, "metadata": {"night": "7"},
    "rerun_of": None,
}  # fmt: skip


def _page(item: dict[str, Any]) -> dict[str, Any]:
    ends = {"first_id": item["id"], "last_id": item["id"], "has_more": False}
    return {"object": "list", "data": [item], **ends}


#: By the name of the type.
_PROFILE: Final = {
    "id": "5d0c1a9e4b7f3a6c", "model": "digits", "version": "1.0", "kind": "trace",
    "state": "done", "error": None, "automatic": False, "at": "2026-11-21T10:15:00.123456+00:00",
    "files": [{"name": "operators.txt", "bytes": 6120}, {"name": "trace.json.gz", "bytes": 48211}],
}  # fmt: skip
EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "ModelChange": [{"options": {"replicas": 2}}, {"default_version": "2.0"}],
    "Registration": [
        {
            "name": "echo", "generation": 3, "default_version": "1.0",
            "versions": [
                {"version": "1.0", "default": True, "declared": True,
                 "changed": {"replicas": 2}, "loads": 0, "unserved": None},
            ],
            "changed_by": "4f1c", "changed_at": "2026-11-21T10:15:00.000000+00:00",
            "change": "set replicas=2 of version 1.0",
        }
    ],
    "PendingRemoval": [{"name": "echo", "state": "pending"}],
    "ModelChanges": [
        {"changes": [
            {"model": "echo", "what": "reloaded 1.0", "by": "4f1c",
             "at": "2026-11-21T10:15:00.000000+00:00"},
        ]}
    ],
    "ModelDifferences": [
        {"differences": [
            {"model": "echo", "version": "1.0", "option": "replicas", "declared": None,
             "present": 2},
        ]}
    ],
    "ModelTraffic": [
        {"name": "echo", "generation": 4, "default_version": "1.0", "declared": False,
         "weights": {"1.0": 90, "2.0": 10}, "sticky": {"header": "X-User"}, "shadow": "3.0",
         "shadow_percent": 100,
         "shadow_results": {"equal": 97, "different": 2, "failed": 1, "dropped": 0, "unknown": 0}},
    ],
    "Traffic": [{"weights": {"1.0": 1}, "sticky": {"header": "X-User"}}],
    "NewVersion": [{"options": {"handler": "echo", "max_batch_size": 8}}],
    "JobObject": [SUCCEEDED_JOB, QUEUED_JOB],
    "JobRequest": [_REQUEST],
    "NamedJobRequest": [_REQUEST],
    "Cancellation": [_CANCELLATION],
    "Ids": [{"ids": [_ID, "order-7"]}],
    "Jobs": [{"jobs": [SUCCEEDED_JOB, None]}],
    "JobList": [{"jobs": [QUEUED_JOB], "cursor": "1795256100123456-order-7"}],
    "Cancellations": [{"jobs": [_CANCELLATION, None]}],
    "Outcome": [_OUTCOME, {"status": "running"}],
    "Outcomes": [{"outcomes": [{"status": "running"}, None]}],
    "Forgotten": [{"forgotten": 2}],
    "DeadLetters": [{"dead_letters": [_LETTER], "cursor": None}],
    "DeadLetterDetail": [{**_LETTER, "traceback": None, "message": {"text": "{}"}}],
    "Selection": [{"ids": ["order-7"]}, {"all": True}],
    "Requeued": [{"requeued": 1, "left": {}}],
    "FailureGroups": [
        {
            "failures": [
                {
                    "group": "digits.3f2a9c1b04d7", "model": "digits", "type": "handler-error",
                    "exception": "KeyError", "where": "digits.py:101",
                    "message": "KeyError: 'customer_id'", "count": 412,
                    "first_at": SUCCEEDED_JOB["created_at"],
                    "last_at": SUCCEEDED_JOB["finished_at"], "jobs": [_ID],
                }
            ]
        }
    ],
    "Retried": [{"retried": 412, "left": {}}],
    "Purged": [{"purged": 1}],
    "Model": [_MODEL],
    "Models": [{"models": [_MODEL]}],
    "ModelDetail": [
        {
            **_MODEL, "handler": "digits", "device": "auto", "labels": [],
            "replicas": 1, "min_replicas": 1, "max_replicas": 4, "scale_down_s": 60.0,
            "total_replicas": None, "weight": 1.0,
            "max_batch_size": 64, "max_batch_delay_ms": 5.0, "allowed_batch_sizes": None,
            "max_batch_cost": None, "cost": "bytes", "batch_key": None, "max_queue_depth": 10000,
            "schedule": "arrival", "max_queued_tokens": None,
            "timeout_s": 60.0, "min_timeout_s": 0.1, "max_restarts_per_minute": 10,
            "max_retries": None, "retry_backoff_s": 1.0, "retry_backoff_max_s": 60.0,
            "parameters": {"top_k": {"type": "integer", "default": 3}}, "headers": ["x-tenant"],
            "error": None, "unserved": None, "workers": [_WORKER],
            "inputs": {"schema": None, "content_types": ["image/png", "image/jpeg"]},
            "outputs": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "digit": {"type": "integer"}, "probability": {"type": "number"}
                    },
                },
                "content_types": [], "example": {"digit": 3, "probability": 0.98},
                "enforce": False,
            },
            "traffic": None,
        }
    ],
    "Queues": [{"queues": [_QUEUE]}],
    "QueuePause": [{"name": "headrace.digits", "paused": True}],
    "QueuePurge": [{"name": "headrace.digits", "cancelled": 414}],
    "Live": [{"status": "live"}],
    "Ready": [
        {
            "status": "ready", "broker": "ok",
            "models": {"digits": {"state": "ready", "ready_replicas": 1}},
        }
    ],
    "ProblemType": [
        {
            "type": "/problems/queue-full", "title": "Queue full", "status": 429, "retryable": True,
            "cause": "The model's queue has max_queue_depth jobs or max_queued_tokens; nothing was "
            "enqueued.",
        }
    ],
    "Profile": [_PROFILE],
    "ProfileRequest": [{"batches": 5}],
    "Profiles": [{"profiles": [_PROFILE]}],
    "RunStatus": [{"model": "digits", "succeeded": 40123, "started_at": 1795280422.5}],
    "Run": [_RUN],
    "Runs": [{"runs": [_RUN]}],
    "RunReceipt": [{"id": _RUN_ID, "cancel_requested": False}],
    "WebhookDelivery": [_DELIVERY],
    "WebhookDeliveries": [{"job": _ID, "deliveries": [_DELIVERY]}],
    "WebhookRedelivery": [{"id": _DELIVERY_ID}],
    "WebhookEvent": [
        {
            "type": "job.succeeded", "timestamp": SUCCEEDED_JOB["finished_at"],
            "data": SUCCEEDED_JOB,
        }
    ],
    "File": [_FILE],
    "Files": [_page(_FILE)],
    "FileDeleted": [{"id": _FILE_ID, "object": "file", "deleted": True}],
    "Batch": [_BATCH],
    "Batches": [_page(_BATCH)],
    "BatchRequest": [
        {
            "input_file_id": _FILE_ID, "endpoint": _BATCH["endpoint"], "completion_window": "24h",
        },
        {"rerun_of": _BATCH["id"]},
    ],
    "OpenAIModel": [_OPENAI_MODEL],
    "OpenAIModels": [{"object": "list", "data": [_OPENAI_MODEL]}],
    "ChatRequest": [
        {
            "model": "python_docs", "max_tokens": 60,
            "messages": [{"role": "user", "content": "What is random.choice?"}],
        }
    ],
    "ChatCompletion": [
        {
            **_ANSWER, "id": f"chatcmpl-{_ID}", "object": "chat.completion",
            "choices": [
                {
                    "index": 0, "logprobs": None, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": _CHOICE, "refusal": None},
                }
            ],
        }
    ],
    "CompletionRequest": [{"model": "python_docs", "prompt": "import ", "max_tokens": 5}],
    "Completion": [
        {
            **_ANSWER, "id": f"cmpl-{_ID}", "object": "text_completion",
            "choices": [{"index": 0, "text": "os", "logprobs": None, "finish_reason": "length"}],
        }
    ],
    "EmbeddingRequest": [{"model": "vectors", "input": ["first text", "second text"]}],
    "Embeddings": [
        {
            "object": "list", "model": "vectors",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}],
            "usage": {"prompt_tokens": 2, "total_tokens": 2},
        }
    ],
    "ResponseRequest": [
        {"model": "python_docs", "input": "What is random.choice?", "background": True}
    ],
    "Response": [_RESPONSE],
    "ResponseDeleted": [{"id": _RESPONSE["id"], "object": "response", "deleted": True}],
    "OpenAIError": [
        {
            "error": {
                "message": "query parameter limit: '0' is not valid. Give a number from 1 to 100.",
                "type": "invalid_request_error", "param": "limit", "code": "invalid-request",
            }
        }
    ],
}  # fmt: skip
