"""All models in numbers, what is wrong, and the last hour by minute: computed once for all readers.

Each is read again after a second at the earliest, however many ask. A console can poll it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from api.components.model_status import FRESH_S, ModelStatus, ModelStatuses
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.errors import BrokerError
from headrace.observability import series
from headrace.observability.series import Bucket
from headrace.observability.worker_report import ADMITTED, ENDED, read_report
from headrace.queue import findings
from headrace.queue.findings import WorkerSeen
from headrace.queue.job_queue import Depth, JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import Command, pages_of
from headrace.schema.members import time_of
from headrace.schema.overview import (
    AllSeries,
    Finding,
    LastMinute,
    ModelOverview,
    Overview,
    RedisMemory,
    SeriesColumns,
)

T = TypeVar("T")

#: A background worker writes a minute so long after its end; a later one leaves a gap meanwhile.
SETTLED_S: Final = 5
#: How long a last hour without its newest minute is used.
INCOMPLETE_S: Final = 5.0
#: How many models are decoded until the event loop serves others.
PAGE: Final = 20
_MIB: Final = 1024 * 1024
_COUNTED: Final = (ADMITTED, f"{ENDED}:succeeded", f"{ENDED}:failed")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What was read, as a body too; `etag` stays while only the time of reading changes."""

    value: T
    body: bytes
    etag: bytes


@dataclass(frozen=True, slots=True)
class LastHour:
    """The full minutes of the last hour of each model, until `end` in minutes since 1970."""

    end: int
    minutes: Mapping[str, Sequence[Bucket]]
    answer: Answer[AllSeries]


class Overviews:
    """Reads them from Redis. All methods raise a BrokerError if it does not answer."""

    def __init__(self, queue: JobQueue, catalog: Catalog, statuses: ModelStatuses) -> None:
        self._queue, self._catalog, self._statuses = queue, catalog, statuses
        self._overview = _Shared(self._read, lambda _: FRESH_S)
        self._last_hour = _Shared(self._read_last_hour, self._hour_fresh_s)

    async def overview(self) -> Answer[Overview]:
        """Return the overview."""
        return await self._overview.get()

    async def last_hour(self) -> LastHour:
        """Return the last hour of all models."""
        return await self._last_hour.get()

    async def _read(self) -> Answer[Overview]:
        last_hour = await self.last_hour()
        state = await _State.read(self._queue, self._catalog)
        statuses = self._statuses.learn({seen.owner: report for seen, report in state.alive})
        found = sorted(
            state.findings(self._catalog, last_hour.minutes),
            key=lambda finding: finding.severity != findings.FAIL,
        )
        overview = Overview(
            at=time_of(state.now_us),
            models=[
                _model(model, state, statuses[model.name], last_hour.minutes.get(model.name, ()))
                for model in state.models
                if model.name in statuses
            ],
            workers=len(state.alive),
            background_workers=state.background_workers,
            background_tasks=state.tasks,
            webhooks_pending=state.webhooks,
            redis=_memory(state.info),
            findings=found,
        )
        body = msgspec.json.encode(overview)
        # Without its first member, the time.
        return Answer(overview, body, _etag(body.partition(b",")[2]))

    async def _read_last_hour(self) -> LastHour:
        await self._queue.read_clock()
        end = _settled_minute(self._queue)
        first = end - series.MINUTES
        names = [model.name for model in self._catalog.served]
        minutes: dict[str, Sequence[Bucket]] = {}
        columns: dict[str, SeriesColumns] = {}
        for page in pages_of(names, PAGE):
            for name, buckets in zip(
                page, await read_buckets(self._queue, page, series.MINUTE, first, end), strict=True
            ):
                minutes[name], columns[name] = buckets, columns_of(buckets)
        document = AllSeries(**span_of(series.MINUTE, first, end), models=columns)
        body = msgspec.json.encode(document)
        return LastHour(end, minutes, Answer(document, body, _etag(body)))

    def _hour_fresh_s(self, last: LastHour) -> float:
        step_s = series.MINUTE.step_s
        left_s = (last.end + 1) * step_s + SETTLED_S - self._queue.clock.now_s()
        known = any(buckets[-1] != series.UNKNOWN for buckets in last.minutes.values())
        return left_s if known else min(left_s, INCOMPLETE_S)


