"""The background task of a webhook: a Celery message, complete when its job is submitted."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final, get_args

import msgspec

from headrace.jobs.ids import new_ids
from headrace.jobs.job import State
from headrace.jobs.options import ENDS, JobOptions, WebhookEvent
from headrace.redis import keys
from headrace.redis.fields import JobField

TASK: Final = "headrace.webhook"
#: The events of a job that names none.
DEFAULT_EVENTS: Final = tuple(ENDS)
EVENTS: Final[tuple[str, ...]] = get_args(WebhookEvent)
STARTED: Final = "started"
#: The `type` of a webhook.
WebhookType = Annotated[
    str, msgspec.Meta(extra_json_schema={"enum": [f"job.{event}" for event in EVENTS]})
]


class WebhookTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of the task. A field's name in the message stays when it changes here.

    Attributes:
        message_id: the id of this message, which identifies a repeat; "" for a retry.
        model: the job's model, in case its record has expired.
        owner: its API key, in the same case.
        started: whether the event is the job's start and not its end.
        delivery: the delivery, for a retry.
        turn: the delivery's `turn` when the task was made.
    """

    job: str
    message_id: str = msgspec.field(default="", name="said")
    url: str = ""
    model: str = ""
    owner: str = ""
    started: bool = False
    delivery: str = ""
    turn: int = 0


def webhook_fields(job_id: str, model: str, owner: str, options: JobOptions) -> list[str | bytes]:
    """Return the record fields of a job with a webhook; [] for a job without one."""
    if not options.webhook:
        return []
    wanted = options.webhook_events or DEFAULT_EVENTS
    ends = "".join(ENDS[event].value for event in wanted if event in ENDS)
    fields: list[str | bytes] = []
    first, second = new_ids(2)
    if ends:
        ended = WebhookTask(job_id, first, options.webhook, model, owner)
        fields += (JobField.WEBHOOK, message(ended), JobField.WEBHOOK_ENDS, ends)
    if STARTED in wanted:
        began = WebhookTask(job_id, second, options.webhook, model, owner, started=True)
        fields += (JobField.WEBHOOK_STARTED, message(began))
    return fields


def message(task: WebhookTask) -> bytes:
    """Return the Celery message (protocol 2) of a task, ready for LPUSH."""
    task_id = task.message_id or new_ids(1)[0]
    body = msgspec.json.encode(((), {"task": task}, _EMBED))
    # Flower shows this. The URL may contain a token.
    shown = f"{{'job': {task.job!r}}}"
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
    """Return the `type` of the webhook of a job that has ended."""
    return f"job.{state.status}"
