"""Writes the time series of all models, a minute at a time.

All that a minute is compared with is in Redis. So a background worker that is killed leaves at most
a gap, and of several that write at the same time one does.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

from redis.exceptions import RedisError

from headrace.config.model.catalog import Catalog
from headrace.errors import BrokerError
from headrace.observability import series
from headrace.observability.worker_report import read_report
from headrace.queue.job_queue import Depth, read_depths
from headrace.redis import keys
from headrace.redis.clock import US_PER_S, RedisClock
from headrace.redis.connection import connect
from headrace.redis.outages import OutageLog
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Arg, Command, pages_of, script
from headrace.redis.scripts import queues as queue_scripts

logger = logging.getLogger(__name__)

#: How far into a minute the last one is written. Later its counts would be those of both.
LATE_S: Final = 15.0
#: Seconds between two tries while Redis is away.
AGAIN_S: Final = 2.0
#: How many models are read, and then written, at once.
PAGE: Final = 100


class SeriesWriter:
    """Writes the time series; `run` is the body of a thread.

    Args:
        catalog: the models file, for its pipelines, and for its models where none are registered.
        minute_s: how long a minute is.
    """

    def __init__(self, redis_url: str, catalog: Catalog, minute_s: float = series.MINUTE_S) -> None:
        self._client = connect(redis_url)
        self._scripts = ScriptClient(self._client)
        self._catalog = catalog
        self._minute_s = minute_s
        self._clock = RedisClock()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End `run`; any thread may call it."""
        self._stopping.set()

    def run(self) -> None:
        """Write each minute soon after its end, until `stop`."""
        outage = OutageLog(logger, "time series")
        try:
            wait_s = 0.0
            while not self._stopping.wait(wait_s):
                try:
                    self._read_clock()
                    now, into_s = divmod(self._clock.now_s(), self._minute_s)
                    if into_s <= LATE_S / series.MINUTE_S * self._minute_s:
                        self.write(int(now) - 1)
                    # Counters of the last second arrive then, and other writers at other times.
                    wait_s = self._minute_s * (1 + random.uniform(0.015, 0.035)) - into_s  # noqa: S311
                except (BrokerError, RedisError, OSError) as error:
                    outage.began(str(error))
                    wait_s = AGAIN_S
                else:
                    outage.ended()
        finally:
            self._client.close()

    def write(self, minute: int) -> int:
        """Write the minute that has just ended of each model, unless it is there.

        Args:
            minute: its number since 1970.

        Returns:
            How many were written.

        Raises:
            BrokerError: Redis does not answer, or refuses.
        """
        registered = {name.decode() for name in self._scripts.execute("HKEYS", keys.MODELS)}
        declared = self._catalog.pipelines if registered else {m.name for m in self._catalog.served}
        ready = self._ready_replicas()
        names = sorted(registered.union(declared))
        return sum(
            self._write_page(page, registered, minute, ready) for page in pages_of(names, PAGE)
        )

    def _read_clock(self) -> None:
        seconds, us = self._scripts.execute("TIME")
        self._clock.update(int(seconds) * US_PER_S + int(us))

    def _ready_replicas(self) -> Counter[str]:
        owners = self._scripts.execute("ZRANGE", keys.WORKERS, 0, -1)
        reports = self._scripts.read_all(
            [("HGETALL", keys.worker(owner.decode())) for owner in owners]
        )
        ready = Counter[str]()
        for fields in reports:
            for label, state in read_report(fields).models.items():
                ready[label.partition(keys.VERSION_SEPARATOR)[0]] += state.ready
        return ready

    def _write_page(
        self, names: Sequence[str], registered: set[str], minute: int, ready: Counter[str]
    ) -> int:
        queues = [keys.queue_name(name) for name in names]
        depths = read_depths(queues, self._scripts.call(queue_scripts.depth(queues)))
        reads: list[Command] = [series.head_of(name) for name in names]
        reads += [("HMGET", keys.stats(name), *series.FIELDS) for name in names]
        replies = self._scripts.replies(reads)
        arguments: list[Arg] = []
        rows = zip(names, depths, replies[: len(names)], replies[len(names) :], strict=True)
        for name, depth, head, counters in rows:
            # A key of another type has no series.
            if isinstance(head, bytes) and isinstance(counters, list):
                sample = _sample(minute, counters, depth, ready[name])
                arguments += _written(name, name in registered, head, sample)
        if not arguments:
            return 0
        save = script("workers/save_series").call([], series.SIZE, *arguments)
        return int(self._scripts.call(save))


def _sample(
    minute: int, counters: Sequence[bytes | None], depth: Depth, ready: int
) -> series.Sample:
    waiting, age_s = sum(depth.waiting.values()), depth.oldest_age_s or 0.0
    return series.Sample(minute, series.totals_of(counters), waiting, age_s, ready)


def _written(name: str, registered: bool, head: bytes, sample: series.Sample) -> list[Arg]:
    """Return the arguments of a model; none if its minute is there."""
    before = series.read_state(head)
    if before is not None and before.minute == sample.minute:
        return []
    state, minute, hour = series.advance(before, sample)
    hour_number = sample.minute // series.MINUTES
    return [
        name, int(registered), head, state.packed(),
        series.place(series.MINUTE, sample.minute), series.pack(sample.minute, minute),
        series.place(series.HOUR, hour_number), series.pack(hour_number, hour),
    ]  # fmt: skip
