"""The errand of a webhook: a Celery message, written whole when its job is submitted."""

from __future__ import annotations

import base64
from typing import Any, Final, get_args

import msgspec

from headrace.jobs.ids import new_ids
from headrace.jobs.job import State
from headrace.jobs.options import ENDS, JobOptions, WebhookEvent
from headrace.redis import keys
from headrace.redis.keys import F

TASK: Final = "headrace.webhook"
#: What is told where a job does not say.
USUAL: Final = tuple(ENDS)
EVENTS: Final[tuple[str, ...]] = get_args(WebhookEvent)
STARTED: Final = "started"


class WebhookTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the background worker is told.

    Attributes:
        job: the job.
        said: this message's own id, by which a repeat of it is known; "" for a later try.
        url: where to.
        model: the job's model, and
        owner: its API key, where its record is gone by then.
        started: it is to tell that the job has begun, and not how it has ended.
        delivery: of a later try, the delivery.
    """

    job: str
    said: str = ""
    url: str = ""
    model: str = ""
    owner: str = ""
    started: bool = False
    delivery: str = ""


def webhook_fields(job_id: str, model: str, owner: str, options: JobOptions) -> list[str | bytes]:
    """What the record of a job carries that asks for webhooks."""
    if not options.webhook:
        return []
    wanted = options.webhook_events or USUAL
    ends = "".join(ENDS[event].value for event in wanted if event in ENDS)
    fields: list[str | bytes] = []
    first, second = new_ids(2)
    if ends:
        ended = WebhookTask(job_id, first, options.webhook, model, owner)
        fields += (F.WEBHOOK, message(ended), F.WEBHOOK_ENDS, ends)
    if STARTED in wanted:
        began = WebhookTask(job_id, second, options.webhook, model, owner, started=True)
        fields += (F.WEBHOOK_STARTED, message(began))
    return fields


def message(errand: WebhookTask) -> bytes:
    """An errand as a message of Celery's (protocol 2), ready for LPUSH."""
    task_id = errand.said or new_ids(1)[0]
    body = msgspec.json.encode(((), {"errand": errand}, _EMBED))
    # Shown by Flower: without the URL, which may hold a token.
    shown = f"{{'job': {errand.job!r}}}"
    headers: dict[str, Any] = {
        "lang": "py", "task": TASK, "id": task_id, "root_id": task_id, "parent_id": None,
        "group": None, "retries": 0, "eta": None, "expires": None, "timelimit": [None, None],
        "argsrepr": "()", "kwargsrepr": shown, "origin": "headrace", "ignore_result": True,
    }  # fmt: skip
    properties = {
        "correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0,
        "delivery_info": {"exchange": "", "routing_key": keys.BACKGROUND_TASKS},
        "body_encoding": "base64", "delivery_tag": task_id,
    }  # fmt: skip
    return msgspec.json.encode(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


_EMBED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def event_type(state: State) -> str:
    """The `type` of what is sent of a job that has ended so."""
    return f"job.{state.status}"
