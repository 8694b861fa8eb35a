"""Failures: failed jobs, their groups, and their retry. Independent of HTTP.

docs/architecture/failures.md describes how they are kept. A group has the failures of one model
with the same error code, exception and line of the handler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, cast

from headrace.errors import Conflict, InvalidRequest
from headrace.jobs.job import ErrorRecord, Job, read_error_record
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import pages_of, script

#: How many entries are read, and how many jobs are retried, in one call: Redis serves others in
#: between.
PORTION: Final = 2_000
RETRY_PORTION: Final = 200
#: How many of its jobs a group names.
NEWEST_MAX: Final = 10

#: The names of groups: the model's name and the group in it, as in JSON Schema.
GROUP_NAME: Final = r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})\.([0-9a-f]{12})$"
_GROUP_NAME: Final = re.compile(GROUP_NAME)

Outcome = Literal["queued", "gone", "alive", "no-message", "elsewhere"]


class Failure(NamedTuple):
    """A failed job as its entry has it; the newest by creation is the greatest."""

    created_us: int
    job_id: str
    failed_us: int
    group: str
    key: str

    @property
    def entry(self) -> str:
        """The member of the sorted set in Redis."""
        return f"{self.group} {self.created_us} {self.key} {self.job_id}"


@dataclass(slots=True)
class FailureGroup:
    """Failures with the same cause. Times are microseconds of Redis' clock.

    Attributes:
        name: `<model>.<group>`.
        newest: ids of the jobs that failed last, the newest first.
        over_time: by the beginning of a part of the time, how many failed in it.
        error: of the newest job whose record is there.
    """

    name: str
    model: str
    count: int
    first_us: int
    last_us: int
    newest: list[str] = field(default_factory=list)
    over_time: Counter[int] = field(default_factory=Counter)
    error: ErrorRecord = field(default_factory=ErrorRecord)


class Failures:
    """The failures of any model. All methods raise a BrokerError if Redis does not answer.

    `owner` is the API key whose jobs count; None for all.
    """

    def __init__(self, jobs: JobQueue, failed_ttl_s: int) -> None:
        self._jobs = jobs
        self._ttl_s = failed_ttl_s

    async def walk(
        self, model: str, *, owner: str | None, since_us: int = 0
    ) -> AsyncIterator[list[Failure]]:
        """Yield the failures of a model since a time, the last one first, in portions."""
        kept_from = int((self._jobs.clock.now_s() - self._ttl_s) * US_PER_S)
        bottom, top, skipped = max(since_us, kept_from, 0), "+inf", 0
        while True:
            read = script("queues/read_failures").call([], model, top, bottom, skipped, PORTION)
            lines = (await self._jobs.call(read)).decode().splitlines()
            failures = [_failure(line) for line in lines]
            yield [failure for failure in failures if owner is None or failure.key == owner]
            if len(lines) < PORTION:
                return
            last = failures[-1].failed_us
            same = sum(failure.failed_us == last for failure in failures)
            skipped = same + (skipped if top == str(last) else 0)
            top = str(last)

    async def groups(
        self,
        models: Sequence[str],
        *,
        owner: str | None,
        since_us: int,
        text: str,
        limit: int,
        bucket_us: int = 0,
    ) -> list[FailureGroup]:
        """Return the groups of these models, the one that failed last first.

        Args:
            text: only groups whose error has this text in one of its members; "" for all.
            bucket_us: how long the parts of time are in which failures are counted; 0 counts none.
        """
        by_name: dict[str, FailureGroup] = {}
        for model in models:
            async for failures in self.walk(model, owner=owner, since_us=since_us):
                for failure in failures:
                    _count(by_name, model, failure, bucket_us)
        ordered = sorted(
            by_name.values(), key=lambda group: (group.last_us, group.name), reverse=True
        )
        groups: list[FailureGroup] = []
        for page in pages_of(ordered, PORTION):
            await self._read_errors(page)
            groups += [group for group in page if group.error.contains(text)]
            if len(groups) >= limit:
                break
        return groups[:limit]

    async def _read_errors(self, groups: Sequence[FailureGroup]) -> None:
        newest = [group.newest[0] for group in groups]
        stored = await self._jobs.read_all(
            [("HGET", keys.job(job_id), JobField.ERROR) for job_id in newest]
        )
        for group, text in zip(groups, stored, strict=True):
            if text:
                group.error = read_error_record(text)

    async def discard(self, name: str, *, expected: int) -> int:
        """Let all failures of a group go, with their messages and dead letters; return how many.

        Raises:
            Conflict: the group has another number of failures than `expected`; none was let go.
        """
        discarded = 0
        failures = await self._of_group(name, None, expected)
        for queue in await self._jobs.queues_of(keys.queue_name(split_group(name)[0])):
            for page in pages_of(failures, RETRY_PORTION):
                entries = [failure.entry for failure in page]
                discard = script("queues/discard_failures").on(queue, *entries)
                discarded += sum(map(int, await self._jobs.call_once(discard)))
        return discarded

    async def _of_group(self, name: str, owner: str | None, expected: int | None) -> list[Failure]:
        model, group = split_group(name)
        failures = [
            failure
            async for portion in self.walk(model, owner=owner)
            for failure in portion
            if failure.group == group
        ]
        if expected is not None and len(failures) != expected:
            raise Conflict(
                f"the group {name} has {len(failures)} failures by now, and not {expected}",
                hint="Look at it again, and repeat with the new number.",
            )
        return failures

    async def retry(
        self, name: str, *, owner: str | None = None, expected: int | None = None
    ) -> dict[str, Outcome]:
        """Return the jobs of a group to the end of their queues, as the jobs that they were.

        Each call of the script moves some jobs completely. After an error some are queued, and a
        repeat retries the others.

        Args:
            expected: how many failures the group must have; None for any number.

        Raises:
            Conflict: it has another number; none is retried.

        Returns:
            For each job `queued`, `gone` (it was deleted or retried meanwhile), `alive` (its
            message is still in a list), or `no-message` (nothing is left to retry).
        """
        model, _ = split_group(name)
        failures = await self._of_group(name, owner, expected)
        outcomes: dict[str, Outcome] = dict.fromkeys(
            (failure.job_id for failure in failures), "elsewhere"
        )
        for queue in await self._jobs.queues_of(keys.queue_name(model)):
            left = [failure for failure in failures if outcomes[failure.job_id] == "elsewhere"]
            for page in pages_of(left, RETRY_PORTION):
                entries = [failure.entry for failure in page]
                retry = script("queues/retry_failures").on(queue, *entries)
                words = await self._jobs.call_once(retry)
                for failure, word in zip(page, words, strict=True):
                    outcomes[failure.job_id] = word.decode()
        return outcomes

    async def retry_one(self, job: Job) -> Outcome:
        """Return a failed job to the end of its queue; see `retry`."""
        fields = (JobField.FAILURE_GROUP, JobField.CREATED, JobField.KEY)
        (record,) = await self._jobs.read_all([("HMGET", keys.job(job.id), *fields)])
        group, created, owner = (value.decode() if value else "-" for value in record)
        entry = f"{group} {created} {owner} {job.id}"
        for queue in await self._jobs.queues_of(keys.queue_name(job.model)):
            retry = script("queues/retry_failures").on(queue, entry)
            (word,) = await self._jobs.call_once(retry)
            if word != b"elsewhere":
                return cast(Outcome, word.decode())
        return "elsewhere"

    async def message(self, job_id: str, model: str) -> bytes | None:
        """Return the message of a failed job; None if it is not kept."""
        queues = await self._jobs.queues_of(keys.queue_name(model))
        letters = [("HGET", keys.dead_letter(queue, job_id), "raw") for queue in queues]
        found = await self._jobs.read_all([("GET", keys.failed(job_id)), *letters])
        return next(filter(None, found), None)


def split_group(name: str) -> tuple[str, str]:
    """Return the model and the group of a group's name.

    Raises:
        InvalidRequest: no group can have this name.
    """
    parts = _GROUP_NAME.fullmatch(name)
    if parts is None:
        raise InvalidRequest(
            f"{name[:64]!r} is not the name of a group of failures",
            hint="Take one from GET /api/v1/failures, or from `headrace jobs --group error`.",
        )
    return parts[1], parts[2]


def _count(groups: dict[str, FailureGroup], model: str, failure: Failure, bucket_us: int) -> None:
    name = f"{model}.{failure.group}"
    at = failure.failed_us
    group = groups.setdefault(name, FailureGroup(name, model, 0, at, at))
    group.count += 1
    if bucket_us:
        group.over_time[at - at % bucket_us] += 1
    group.first_us, group.last_us = min(group.first_us, at), max(group.last_us, at)
    if len(group.newest) < NEWEST_MAX:
        group.newest.append(failure.job_id)


def _failure(line: str) -> Failure:
    failed, group, created, key, job_id = line.split(" ", 4)
    return Failure(int(created), job_id, int(failed), group, key)
