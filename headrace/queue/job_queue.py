"""The queue as an API process uses it: submit, read, cancel, depths. Independent of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError

from headrace.access.api_key import ApiKey, key_from
from headrace.errors import HeadraceError
from headrace.jobs.ids import new_id
from headrace.jobs.job import FINAL_STATES, Job, State, job_from_record
from headrace.observability.worker_report import WorkerReport, read_report
from headrace.queue.coalescer import Coalescer
from headrace.queue.submission import (
    JobSubmission,
    Receipt,
    read_receipts,
    submit_arguments,
)
from headrace.redis import keys
from headrace.redis.clock import US_PER_S, RedisClock
from headrace.redis.fast_connection import exchange
from headrace.redis.fields import JobField
from headrace.redis.script_client import AsyncScriptClient
from headrace.redis.scripts import fields_of, script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts


@dataclass(frozen=True, slots=True)
class Depth:
    """The state of one queue.

    Attributes:
        waiting: how many jobs wait, by step: {0: …, 3: …, 6: …, 9: …}.
        scheduled: how many jobs wait for a countdown or a retry.
        in_flight: how many jobs a worker has leased.
        oldest_ages_s: how long the oldest waiting job of each step has waited. Messages of stock
            clients have no time.
        tokens: of all jobs that have not ended, estimated; 0 if the model's schedule is not by
            tokens.
        due: how many of the scheduled jobs a worker would put into the queue at once.
    """

    queue: str
    waiting: dict[int, int]
    scheduled: int
    in_flight: int
    dead: int
    oldest_ages_s: dict[int, float]
    tokens: int = 0
    due: int = 0

    @property
    def oldest_age_s(self) -> float | None:
        """How long the oldest waiting job has waited; None if none waits, or none has a time."""
        return max(self.oldest_ages_s.values(), default=None)

    @property
    def total(self) -> int:
        """The jobs that count for admission: waiting and scheduled."""
        return sum(self.waiting.values()) + self.scheduled


@dataclass(frozen=True, slots=True)
class Depths:
    """The state of many queues by column, in the order of the queues; see `Depth`.

    Attributes:
        oldest_ages_s: for each step; 0 if it is unknown.
    """

    waiting: Sequence[Sequence[int]]
    scheduled: Sequence[int]
    in_flight: Sequence[int]
    dead: Sequence[int]
    oldest_ages_s: Sequence[Sequence[float]]
    tokens: Sequence[int]
    due: Sequence[int]


def read_columns(answer: Sequence[Any]) -> Depths:
    """Read the reply for many queues by column, which costs a third of a `Depth` for each."""
    now, *rows = answer
    columns = list(zip(*rows, strict=True)) or [()] * 13
    now_us = int(now)
    ages = [[_age_s(now_us, since) for since in column] for column in columns[7:11]]
    return Depths(columns[:4], columns[4], columns[5], columns[6], ages, columns[11], columns[12])


def _age_s(now_us: int, since: bytes) -> float:
    return max(0.0, (now_us - int(since)) / US_PER_S) if since else 0


def read_depths(queues: Sequence[str], answer: Sequence[Any]) -> list[Depth]:
    """Read the reply for these queues."""
    now, *rows = answer
    return [_depth(queue, row, int(now)) for queue, row in zip(queues, rows, strict=True)]


def _depth(queue: str, row: Sequence[Any], now_us: int) -> Depth:
    waiting = {step: int(row[index]) for index, step in enumerate(keys.STEPS)}
    ages = {
        step: _age_s(now_us, since)
        for step, since in zip(keys.STEPS, row[7:11], strict=True)
        if since
    }
    scheduled, in_flight, dead, tokens, due = (int(row[index]) for index in (4, 5, 6, 11, 12))
    return Depth(queue, waiting, scheduled, in_flight, dead, ages, tokens, due)


#: In the order of records/outcomes.lua.
_FIELDS: Final = (
    JobField.STATE,
    JobField.ATTEMPTS,
    JobField.TIMINGS,
    JobField.CREATED,
    JobField.ENDED,
    JobField.DEVICE_WAIT,
    JobField.RESULT,
)
_RESULT: Final = len(_FIELDS) - 1
#: The reply of records/outcomes.lua for an unknown job.
_UNKNOWN: Final = 0
_LEASED: Final = State.RUNNING.value.encode()
_NO_OWNER: Final = b"-"
_FINAL: Final = frozenset(state.value.encode() for state in FINAL_STATES)


def _blank(fields: Sequence[str]) -> bytes:
    """Return a packed HMGET of a record, with blanks for the length of its key and the id."""
    key = keys.job("").encode()
    names = b"".join(b"$%d\r\n%b\r\n" % (len(name), name.encode()) for name in fields)
    return b"*%d\r\n$5\r\nHMGET\r\n$%%d\r\n%b%%b\r\n%b" % (len(fields) + 2, key, names)


_KEY_BYTES: Final = len(keys.job(""))
_ALL: Final = _blank(_FIELDS)
_WITH_OWNER: Final = _blank((*_FIELDS, JobField.KEY))


def _is_rare(row: Any) -> bool:
    """Return whether a row is an error, a leased job, or an end without a result in the record."""
    if isinstance(row, list):
        return row[_RESULT] is None
    return isinstance(row, Exception) or row == _LEASED


#: How many jobs one call of jobs/submit.lua takes, which limits how long it blocks Redis, ...
SUBMIT_MAX_JOBS: Final = 256
#: ... and how many bytes their messages have.
SUBMIT_MAX_BYTES: Final = 4 * 1024 * 1024
#: How many jobs one call of queues/purge.lua cancels.
PURGE_MAX_JOBS: Final = 500
#: How many jobs one call of records/view.lua reads or jobs/cancel.lua cancels.
VIEW_MAX_JOBS: Final = 128
#: How many jobs one call of records/outcomes.lua reads or records/delete.lua deletes.
OUTCOMES_MAX_JOBS: Final = 256


class JobQueue(AsyncScriptClient):
    """Submits, reads and cancels jobs over one asyncio client.

    Requests that are made at the same time (`submit`, `read`, `cancel_one`) share one call of their
    script. Methods to which an API key is given as `owner` know only its jobs. All methods raise a
    BrokerError if Redis does not answer.

    Args:
        job_index_max: how many of a model's newest jobs are indexed for lists; 0 for none.

    Attributes:
        clock: Redis' time, updated by each `expire` and `read_clock`.
    """

    def __init__(self, client: redis.asyncio.Redis, *, job_index_max: int = 0) -> None:
        super().__init__(client)
        self._job_index_max = job_index_max
        self.clock = RedisClock()
        self._submits = Coalescer[JobSubmission, Receipt](
            self.submit_many,
            max_items=SUBMIT_MAX_JOBS,
            max_bytes=SUBMIT_MAX_BYTES,
            size_bytes=lambda job: job.size_bytes,
        )
        self._reads = Coalescer[str, "Job | None"](self.view, max_items=VIEW_MAX_JOBS)
        self._cancels = Coalescer[str, str](self._cancel_owned, max_items=VIEW_MAX_JOBS)

    async def close(self) -> None:
        """End the calls under way."""
        for coalescer in (self._submits, self._reads, self._cancels):
            await coalescer.close()

    async def submit(self, job: JobSubmission) -> Receipt:
        """Enqueue one job, together with all that are submitted at the same time.

        Raises:
            QueueFull, Conflict: nothing was enqueued.
            BrokerFull, BrokerUnavailable: the outcome may be unknown; submit it again with the same
                id.
        """
        return await self._submits.add(job)

    async def submit_many(self, jobs: Sequence[JobSubmission]) -> list[Receipt | HeadraceError]:
        """Enqueue many jobs in one call; return for each its receipt or its error."""
        try:
            submit = job_scripts.submit(self._job_index_max, submit_arguments(jobs))
            answer = await self.call(submit)
        except HeadraceError as error:
            return [error for _ in jobs]
        return read_receipts(jobs, answer)

    async def read(self, job_id: str) -> Job | None:
        """Read one job with its result, together with all that are read at the same time."""
        return await self._reads.add(job_id)

    async def view(self, ids: Sequence[str], *, results: bool = True) -> list[Job | None]:
        """Read jobs; None for an unknown id."""
        rows = await self.call(script("records/view").call([], int(results), *ids))
        return [_job(job_id, row) for job_id, row in zip(ids, rows, strict=True)]

    async def message(self, job_id: str) -> bytes | None:
        """Read the message of a job that has not ended; None if it is not found."""
        found = await self.call(script("records/message").call([], job_id))
        return bytes(found) if found else None

    async def watched(self, ids: Sequence[str]) -> list[Any]:
        """Read the state of jobs, for `watcher.read_status`: less than `view`, and cheaper."""
        return list(await self.call(script("records/watch").call([], *ids)))

    async def outcomes(self, ids: Sequence[str], owner: str | None = None) -> list[Any]:
        """Read how jobs have ended, as records/outcomes.lua replies: less than `view`, and cheaper.

        The script is called only for jobs whose records do not hold the result.
        """
        by_script = script("records/outcomes")
        try:
            rows = await self._results(ids, owner)
        except RedisError:
            return list(await self.call_once(by_script.call([], owner or "", *ids)))
        left = [at for at, row in enumerate(rows) if _is_rare(row)]
        if left:
            call = by_script.call([], owner or "", *(ids[at] for at in left))
            for at, row in zip(left, await self.call_once(call), strict=True):
                rows[at] = row
        return rows

    async def _results(self, ids: Sequence[str], owner: str | None) -> list[Any]:
        blank = _WITH_OWNER if owner else _ALL
        names = [job_id.encode() for job_id in ids]
        commands = b"".join([blank % (_KEY_BYTES + len(name), name) for name in names])
        rows = await exchange(self._client, commands, len(names))
        for at, row in enumerate(rows):
            if not isinstance(row, list):
                continue
            state = row[0]
            if state is None or (owner and (row.pop() or _NO_OWNER) != owner.encode()):
                rows[at] = _UNKNOWN
            elif state not in _FINAL:
                rows[at] = state
        return rows

    async def forget(self, ids: Sequence[str], owner: str | None = None) -> int:
        """Delete those of these jobs that have ended; return how many."""
        delete = script("records/delete").call([], owner or "", *ids)
        return int((await self.call(delete))[0])

    async def listen(self, job_id: str) -> None:
        """Let the end of a quiet job be published."""
        await self.call(script("records/listen").call([], job_id))

    async def cancel_one(self, job_id: str, owner: str | None = None) -> str:
        """Cancel one job, together with all that are cancelled at the same time; see `cancel`."""
        return await self._cancels.add(_owned(job_id, owner))

    async def cancel(self, ids: Sequence[str], owner: str | None = None) -> list[str]:
        """Cancel jobs; return for each `unknown`, `removed`, `asked` (it runs) or `ended`."""
        return await self._cancel_owned([_owned(job_id, owner) for job_id in ids])

    async def cancel_for(self, job_id: str, token: str, ids: Sequence[str]) -> list[str] | None:
        """Cancel jobs on behalf of a leased one; return None if its lease is lost."""
        reply = await self.call_once(job_scripts.cancel(ids, parent=(job_id, token)))
        return None if reply is None else job_scripts.read_words(reply)

    async def _cancel_owned(self, ids: Sequence[str]) -> list[str]:
        return job_scripts.read_words(await self.call(job_scripts.cancel(ids, name=new_id())))

    async def expire(self) -> int:
        """End waiting jobs that must have started by now; return how many were looked at."""
        looked_at, now_us = job_scripts.read_expire(await self.call(job_scripts.expire()))
        self.clock.update(now_us)
        return looked_at

    async def read_clock(self) -> None:
        """Update `clock` by Redis' time."""
        seconds, us = await self.call_once(("TIME",))
        self.clock.update(int(seconds) * US_PER_S + int(us))

    async def take_tokens(
        self, key_id: str, rate: float, wanted: int, least: int
    ) -> tuple[int, float]:
        """Take tokens of a key's rate; return how many, and seconds until `least` are there."""
        take = script("access/take_tokens").call([], key_id, repr(rate), wanted, least)
        taken, wait_us = await self.call(take)
        return int(taken), int(wait_us) / US_PER_S

    async def api_key(self, key_id: str) -> ApiKey | None:
        """Read an API key; None if it does not exist."""
        fields = await self.fields(keys.api_key(key_id))
        return key_from(key_id, fields) if fields else None

    async def fields(self, key: str) -> dict[bytes, bytes]:
        """Read a hash; empty if it does not exist."""
        values: dict[bytes, bytes] = await self.call_once(("HGETALL", key))
        return values

    async def pause(self, queue: str, paused: bool) -> None:
        """Pause a queue, so that nothing is claimed from it, or resume it.

        While a model's own queue is paused, those of its versions are paused too.
        """
        await self.call_once(("SADD" if paused else "SREM", keys.PAUSED, queue))

    async def paused(self) -> set[str]:
        """Return the paused queues."""
        return {member.decode() for member in await self.call_once(("SMEMBERS", keys.PAUSED))}

    async def versions(self, models: Sequence[str]) -> list[list[str]]:
        """Return for each model the versions whose queues are in use, or were lately."""
        replies = await self.read_all([("ZRANGE", keys.versions(model), 0, -1) for model in models])
        return [sorted(version.decode() for version in versions) for versions in replies]

    async def queues_of(self, queue: str) -> list[str]:
        """Return a queue; for a model's own queue, also those of its versions in use."""
        model, version = keys.model_of(queue)
        if version:
            return [queue]
        (versions,) = await self.versions([model])
        return [queue, *(keys.version_queue(model, version) for version in versions)]

    async def purge(self, queue: str) -> int:
        """Cancel all waiting and delayed jobs of a queue; return how many.

        A model's own queue means those of its versions too.

        Jobs that are submitted meanwhile may stay; running jobs are not touched. After an error
        some jobs may have been cancelled.
        """
        return sum([await self._purge(sub_queue) for sub_queue in await self.queues_of(queue)])

    async def _purge(self, queue: str) -> int:
        (depth,) = await self.depths([queue])
        cancelled, left = 0, 1
        while left and cancelled < depth.total:
            reply = await self.call_once(script("queues/purge").on(queue, PURGE_MAX_JOBS))
            ended, removed, left = map(int, reply)
            cancelled += ended
            if not removed:
                break
        return cancelled

    async def depths(self, queues: Sequence[str]) -> list[Depth]:
        """Read the depth of queues in one round trip, at a cost independent of their length.

        A model's own queue counts with those of its versions, and the queue of a version alone.
        """
        return read_depths(queues, await self.call(queue_scripts.depth(queues)))

    async def worker_states(self) -> dict[str, WorkerReport]:
        """Return the reports of live workers, by owner."""
        listed = await self.call_once(("ZRANGE", keys.WORKERS, 0, -1))
        owners = [owner.decode() for owner in listed]
        states = await self.read_all([("HGETALL", keys.worker(owner)) for owner in owners])
        pairs = zip(owners, states, strict=True)
        # A worker's key expires WORKER_TTL_S after its last report; its name may be listed longer.
        return {owner: read_report(state) for owner, state in pairs if state}

    async def ping(self) -> None:
        """Check that Redis answers."""
        await self.call_once(("PING",))


def _owned(job_id: str, owner: str | None) -> str:
    """Return a job as `job_scripts.cancel` takes it; no id has a space."""
    return job_id if owner is None else f"{job_id} {owner}"


def _job(job_id: str, row: Any) -> Job | None:
    """Read a job's row in the reply of records/view.lua; None if the job is unknown."""
    if not isinstance(row, list):
        return None
    flat, meta, place = row
    record = fields_of([value.decode("utf-8", "replace") for value in flat])
    return job_from_record(job_id, record, meta.decode("utf-8", "replace"), int(place))
