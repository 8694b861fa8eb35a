"""Webhooks in OpenAPI: what is sent, and the routes that tell what became of it."""

from __future__ import annotations

from typing import Any, Final, get_args

from api.openapi.job_schemas import SUCCEEDED_JOB
from api.openapi.operations import JSON, answer, operation, path_parameter
from api.openapi.problems import BROKER_PROBLEMS, PATH_PROBLEMS
from api.openapi.shapes import COUNT, STRING, TIME, Schema, array, nullable, object_of, ref
from api.routes.jobs.webhooks import PATH
from headrace.queue.webhook_deliveries import DeliveryState
from headrace.webhooks.task_message import EVENTS

_TAG: Final = "jobs"
_ID: Final = "msg_5f2b7c1a9e4d3a6c2d81b0f47e6a9d35"
_TYPES: Final = tuple(f"job.{event}" for event in EVENTS)
_PROBLEMS: Final = ("job-not-found", *PATH_PROBLEMS, *BROKER_PROBLEMS)
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
            "id": {**STRING, "description": "The header `webhook-id` of each try."},
            "type": {"enum": list(_TYPES)},
            "url": {**STRING, "description": "Where to, without its query."},
            "state": {"enum": list(get_args(DeliveryState))},
            "created_at": TIME,
            "next_attempt_at": nullable(TIME),
            "tries": {**COUNT, "description": "How many there were; the newest are listed."},
            "attempts": array(
                object_of(
                    {
                        "at": TIME,
                        "duration_ms": COUNT,
                        "status": {
                            **nullable(COUNT),
                            "description": "What the receiver answered; null where it did not.",
                        },
                        "error": nullable(STRING),
                    }
                )
            ),
        },
        examples=[_DELIVERY],
    ),
    "WebhookRedelivery": object_of(
        {"id": {**nullable(STRING), "description": "Which; left out, the newest."}},
        optional=("id",),
        additionalProperties=False,
        examples=[{"id": _ID}],
    ),
    "WebhookEvent": object_of(
        {
            "type": {"enum": list(_TYPES)},
            "timestamp": {**TIME, "description": "When it happened."},
            "data": {
                "type": "object",
                "description": "The job as `GET /api/v1/jobs/{job_id}` shows it. Where its record "
                "has run out: `id`, `model`, `status`, `finished_at` and `record_expired`.",
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


def webhook_paths() -> dict[str, Any]:
    """The paths of a job's webhooks."""
    return {
        PATH: {
            "parameters": [path_parameter("job_id")],
            "get": operation(
                "list_webhooks", "What webhooks were told of a job", _TAG,
                {"200": answer("The oldest first.", ref("WebhookDeliveries"))}, _PROBLEMS,
            ),
        },
        f"{PATH}/redeliver": {
            "parameters": [path_parameter("job_id")],
            "post": operation(
                "redeliver_webhook", "Tell a webhook again", _TAG,
                {"202": answer("It is tried within a second.", ref("WebhookDelivery"))},
                ("invalid-request", "conflict", "payload-too-large", "webhook-not-found",
                 "broker-full", *_PROBLEMS),
                requestBody={
                    "required": False,
                    "content": {JSON: {"schema": ref("WebhookRedelivery")}},
                },
            ),
        },
    }  # fmt: skip


def webhooks() -> dict[str, Any]:
    """What is sent, as a receiver has to take it."""
    header = {"in": "header", "required": True, "schema": STRING}
    return {
        "job": {
            "post": {
                "operationId": "receive_webhook",
                "summary": "A job has begun or ended",
                "description": "Sent to the `webhook` of a submit, signed by the Standard Webhooks "
                "scheme. Any 2xx is success; it may come more than once, under the same id.",
                "parameters": [
                    {**header, "name": "webhook-id", "description": "The same for each try."},
                    {**header, "name": "webhook-timestamp", "description": "Seconds since 1970."},
                    {**header, "name": "webhook-signature", "description": "`v1,` and base64."},
                ],
                "requestBody": {
                    "required": True,
                    "content": {JSON: {"schema": ref("WebhookEvent")}},
                },
                "responses": {
                    "2XX": {"description": "It has arrived."},
                    "410": {"description": "Not wanted any more: it is not tried again."},
                    "default": {"description": "It is tried again for a day."},
                },
            }
        }
    }
