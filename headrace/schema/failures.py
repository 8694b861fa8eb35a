"""Why jobs failed, dead letters, and what became of those that were put back."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.jobs.job import Count
from headrace.schema.members import Moment, Word


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


class FailureGroups(msgspec.Struct):
    """Groups of failures, the one that failed last first."""

    failures: list[FailuresOfGroup]


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
