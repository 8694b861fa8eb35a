"""The webhooks of a job."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.jobs.job import Count
from headrace.schema.members import Moment, Word
from headrace.webhooks.task_message import WebhookType


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try to send a webhook."""

    at: Moment
    duration_ms: Count
    status: Annotated[
        Count | None, Meta(description="The receiver's status; null without an answer.")
    ]
    error: str | None


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One webhook of a job."""

    id: Annotated[str, Meta(description="The header `webhook-id` of each attempt.")]
    type: WebhookType
    url: Annotated[str, Meta(description="The URL without its query.")]
    state: Annotated[Word, Meta(extra_json_schema={"enum": ["delivered", "failed", "pending"]})]
    created_at: Moment
    next_attempt_at: Moment | None
    tries: Annotated[Count, Meta(description="The number of attempts; the newest are listed.")]
    attempts: list[WebhookAttempt]


class WebhookDeliveries(msgspec.Struct):
    """The webhooks of a job, the oldest first."""

    job: str
    deliveries: list[WebhookDelivery]
