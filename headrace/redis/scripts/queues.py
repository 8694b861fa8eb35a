"""The scripts in queues/: what each call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from headrace.redis.scripts import Command, script

#: The most due jobs, and the most expired leases, that one sweep handles.
SWEEP_MAX_JOBS: Final = 500
#: The most queues that one call looks at, as it blocks Redis.
FIND_WORK_MAX_QUEUES: Final = 1000
_SWEEP_HEAD: Final = 9


def sweep(
    queue: str,
    *,
    reap_until_us: int,
    losses: str,
    orphaned_max: int,
    own: str = "",
    limit: int = SWEEP_MAX_JOBS,
) -> Command:
    """Promote jobs that are due, and reap leases that have expired.

    Args:
        reap_until_us: nothing is reaped if Redis' time is later than this; 0 for never.
        losses: see `jobs.release`.
        orphaned_max: how many orphaned ends are handed out.
        own: the queue of the caller's version of the model, if `queue` is the model's own.
        limit: how many jobs are promoted, and how many leases reaped, at most.
    """
    return script("queues/sweep").on(queue, reap_until_us, losses, limit, orphaned_max, own)


class SweepReply(NamedTuple):
    """The reply of queues/sweep.lua.

    Attributes:
        promoted: how many jobs joined their lists.
        reaped: how many leases had expired.
        due_in_us: in how many us the next scheduled job is due; None if no job is scheduled.
        waiting: how many jobs are in the list of each priority step; the first is -1 if the queue
            is paused.
        used: the queues of versions that are in use, if a model's own queue was swept.
        orphaned: ends of jobs whose callbacks are not sent yet: a name, then the length of the
            Celery result, ":", the Celery result and the message.
    """

    promoted: int
    reaped: int
    due_in_us: int | None
    waiting: list[int]
    now_us: int
    used: list[str]
    orphaned: list[bytes]


def read_sweep(reply: Sequence[Any]) -> SweepReply:
    """Read the reply of `sweep`."""
    promoted, reaped, due_us, *waiting, now_us, count = map(int, reply[:_SWEEP_HEAD])
    due_in_us = due_us if due_us >= 0 else None
    ends = _SWEEP_HEAD + count
    used = [name.decode("utf-8", "replace") for name in reply[_SWEEP_HEAD:ends]]
    return SweepReply(promoted, reaped, due_in_us, waiting, now_us, used, list(reply[ends:]))


def depth(queues: Iterable[str]) -> Command:
    """Read the depth of queues; `headrace.queue.job_queue` reads the reply.

    A model's own queue counts with those of its versions, and the queue of a version alone.
    """
    return script("queues/depth").call([], *queues)