class _Shared(Generic[T]):
    """A value that is read once for all that ask at a time, and used for `fresh_s` seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]], fresh_s: Callable[[T], float]) -> None:
        self._read, self._fresh_s = read, fresh_s
        self._reading: asyncio.Task[T] | None = None
        self._latest: T | None = None
        self._until = 0.0

    async def get(self) -> T:
        if self._latest is not None and time.monotonic() < self._until:
            return self._latest
        if self._reading is None:
            self._reading = asyncio.create_task(self._renew())
        return await asyncio.shield(self._reading)

    async def _renew(self) -> T:
        try:
            began = time.monotonic()
            latest = await self._read()
            self._latest, self._until = latest, began + self._fresh_s(latest)
            return latest
        finally:
            self._reading = None


@dataclass(frozen=True, slots=True)
class _State:
    """The deployment at one moment, as Redis has it."""

    models: Sequence[ModelConfig]
    now_us: int
    workers: Sequence[WorkerSeen]
    alive: findings.Alive
    depths: Mapping[str, Depth]
    version_depths: Mapping[str, Mapping[str, Depth]]
    counted: Mapping[str, Sequence[int]]
    paused: frozenset[str]
    background_workers: int
    tasks: int
    webhooks: int
    info: Mapping[str, str]

    @classmethod
    async def read(cls, queue: JobQueue, catalog: Catalog) -> _State:
        """Read it, in three round trips for any number of models."""
        # It may change meanwhile.
        models = list(catalog.served)
        names = [model.name for model in models]
        (seconds, us), paused, owners, background, *sizes = await queue.read_all(
            [
                ("TIME",),
                ("SMEMBERS", keys.PAUSED),
                ("ZRANGE", keys.WORKERS, 0, -1, "WITHSCORES"),
                ("SMEMBERS", keys.BACKGROUND_WORKERS),
                ("LLEN", keys.BACKGROUND_TASKS),
                ("ZCARD", keys.WAITING_TASKS),
                ("ZCARD", keys.DUE_DELIVERIES),
            ]
        )
        reads: list[Command] = [("HMGET", keys.stats(name), *_COUNTED) for name in names]
        reads += [("ZRANGE", keys.versions(name), 0, -1) for name in names]
        reads += [("HGETALL", keys.worker(owner.decode())) for owner, _ in owners]
        reads += [("EXISTS", keys.background_alive(owner.decode())) for owner in background]
        replies = iter(await queue.read_all(reads))
        counted = {name: [_number(raw) for raw in next(replies)] for name in names}
        versions = {name: [raw.decode() for raw in next(replies)] for name in names}
        now_s = int(seconds) + int(us) / US_PER_S
        workers = [_seen(owner, score, next(replies), now_s) for owner, score in owners]
        own = [keys.queue_name(name) for name in names]
        pairs = [(name, version) for name in names for version in versions[name]]
        depths = await queue.depths([*own, *(keys.version_queue(*pair) for pair in pairs)])
        by_version: dict[str, dict[str, Depth]] = {}
        for (name, version), depth in zip(pairs, depths[len(own) :], strict=True):
            by_version.setdefault(name, {})[version] = depth
        return cls(
            models=models,
            now_us=int(seconds) * US_PER_S + int(us),
            workers=workers,
            alive=findings.alive(workers),
            depths=dict(zip(names, depths, strict=False)),
            version_depths=by_version,
            counted=counted,
            paused=frozenset(raw.decode() for raw in paused),
            background_workers=sum(replies),
            tasks=sizes[0] + sizes[1],
            webhooks=sizes[2],
            info=await _info(queue),
        )

    def findings(
        self, catalog: Catalog, minutes: Mapping[str, Sequence[Bucket]]
    ) -> Iterator[Finding]:
        """Yield what is wrong."""
        yield from findings.of_redis(self.info)
        # This API process runs, so that workers are needed.
        yield from findings.of_workers(self.workers, needed=True)
        yield from findings.of_models(catalog, self.alive)
        yield from findings.of_queues(
            self.models, self.alive, self.depths, self.version_depths, self.paused
        )
        yield from findings.of_backlog(self.models, self.depths)
        yield from findings.of_failures(minutes)
        yield from findings.of_dead_letters(self.depths)
        yield from findings.of_background(
            self.background_workers, self.tasks, self.webhooks, pipelines=bool(catalog.pipelines)
        )
        yield from findings.of_clocks({seen.node: seen.ahead_s for seen, _ in self.alive})
        yield from findings.of_disks(self.alive)


def _seen(owner: bytes, reported_s: float, fields: dict[bytes, bytes], now_s: float) -> WorkerSeen:
    age_s = max(0.0, now_s - reported_s)
    if not fields:
        return WorkerSeen(owner.decode(), None, age_s, 0.0)
    report = read_report(fields)
    ahead_s = report.clock_s - (now_s - age_s) if report.clock_s else 0.0
    return WorkerSeen(owner.decode(), report, age_s, ahead_s)


def _number(raw: bytes | None) -> int:
    try:
        return int(float(raw or 0))
    except (ValueError, OverflowError):
        return 0


async def _info(queue: JobQueue) -> dict[str, str]:
    """Return the fields of INFO that findings need; none if this user may not run it."""
    try:
        sections = await queue.read_all([("INFO", "memory"), ("INFO", "persistence")])
    except BrokerError:
        return {}
    lines = [line for section in sections for line in section.decode("utf-8", "replace").split()]
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _memory(info: Mapping[str, str]) -> RedisMemory | None:
    if "used_memory" not in info:
        return None
    # Whole MiB: a few bytes more are no news to a client that polls.
    used_bytes = int(info["used_memory"]) // _MIB * _MIB
    return RedisMemory(used_bytes, int(info.get("maxmemory", 0)))


def _model(
    config: ModelConfig, state: _State, status: ModelStatus, minutes: Sequence[Bucket]
) -> ModelOverview:
    depth = state.depths[config.name]
    submitted, succeeded, failed = state.counted[config.name]
    newest = minutes[-1] if minutes else series.UNKNOWN
    return ModelOverview(
        name=config.name,
        version=config.version,
        state=status.state,
        ready_replicas=status.ready,
        replicas=sum(served.state.replicas for served in status.workers),
        queued=sum(depth.waiting.values()),
        scheduled=depth.scheduled,
        in_flight=depth.in_flight,
        dead_letters=depth.dead,
        paused=config.queue in state.paused,
        oldest_age_s=depth.oldest_age_s,
        submitted=submitted,
        succeeded=succeeded,
        failed=failed,
        last_minute=None if newest == series.UNKNOWN else _last_minute(newest),
    )


def _last_minute(bucket: Bucket) -> LastMinute:
    return LastMinute(
        submitted=bucket.submitted,
        succeeded=bucket.succeeded,
        failed=bucket.failed,
        batch_size=bucket.batch_size,
        p50_ms=_ms(bucket.p50_s),
        p99_ms=_ms(bucket.p99_s),
        busy=bucket.busy,
    )


def _settled_minute(queue: JobQueue) -> int:
    """Return the first minute, since 1970, that is not over and written yet."""
    return int(queue.clock.now_s() - SETTLED_S) // series.MINUTE.step_s


async def read_buckets(
    queue: JobQueue, models: Sequence[str], ring: series.Ring, first: int, end: int
) -> list[list[Bucket]]:
    """Read the minutes or hours of models from `first` to before `end`, since 1970."""
    reads = [series.reads(model, ring, first, end) for model in models]
    replies = iter(await queue.read_all([read for several in reads for read in several]))
    return [series.buckets([next(replies) for _ in several], first, end) for several in reads]


def span_of(ring: series.Ring, first: int, end: int) -> dict[str, Any]:
    """Return the members of a `SeriesSpan`."""
    step_us = ring.step_s * US_PER_S
    return {
        "since": time_of(first * step_us),
        "until": time_of(end * step_us),
        "step_s": ring.step_s,
    }


def columns_of(buckets: Sequence[Bucket]) -> SeriesColumns:
    """Return buckets as the API shows them."""
    columns = list(map(list, zip(*buckets, strict=True))) or [[] for _ in Bucket._fields]
    (submitted, succeeded, failed, depth, oldest, ready, batch, p50_s, p99_s, busy) = columns
    return SeriesColumns(
        submitted=submitted,
        succeeded=succeeded,
        failed=failed,
        depth=depth,
        oldest_age_s=oldest,
        batch_size=batch,
        p50_ms=list(map(_ms, p50_s)),
        p99_ms=list(map(_ms, p99_s)),
        ready_replicas=ready,
        busy=busy,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _etag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()
