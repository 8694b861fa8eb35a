"""The queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

import msgspec
from msgspec import Meta

from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount, Count

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


class QueuePurge(msgspec.Struct):
    """The number of jobs that were cancelled."""

    name: str
    cancelled: Count
