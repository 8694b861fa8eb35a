"""Webhooks in OpenAPI: the message, and the operations on deliveries."""

from __future__ import annotations

from typing import Any, Final, get_args

from api.openapi.job_schemas import SUCCEEDED_JOB
from api.openapi.operations import (
    COUNT,
    STRING,
    TIME,
    Description,
    Descriptions,
    Schema,
    array,
    described,
    json_body,
    nullable,
    object_of,
    ok,
    ref,
)
from headrace.queue.webhook_deliveries import DeliveryState
from headrace.webhooks.task_message import EVENTS

_ID: Final = "msg_5f2b7c1a9e4d3a6c2d81b0f47e6a9d35"
_TYPES: Final = tuple(f"job.{event}" for event in EVENTS)
_DELIVERY: Final[dict[str, Any]] = {
    "id": _ID, "type": "job.succeeded", "url": "https://example.com/hook", "state": "pending",
    "created_at": "2026-11-21T10:15:00.140250+00:00",
    "next_attempt_at": "2026-11-21T10:15:03.912345+00:00", "tries": 1,
    "attempts": [
        {"at": "2026-11-21T10:15:00.150000+00:00", "duration_ms": 12, "status": 503,
         "error": "answered 503"}
    ],
}  # fmt: skip

WEBHOOK_SCHEMAS: Final[dict[str, Schema]] = {
    "WebhookDelivery": object_of(
        {
            "id": described(STRING, "The header `webhook-id` of each attempt."),
            "type": {"enum": list(_TYPES)},
            "url": described(STRING, "The URL without its query."),
            "state": {"enum": list(get_args(DeliveryState))},
            "created_at": TIME,
            "next_attempt_at": nullable(TIME),
            "tries": described(COUNT, "The number of attempts; the newest are listed."),
            "attempts": array(
                object_of(
                    {
                        "at": TIME,
                        "duration_ms": COUNT,
                        "status": described(
                            nullable(COUNT), "The receiver's status; null without an answer."
                        ),
                        "error": nullable(STRING),
                    }
                )
            ),
        },
        examples=[_DELIVERY],
    ),
    "WebhookRedelivery": object_of(
        {"id": described(nullable(STRING), "The delivery; by default the newest.")},
        optional=("id",),
        additionalProperties=False,
        examples=[{"id": _ID}],
    ),
    "WebhookEvent": object_of(
        {
            "type": {"enum": list(_TYPES)},
            "timestamp": described(TIME, "The time of the event."),
            "data": {
                "type": "object",
                "description": "The job as `GET /api/v1/jobs/{job_id}` shows it. After its record "
                "has expired: `id`, `model`, `status`, `finished_at` and `record_expired`.",
            },
        },
        examples=[
            {
                "type": "job.succeeded", "timestamp": SUCCEEDED_JOB["finished_at"],
                "data": SUCCEEDED_JOB,
            }
        ],
    ),
}  # fmt: skip
WEBHOOK_SCHEMAS["WebhookDeliveries"] = object_of(
    {"job": STRING, "deliveries": array(ref("WebhookDelivery"))},
    examples=[{"job": SUCCEEDED_JOB["id"], "deliveries": [_DELIVERY]}],
)


WEBHOOK_OPERATIONS: Final[Descriptions] = {
    "list_webhooks": Description(
        "The webhook deliveries of a job",
        ok("The oldest first.", "WebhookDeliveries"),
        ("job-not-found",),
    ),
    "redeliver_webhook": Description(
        "Send a webhook again",
        ok("It is sent within a second.", "WebhookDelivery", "202"),
        ("invalid-request", "conflict", "payload-too-large", "webhook-not-found", "broker-full",
         "job-not-found"),
        body=json_body("WebhookRedelivery", required=False),
    ),
}  # fmt: skip


def webhooks() -> dict[str, Any]:
    """Return the message as a receiver has to accept it."""
    header = {"in": "header", "required": True, "schema": STRING}
    return {
        "job": {
            "post": {
                "operationId": "receive_webhook",
                "summary": "A job has begun or ended",
                "description": "Sent to the `webhook` of a submit, signed by the Standard Webhooks "
                "scheme. Any 2xx is success; it may arrive more than once, with the same id.",
                "parameters": [
                    {**header, "name": "webhook-id", "description": "The same for each attempt."},
                    {**header, "name": "webhook-timestamp", "description": "Seconds since 1970."},
                    {**header, "name": "webhook-signature", "description": "`v1,` and base64."},
                ],
                "requestBody": json_body("WebhookEvent"),
                "responses": {
                    "2XX": {"description": "It was received."},
                    "410": {"description": "The receiver wants no more: it is not sent again."},
                    "default": {"description": "It is retried for a day."},
                },
            }
        }
    }
