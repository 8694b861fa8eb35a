"""What a webhook says: by the Standard Webhooks scheme a type, a time and data; here the job."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.jobs.job import Job, State, iso
from headrace.jobs.options import ENDS
from headrace.jobs.serialization import job_object
from headrace.queue.webhook_deliveries import Delivery, DeliveryLog
from headrace.webhooks.task_message import STARTED, WebhookTask, event_type

#: A result whose Celery message is longer is left out, and fetched by its link.
RESULT_MAX_BYTES: Final = 256 * 1024


class JobWebhook(msgspec.Struct, frozen=True):
    """What there is to tell.

    Attributes:
        type: as `job.succeeded`.
        at_us: when it happened.
        state: of a job's end, how that was.
    """

    type: str
    at_us: int
    state: State | None = None


def what_is_told(errand: WebhookTask, log: DeliveryLog, job: Job | None) -> JobWebhook | None:
    """What an errand is to tell; None where nobody knows of its job any more.

    How the job has ended last is noted apart from its record, which may have run out, or be that
    of a job that was put back since.
    """
    if errand.started:
        began = job.started_us or job.created_us if job is not None else 0
        return JobWebhook(f"job.{STARTED}", began)
    if log.ended_us:
        state = State(log.state)
        return JobWebhook(event_type(state), log.ended_us, state)
    if job is not None and job.state.final:
        return JobWebhook(event_type(job.state), job.ended_us, job.state)
    return None


def told_by(delivery: Delivery) -> JobWebhook:
    """What a delivery tells that was begun before."""
    state = ENDS.get(delivery.type.removeprefix("job."))
    return JobWebhook(delivery.type, delivery.at_us, state)


def body_of(delivery: Delivery, told: JobWebhook, job: Job | None) -> bytes:
    """The body; of a job whose record says something else by now, what is known of it."""
    if job is not None and (told.state is None or job.ended_us == told.at_us):
        data = job_object(job, with_result=len(job.meta) + len(job.recorded) <= RESULT_MAX_BYTES)
    else:
        data = _without_record(delivery, told)
    return b'{"type":"%s","timestamp":"%s","data":%s}' % (
        told.type.encode(),
        iso(delivery.at_us).encode(),
        data,
    )


def _without_record(delivery: Delivery, told: JobWebhook) -> bytes:
    ended = told.state is not None
    return msgspec.json.encode(
        {
            "id": delivery.job,
            "model": delivery.model,
            "status": (told.state or State.RUNNING).status,
            "finished_at": iso(told.at_us) if ended else None,
            "record_expired": True,
        }
    )
