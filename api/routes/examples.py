"""Examples of requests and answers, for the API's description; a test compares them with types.

They are few, because Swagger UI makes an example of each type. These are of the objects that its
users see first: a job, a line of a bulk request, a chat, and a run.
"""

from __future__ import annotations

from typing import Any, Final

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
EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "JobRequest": [{"model": "echo", "input": {"x": 1}, "options": {"priority": 3}}],
    "JobObject": [SUCCEEDED_JOB],
    "ChatRequest": [
        {
            "model": "python_docs", "max_tokens": 60,
            "messages": [{"role": "user", "content": "What is random.choice?"}],
        }
    ],
    "ChatCompletion": [
        {
            "created": 1795519268, "model": "python_docs", "service_tier": "default",
            "usage": {"prompt_tokens": 13, "completion_tokens": 11, "total_tokens": 24},
            "id": f"chatcmpl-{_ID}", "object": "chat.completion",
            "choices": [
                {
                    "index": 0, "logprobs": None, "finish_reason": "stop",
                    "message": {
                        "role": "assistant", "refusal": None,
                        "content": "Choose a random element from a non-empty sequence.",
                    },
                }
            ],
        }
    ],
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
