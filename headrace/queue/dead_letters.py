"""Dead letters: jobs and messages that could not run, kept with the reason. Independent of HTTP.

A job becomes a dead letter if its model process died each time that it ran alone, or if its retries
are used up; a message does if it is no job that could run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import redis.asyncio
from redis.exceptions import RedisError

from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.outages import translate
from headrace.redis.scripts import queues as queue_scripts

#: How many one call requeues or deletes, so that Redis serves other clients in between.
CHUNK: Final = 200
PAGE_MAX: Final = 1_000

Outcome = Literal["queued", "unknown", "unreadable", "alive"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. Times are microseconds of Redis' clock.

    Attributes:
        name: its name in the queue's dead letters: the job's id, or a name of its own.
        job_id: the id of the job; "" if the message could not be read.
        reason: a code of `headrace.errors`, or why the message was refused.
        message: the error in a sentence.
        attempts: how often it was claimed.
        created_us: when it was submitted.
        died_us: when it became a dead letter.
        traceback: the handler's, if it raised.
        raw: the task message, byte for byte.
    """

    name: str
    job_id: str
    reason: str
    message: str
    attempts: int
    created_us: int
    died_us: int
    traceback: str = field(default="", repr=False)
    raw: bytes = field(default=b"", repr=False)


class DeadLetters:
    """The dead letters of any queue.

    Args:
        client: reads.
        jobs: calls the scripts.
    """

    def __init__(self, client: redis.asyncio.Redis, jobs: JobQueue) -> None:
        self._client = client
        self._jobs = jobs

    async def page(
        self, queue: str, *, limit: int, before: tuple[int, str] | None = None
    ) -> list[DeadLetter]:
        """Return dead letters of a queue, the newest first, without traceback and message bytes.

        Args:
            queue: the queue's name.
            limit: how many at most.
            before: (died_us, name) of the last one on the previous page.

        Raises:
            BrokerError: Redis does not answer.
        """
        try:
            names = await self._names(queue, limit, before)
            pipe = self._client.pipeline(transaction=False)
            for name, _ in names:
                pipe.hmget(keys.dead_letter(queue, name), *_SHOWN)
            found = await pipe.execute() if names else []
        except RedisError as error:
            raise translate(error) from error
        return [
            _letter(name, dict(zip(_SHOWN, values, strict=True)))
            for (name, _), values in zip(names, found, strict=True)
            if values[0] is not None
        ]

    async def _names(
        self, queue: str, limit: int, before: tuple[int, str] | None
    ) -> list[tuple[str, int]]:
        """Return names and times, the newest first; equal times are ordered by name."""
        top = "+inf" if before is None else before[0]
        offset = 0
        taken: list[tuple[str, int]] = []
        while len(taken) < limit:
            rows: Any = await self._client.zrevrangebyscore(
                keys.dead(queue), top, "-inf", start=offset, num=limit, withscores=True
            )
            offset += len(rows)
            pairs = [(name.decode(), int(score)) for name, score in rows]
            taken += [(name, at) for name, at in pairs if before is None or (at, name) < before]
            if len(rows) < limit:
                break
        return taken[:limit]

    async def show(self, queue: str, name: str) -> DeadLetter | None:
        """Return one dead letter with all its fields; None if the name is unknown.

        Raises:
            BrokerError: Redis does not answer.
        """
        try:
            found: Any = await self._client.hgetall(keys.dead_letter(queue, name))
        except RedisError as error:
            raise translate(error) from error
        if b"raw" not in found:
            return None
        return _letter(name, {key.decode(): value for key, value in found.items()})

    async def requeue(self, queue: str, names: Sequence[str]) -> list[Outcome]:
        """Requeue dead letters at the end of their list, as the jobs that they were.

        Returns:
            For each name `queued`, `unknown`, `unreadable` (it can never run) or `alive` (a job of
            its id waits or runs, or a later job of its id has ended).

        Raises:
            BrokerError: Redis does not answer; some may have been requeued.
        """
        outcomes: list[Outcome] = []
        for at in range(0, len(names), CHUNK):
            chunk = names[at : at + CHUNK]
            requeue = queue_scripts.requeue_dead_letters(queue, chunk)
            answer = await self._jobs.call_once(requeue)
            outcomes += [outcome.decode() for outcome in answer]
        return outcomes

    async def purge(self, queue: str, names: Sequence[str]) -> int:
        """Delete dead letters; return how many there were.

        Raises:
            BrokerError: Redis does not answer; some may have been deleted.
        """
        removed = 0
        for at in range(0, len(names), CHUNK):
            chunk = names[at : at + CHUNK]
            purge = queue_scripts.purge_dead_letters(queue, chunk)
            removed += int(await self._jobs.call_once(purge))
        return removed

    async def all_names(self, queue: str) -> list[str]:
        """Return the names of all dead letters of a queue, the oldest first.

        Raises:
            BrokerError: Redis does not answer.
        """
        try:
            names: Any = await self._client.zrange(keys.dead(queue), 0, -1)
        except RedisError as error:
            raise translate(error) from error
        return [name.decode() for name in names]


_SHOWN: Final = ("reason", "id", "error", "attempts", "created", "at")


def _letter(name: str, found: dict[str, bytes | None]) -> DeadLetter:
    def text(field_: str) -> str:
        return (found.get(field_) or b"").decode("utf-8", "replace")

    return DeadLetter(
        name=name,
        job_id=text("id"),
        reason=text("reason"),
        message=text("error"),
        attempts=int(text("attempts") or 0),
        created_us=int(text("created") or 0),
        died_us=int(text("at") or 0),
        traceback=text("traceback"),
        raw=found.get("raw") or b"",
    )
