"""What webhooks were told of a job, each call a plan; see steps.py."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from headrace.client.errors import decoded
from headrace.client.models import Job, WebhookDelivery
from headrace.client.requests import JSON_HEADERS, job_request
from headrace.client.retries import Session, exchange
from headrace.client.sansio import Plan


class _Deliveries(msgspec.Struct):
    deliveries: list[WebhookDelivery]


def webhooks(session: Session, job: str | Job) -> Plan[list[WebhookDelivery]]:
    """What webhooks were told of a job, the oldest first; also for a while after its record.

    Raises:
        JobNotFound: there is none of that id.
    """
    answer = yield from exchange(session, job_request("GET", job, below="/webhooks"))
    return decoded(answer, _Deliveries).deliveries


def redeliver_webhook(
    session: Session, job: str | Job, delivery: str | WebhookDelivery | None = None
) -> Plan[WebhookDelivery]:
    """Tell a webhook again, under the same id.

    Args:
        session: the server.
        job: the job, or its id.
        delivery: which; None for the newest.

    Raises:
        JobNotFound: there is no such job.
        WebhookNotFound: it has no such delivery.
    """
    named = delivery.id if isinstance(delivery, WebhookDelivery) else delivery
    request = job_request("POST", job, below="/webhooks/redeliver")
    body = msgspec.json.encode({} if named is None else {"id": named})
    request = replace(request, body=body, headers=JSON_HEADERS)
    return decoded((yield from exchange(session, request)), WebhookDelivery)
