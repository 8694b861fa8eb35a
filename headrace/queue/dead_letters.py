"""Dead letters: jobs and messages that could not run, kept with the reason. Independent of HTTP.

A job becomes a dead letter if its model process died each time that it ran alone, or if its retries
are used up. A message becomes one if it is no job that could run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.scripts import pages_of, script

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
        attempts: how often it was claimed.
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
    """The dead letters of any queue. All methods raise a BrokerError if Redis does not answer.

    A model's own queue means those of its versions too.
    """

    def __init__(self, jobs: JobQueue) -> None:
        self._jobs = jobs

    async def page(
        self, queue: str, *, limit: int, before: tuple[int, str] | None = None
    ) -> list[DeadLetter]:
        """Return dead letters of a queue, the newest first, without traceback and message bytes.

        `before` is (died_us, name) of the last one on the previous page.
        """
        places = [
            (*place, sub_queue)
            for sub_queue in await self._jobs.queues_of(queue)
            for place in await self._places(sub_queue, limit, before)
        ]
        places = sorted(places, reverse=True)[:limit]
        rows = await self._jobs.read_all(
            [("HMGET", keys.dead_letter(sub_queue, name), *_SHOWN) for _, name, sub_queue in places]
        )
        return [
            _letter(name, dict(zip(_SHOWN, values, strict=True)))
            for (_, name, _), values in zip(places, rows, strict=True)
            if values[0] is not None
        ]

    async def _places(
        self, queue: str, limit: int, before: tuple[int, str] | None
    ) -> list[tuple[int, str]]:
        """Return times and names, the newest first; of the same time in the reverse order."""
        top = "+inf" if before is None else before[0]
        offset = 0
        taken: list[tuple[int, str]] = []
        while len(taken) < limit:
            rows = await self._jobs.call_once(
                ("ZREVRANGEBYSCORE", keys.dead(queue), top, "-inf", "WITHSCORES", "LIMIT", offset,
                 limit)
            )  # fmt: skip
            offset += len(rows)
            pairs = ((int(score), name.decode()) for name, score in rows)
            taken += [pair for pair in pairs if before is None or pair < before]
            if len(rows) < limit:
                break
        return taken[:limit]

    async def show(self, queue: str, name: str) -> DeadLetter | None:
        """Return one dead letter with all its fields; None if the name is unknown."""
        for sub_queue in await self._jobs.queues_of(queue):
            fields = await self._jobs.fields(keys.dead_letter(sub_queue, name))
            if b"raw" in fields:
                return _letter(name, {key.decode(): value for key, value in fields.items()})
        return None

    async def requeue(self, queue: str, names: Sequence[str]) -> list[Outcome]:
        """Requeue dead letters at the end of their list, as the jobs that they were.

        Returns:
            For each name `queued`, `unknown`, `unreadable` (it can never run) or `alive`. `alive`:
            a job of its id waits or runs, or a later job of its id has ended. After an error some
            may have been requeued.
        """
        outcomes: dict[str, Outcome] = dict.fromkeys(names, "unknown")
        for sub_queue in await self._jobs.queues_of(queue):
            left = [name for name, outcome in outcomes.items() if outcome == "unknown"]
            for chunk in pages_of(left, CHUNK):
                requeue = script("queues/requeue_dead_letters").on(sub_queue, *chunk)
                answer = await self._jobs.call_once(requeue)
                words = (outcome.decode() for outcome in answer)
                outcomes.update(zip(chunk, words, strict=True))
        return [outcomes[name] for name in names]

    async def purge(self, queue: str, names: Sequence[str]) -> int:
        """Delete dead letters; return how many there were. After an error some may be deleted."""
        removed = 0
        for sub_queue in await self._jobs.queues_of(queue):
            for chunk in pages_of(names, CHUNK):
                purge = script("queues/purge_dead_letters").on(sub_queue, *chunk)
                removed += int(await self._jobs.call_once(purge))
        return removed

    async def all_names(self, queue: str) -> list[str]:
        """Return the names of all dead letters of a queue, the oldest of each queue first."""
        queues = await self._jobs.queues_of(queue)
        replies = await self._jobs.read_all(
            [("ZRANGE", keys.dead(sub_queue), 0, -1) for sub_queue in queues]
        )
        return [name.decode() for names in replies for name in names]


_SHOWN: Final = ("reason", "id", "error", "attempts", "created", "at")


def _letter(name: str, fields: dict[str, bytes | None]) -> DeadLetter:
    def text(field_: str) -> str:
        return (fields.get(field_) or b"").decode("utf-8", "replace")

    return DeadLetter(
        name=name,
        job_id=text("id"),
        reason=text("reason"),
        message=text("error"),
        attempts=int(text("attempts") or 0),
        created_us=int(text("created") or 0),
        died_us=int(text("at") or 0),
        traceback=text("traceback"),
        raw=fields.get("raw") or b"",
    )
