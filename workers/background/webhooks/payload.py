"""The body of a webhook: a type, a time and data (here the job), as Standard Webhooks defines."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.jobs.job import Job, State, iso
from headrace.jobs.options import ENDS
from headrace.jobs.serialization import job_object
from headrace.queue.webhook_deliveries import Delivery, DeliveryLog
from headrace.webhooks.task_message import STARTED, WebhookTask, event_type

#: A result whose Celery message is longer is left out; the receiver fetches it by its link.
RESULT_MAX_BYTES: Final = 256 * 1024


class WebhookEvent(msgspec.Struct, frozen=True):
    """The event that a webhook reports.

    Attributes:
        type: the event's type, such as `job.succeeded`.
        at_us: when it happened, in microseconds since 1970.
        state: the job's final state; None if it has only started.
    """

    type: str
    at_us: int
    state: State | None = None


def event_of(task: WebhookTask, log: DeliveryLog, job: Job | None) -> WebhookEvent | None:
    """Return the event that a task reports; None if its job's end is not known any more.

    The last end is stored apart from the job's record. The record may have expired, or the job may
    have been requeued since.
    """
    if task.started:
        began = job.started_us or job.created_us if job is not None else 0
        return WebhookEvent(f"job.{STARTED}", began)
    if log.ended_us:
        state = State(log.state)
        return WebhookEvent(event_type(state), log.ended_us, state)
    if job is not None and job.state.final:
        return WebhookEvent(event_type(job.state), job.ended_us, job.state)
    return None


def event_of_delivery(delivery: Delivery) -> WebhookEvent:
    """Return the event that an earlier delivery reports."""
    state = ENDS.get(delivery.type.removeprefix("job."))
    return WebhookEvent(delivery.type, delivery.at_us, state)


def body_of(delivery: Delivery, event: WebhookEvent, job: Job | None) -> bytes:
    """Return the webhook's body, with a short form of a job whose record has changed since."""
    if job is not None and (event.state is None or job.ended_us == event.at_us):
        data = job_object(job, with_result=len(job.meta) + len(job.recorded) <= RESULT_MAX_BYTES)
    else:
        data = _without_record(delivery, event)
    return b'{"type":"%s","timestamp":"%s","data":%s}' % (
        event.type.encode(),
        iso(delivery.at_us).encode(),
        data,
    )


def _without_record(delivery: Delivery, event: WebhookEvent) -> bytes:
    ended = event.state is not None
    return msgspec.json.encode(
        {
            "id": delivery.job,
            "model": delivery.model,
            "status": (event.state or State.RUNNING).status,
            "finished_at": iso(event.at_us) if ended else None,
            "record_expired": True,
        }
    )
