"""What operators see: queues, failures, dead letters, webhooks and profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

import msgspec
from msgspec import Meta

from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount, Count
from headrace.schema.members import Moment, Word
from headrace.webhooks.task_message import WebhookType

if TYPE_CHECKING:
    Depth = dict[str, int]
else:
    Depth = TypedDict("Depth", {"0": Count, "3": Count, "6": Count, "9": Count})


class VersionQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of the jobs that ask for one version of a model."""

    name: Annotated[str, Meta(description="The `queue=` of a Celery client.")]
    version: str
    depth: Annotated[Depth, Meta(description="Waiting jobs, by priority step.")]
    paused: bool
    scheduled: Count
    in_flight: Count
    dead_letters: Count
    oldest_age_s: Amount | None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of one model; its numbers include the jobs that ask for a version."""

    name: Annotated[str, Meta(description="The `queue=` of a Celery client.")]
    model: ModelName
    version: str
    depth: Annotated[Depth, Meta(description="Waiting jobs, by priority step.")]
    paused: bool
    scheduled: Count
    in_flight: Count
    dead_letters: Count
    max_queue_depth: Annotated[Count, Meta(description="Of this queue, and of each version's.")]
    oldest_age_s: Amount | None
    tokens: Annotated[
        Count | None,
        Meta(
            description="Of all jobs that have not ended, estimated; null: it does not count them."
        ),
    ]
    max_queued_tokens: Annotated[
        Count | None, Meta(description="Of this queue, and of each version's; null: no limit.")
    ]
    versions: Annotated[
        list[VersionQueue], Meta(description="The queues of versions that jobs ask for.")
    ]


class Queues(msgspec.Struct):
    """One queue per model."""

    queues: list[Queue]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of a model have to run now."""

    model: ModelName
    demand: Annotated[
        Count, Meta(description="`queued`, `due` and `in_flight`; of a paused model `in_flight`.")
    ]
    queued: Annotated[Count, Meta(description="Jobs that wait in the queue.")]
    due: Annotated[
        Count, Meta(description="Delayed jobs whose time has come; not yet in the queue.")
    ]
    in_flight: Annotated[Count, Meta(description="Jobs that a worker holds, or held when it died.")]
    seconds: Annotated[
        Amount | None,
        Meta(
            description="How long one replica would run for `demand`, by all batches so far; null: "
            "jobs wait, and none has run, or the model generates."
        ),
    ]
    oldest_age_s: Annotated[
        Amount | None, Meta(description="How long the oldest waiting job has waited; null: none.")
    ]
    ready_replicas: Count
    paused: bool


class QueuePurge(msgspec.Struct):
    """The number of jobs that were cancelled."""

    name: str
    cancelled: Count


class FailuresOfGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The failures of one model with the same cause."""

    group: Annotated[str, Meta(description="Its name, for a retry and for a list of its jobs.")]
    model: str
    type: Annotated[str, Meta(description="The code of a problem type.")]
    exception: Annotated[
        str | None, Meta(description="The class that the handler raised; null if it did not raise.")
    ]
    where: Annotated[
        str | None, Meta(description="The line of the handler's own code that raised.")
    ]
    message: Annotated[str, Meta(description="Of the job that failed last.")]
    count: Count
    first_at: Annotated[Moment, Meta(description="When the first of them failed.")]
    last_at: Annotated[Moment, Meta(description="When the last of them failed.")]
    jobs: Annotated[
        list[str], Meta(description="The ids of the jobs that failed last, at most 10.")
    ]
    over_time: Annotated[
        dict[str, Count],
        Meta(
            description="With `bucket_s`: how many failed, by the time at which a part of the time "
            "begins; parts without failures are left out."
        ),
    ] = {}


class FailureGroups(msgspec.Struct):
    """Groups of failures, the one that failed last first."""

    failures: list[FailuresOfGroup]


class GroupCount(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many failures a group must have for a change."""

    count: Annotated[
        Count, Meta(description="As listed; if it has others by now, nothing is done.")
    ]


class Discarded(msgspec.Struct):
    """How many failures were let go."""

    discarded: Count


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs of a group.

    Attributes:
        left: `gone` was deleted or retried meanwhile, `alive` has its message still in a list, and
            of `no-message` nothing is left to retry.
    """

    retried: Count
    left: Annotated[
        dict[
            str,
            Annotated[
                Word, Meta(extra_json_schema={"enum": ["alive", "elsewhere", "gone", "no-message"]})
            ],
        ],
        Meta(description="The jobs that were not retried, and why."),
    ]


class DeadLetterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job, or a message that is not a job, that could not run."""

    id: Annotated[str, Meta(description="The job's id; a generated name if it is not a job.")]
    job_id: str | None
    reason: Annotated[
        str, Meta(description="The code of a problem, or why the message is not a job.")
    ]
    error: str
    attempts: Count
    created_at: Moment
    died_at: Moment
    requeueable: Annotated[bool, Meta(description="Whether it can be requeued.")]


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters were requeued.

    Attributes:
        left: `unreadable` is not a valid job; the job of `alive` waits or runs, or is newer.
    """

    requeued: Count
    left: Annotated[
        dict[
            str,
            Annotated[Word, Meta(extra_json_schema={"enum": ["alive", "unknown", "unreadable"]})],
        ],
        Meta(description="The dead letters that were not requeued, and why."),
    ]


class Purged(msgspec.Struct):
    """How many dead letters were removed."""

    purged: Count


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


class RecentDelivery(WebhookDelivery, frozen=True, kw_only=True):
    """One webhook of any job."""

    job: str
    model: str


class RecentDeliveries(msgspec.Struct):
    """The webhooks of all jobs that were sent last: failing ones first, then the newest."""

    deliveries: list[RecentDelivery]


class WebhookDeliveries(msgspec.Struct):
    """The webhooks of a job, the oldest first."""

    job: str
    deliveries: list[WebhookDelivery]


class ProfileFile(msgspec.Struct, frozen=True):
    """A file of a profile."""

    name: str
    bytes: Count


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of one model process."""

    id: str
    model: str
    version: str
    kind: Annotated[Word, Meta(extra_json_schema={"enum": ["stack", "trace"]})]
    state: Annotated[
        Word,
        Meta(
            description="`requested` until a worker has taken it.",
            extra_json_schema={"enum": ["done", "failed", "requested", "running"]},
        ),
    ]
    error: Annotated[str | None, Meta(description="Why it has failed, and what to do.")]
    automatic: Annotated[bool, Meta(description="The model option `profile` has started it.")]
    at: Annotated[Moment, Meta(description="When it was requested, or was saved.")]
    files: list[ProfileFile]


class Profiles(msgspec.Struct):
    """The newest profiles of all models, the last one first."""

    profiles: list[Profile]
