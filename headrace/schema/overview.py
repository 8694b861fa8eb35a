"""What an operator watches: the overview, what is wrong, and time series."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.jobs.ids import ModelName
from headrace.jobs.job import Amount, Count
from headrace.schema.members import Moment, Word


class SeriesColumns(msgspec.Struct, frozen=True, kw_only=True):
    """What a model did, one value for each step of time; null where it is not known."""

    submitted: Annotated[list[Count | None], Meta(description="Jobs that the API has accepted.")]
    succeeded: list[Count | None]
    failed: list[Count | None]
    depth: Annotated[
        list[Count | None],
        Meta(description="Waiting jobs at the end of the minute; of an hour the most."),
    ]
    oldest_age_s: Annotated[
        list[Amount | None],
        Meta(description="How long the oldest of them had waited, in the same way; 0: none."),
    ]
    batch_size: Annotated[list[Amount | None], Meta(description="The mean; null without a batch.")]
    p50_ms: Annotated[
        list[Amount | None],
        Meta(description="From submit to outcome, estimated by a histogram; null without a job."),
    ]
    p99_ms: list[Amount | None]
    ready_replicas: Annotated[list[Count | None], Meta(description="At the end.")]
    busy: Annotated[
        list[Amount | None],
        Meta(
            description="The share of the replicas' time in the handler's methods, up to 1; null "
            "without a replica."
        ),
    ]


class SeriesSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a series: value `i` begins at `since` and `i` times `step_s`."""

    since: Moment
    until: Moment
    step_s: Count


class Series(SeriesSpan, frozen=True, kw_only=True):
    """The time series of one model."""

    model: ModelName
    series: SeriesColumns


class AllSeries(SeriesSpan, frozen=True, kw_only=True):
    """The last hour of all models, by minute."""

    models: dict[str, SeriesColumns]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with a deployment; `headrace doctor` finds it too."""

    severity: Annotated[
        Word,
        Meta(
            description="`fail`: does not work, or loses jobs; `warn`: may not work for long.",
            extra_json_schema={"enum": ["fail", "warn"]},
        ),
    ]
    code: Annotated[str, Meta(description="A word for the kind of finding.", examples=["paused"])]
    check: Annotated[str, Meta(description="The check of `headrace doctor` that finds it.")]
    model: Annotated[str | None, Meta(description="Its model; null: it is about no single one.")]
    text: str
    hint: Annotated[str, Meta(description="What to do.")]


class Findings(msgspec.Struct, frozen=True):
    """What is wrong now, the worst first."""

    findings: list[Finding]


class LastMinute(msgspec.Struct, frozen=True, kw_only=True):
    """The newest full minute of a model; the members are those of a series."""

    submitted: Count | None
    succeeded: Count | None
    failed: Count | None
    batch_size: Amount | None
    p50_ms: Amount | None
    p99_ms: Amount | None
    busy: Amount | None


class ModelOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A model or a pipeline, in numbers."""

    name: ModelName
    version: str
    state: Annotated[Word, Meta(description="As in the list of models.")]
    ready_replicas: Count
    replicas: Annotated[Count, Meta(description="How many the workers should have.")]
    queued: Count
    scheduled: Count
    in_flight: Count
    dead_letters: Count
    paused: bool
    oldest_age_s: Annotated[Amount | None, Meta(description="Null: no job waits.")]
    submitted: Annotated[
        Amount, Meta(description="Jobs so far; fewer than before: the counters were reset.")
    ]
    succeeded: Amount
    failed: Amount
    last_minute: Annotated[LastMinute | None, Meta(description="Null: it is not known.")]


class RedisMemory(msgspec.Struct, frozen=True):
    """The memory of Redis."""

    used_bytes: Annotated[Count, Meta(description="In whole MiB.")]
    limit_bytes: Annotated[Count, Meta(description="Its maxmemory; 0: no limit.")]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All models in numbers, and what is wrong."""

    at: Annotated[Moment, Meta(description="When it was read, by the clock of Redis.")]
    models: list[ModelOverview]
    workers: Count
    background_workers: Count
    background_tasks: Count
    webhooks_pending: Count
    redis: Annotated[RedisMemory | None, Meta(description="Null: it is not known.")]
    findings: list[Finding]
