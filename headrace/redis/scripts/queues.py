"""The scripts in queues/: what each call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from headrace.redis import keys
from headrace.redis.scripts import Arg, Command, script

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
    return script("queues/sweep").call(
        keys.queue_keys(queue), queue, reap_until_us, losses, limit, orphaned_max, own
    )


def arrange(queue: str, rooms: Sequence[int]) -> Command:
    """Bring the jobs that run next to the head of their lists; the reply is [chosen, moved].

    Args:
        queue: the queue's name, of a model whose schedule is `tokens`.
        rooms: as for `jobs.claim`.
    """
    return script("queues/arrange").call(keys.queue_keys(queue), queue, *rooms)


class SweepReply(NamedTuple):
    """The reply of queues/sweep.lua.

    Attributes:
        promoted: how many jobs joined their lists.
        reaped: how many leases had expired.
        due_in_us: in how many us the next scheduled job is due; None if no job is scheduled.
        waiting: how many jobs are in the list of each priority step; the first is -1 if the queue
            is paused.
        now_us: Redis' time.
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


def find_work(queues: str, reap_until_us: int) -> Command:
    """Find the queues that have work, among those that a worker does not serve.

    The reply is the time of Redis in us, then the names of these queues.

    Args:
        queues: their names, with a space between; at most FIND_WORK_MAX_QUEUES.
        reap_until_us: as for `sweep`.
    """
    return script("queues/find_work").call([], reap_until_us, queues)


def depth(queues: Iterable[str]) -> Command:
    """Read the depth of queues; `headrace.queue.job_queue` reads the reply.

    A model's own queue counts with those of its versions, and the queue of a version alone.
    """
    return script("queues/depth").call([], *queues)


def list_jobs(
    model: str,
    before: tuple[int, str] | None,
    *,
    since_us: int,
    states: str,
    limit: int,
    look_max: int,
    owner: str | None,
    metadata: Sequence[tuple[str, str, str]] = (),
) -> Command:
    """Walk a model's jobs from the newest.

    Args:
        before: creation time and id of the job to begin after; None for the newest.
        since_us: older jobs are left out.
        states: letters of the states that count; "" for all.
        limit: how many jobs are returned at most.
        look_max: how many jobs are looked at at most.
        owner: the API key whose jobs count; None for all.
        metadata: the metadata must have one text of each three.
    """
    at: tuple[Arg, Arg] = ("", "") if before is None else before
    return script("queues/list_jobs").call(
        [],
        model,
        *at,
        since_us,
        states,
        limit,
        look_max,
        owner or "",
        *(text for three in metadata for text in three),
    )


def read_list_jobs(
    reply: Sequence[Any],
) -> tuple[bool, tuple[int, str] | None, list[tuple[int, str]]]:
    """Return whether more may follow, the last job that was looked at, and the jobs found.

    A job is its creation time and its id.
    """
    more, *rest = reply
    flat = [text.decode() for text in rest]
    if not flat[0]:
        return False, None, []
    last, *found = ((int(us), i) for us, i in zip(flat[::2], flat[1::2], strict=True))
    return more != 0, last, found


def purge(queue: str, limit: int) -> Command:
    """Cancel waiting jobs; the reply is [cancelled, messages removed, messages left]."""
    return script("queues/purge").call(keys.queue_keys(queue), queue, limit)


def requeue_dead_letters(queue: str, names: Iterable[str]) -> Command:
    """Return dead letters to their queue; the reply has one word per dead letter."""
    return script("queues/requeue_dead_letters").call(keys.queue_keys(queue), queue, *names)


def read_failures(model: str, newest: str, oldest: int, skipped: int, limit: int) -> Command:
    """Read failures of a model, the last one first; the reply has a line for each.

    Args:
        newest: the newest time that counts, in us; "+inf" for all.
        oldest: the oldest.
        skipped: how many of those are left out.
        limit: how many are returned at most.
    """
    return script("queues/read_failures").call([], model, newest, oldest, skipped, limit)


def retry_failures(queue: str, entries: Iterable[str]) -> Command:
    """Return failed jobs to their queue; the reply has one word per entry."""
    return script("queues/retry_failures").call(keys.queue_keys(queue), queue, *entries)


def purge_dead_letters(queue: str, names: Iterable[str]) -> Command:
    """Delete dead letters; the reply is how many there were."""
    return script("queues/purge_dead_letters").call(keys.queue_keys(queue), queue, *names)
