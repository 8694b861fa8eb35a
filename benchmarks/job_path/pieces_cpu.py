"""What pieces of the API and of the queue give that exist for speed alone, in one process.

    python -m benchmarks.job_path.pieces_cpu

Each piece is called in turn with the version without it. The figure is the CPU of this process, so
other load on the machine matters little.

- `kinds` (headrace/queue/submission.py): without it, what jobs of a kind share is made for each.
- `replies` (headrace/redis/fast_connection.py): without it, redis-py reads each of 256 replies.
- `fresh` (headrace/schema/serialization.py): without it, the object of each new job is written.
- `templates` (api/observability/exposition.py): without it, prometheus-client writes each scrape.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from redis.exceptions import ResponseError
from typing_extensions import override

from api.observability.exposition import Exposition, MetricSamples
from api.observability.metric_families import Family
from benchmarks.common.tables import Table
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.ids import new_ids
from headrace.jobs.job import Job, State
from headrace.queue import submission
from headrace.redis.connection import connect_async
from headrace.redis.fast_connection import FastConnection, exchange, pack_all
from headrace.schema import serialization
from tests.harness.servers.redis_servers import redis_server

ROUNDS: Final = 15
JOBS: Final = 2_000
REPLIES: Final = 256
SERIES: Final = 1_000


@contextmanager
def kinds() -> Iterator[tuple[Callable[[], object], int, Any]]:
    """Yield what makes JOBS submissions, their number, and what removes the cache."""
    kind = submission.SubmitKind(ModelConfig(name="m", handler="echo"), 86_400, waiter="-")
    ids = new_ids(JOBS)
    made = submission._shared.__wrapped__
    yield (
        lambda: [submission.submission(kind, job_id, b'{"x": 1}', now_s=0) for job_id in ids],
        JOBS,
        patch.object(submission, "_shared", made),
    )


@contextmanager
def fresh() -> Iterator[tuple[Callable[[], object], int, Any]]:
    """Yield what makes the objects of JOBS new jobs, their number, and what removes the cache."""
    ids, now_us = new_ids(JOBS), 1_700_000_000_000_000

    def each(*of: Any) -> Callable[[str], bytes]:
        return lambda job_id: serialization.job_object(Job(job_id, *of[:-1]))

    def call() -> list[bytes]:
        new = ("m", "1.0", State.QUEUED, now_us, None)
        return [serialization.fresh_object(*new)(job_id) for job_id in ids]

    yield call, JOBS, patch.object(serialization, "fresh_object", each)


@contextmanager
def replies() -> Iterator[tuple[Callable[[], object], int, Any]]:
    """Yield what reads REPLIES replies, their number, and what lets redis-py read them."""

    async def one_by_one(self: FastConnection, count: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(count):
            try:
                found.append(await self.read_response(timeout=math.inf))
            except ResponseError as error:
                found.append(error)
        return found

    with redis_server() as server, asyncio.Runner() as runner:
        client = connect_async(server.url)
        commands = pack_all([("HMGET", "hr:none", "s", "a", "tm")] * REPLIES)
        removed = patch.object(FastConnection, "read_replies", one_by_one)
        yield lambda: runner.run(exchange(client, commands, REPLIES)), REPLIES, removed
        runner.run(client.aclose())


@contextmanager
def templates() -> Iterator[tuple[Callable[[], object], int, Any]]:
    """Yield what writes SERIES series, their number, and what forgets their text."""
    exposition, family = Exposition(), Family("headrace_m_total", "counter", "Help.", ("model",))
    samples = MetricSamples(family, [(f"m-{n}",) for n in range(SERIES)], [1.5] * SERIES)

    class Forgetful(dict[str, Any]):
        @override
        def __setitem__(self, name: str, text: Any) -> None:
            """Keep nothing."""

    removed = patch.object(exposition, "_templates", Forgetful())
    yield lambda: exposition.text([samples]), SERIES, removed


PIECES: Final = {"kinds": kinds, "fresh": fresh, "replies": replies, "templates": templates}


def measure(piece: str, rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """Return the microseconds for each item with a piece and without it, in pairs."""
    pairs = []
    with PIECES[piece]() as (call, count, removed):

        def spent_us() -> float:
            began = time.process_time()
            for _ in range(max(1, JOBS // count)):
                call()
            return (time.process_time() - began) * 1e6 / (max(1, JOBS // count) * count)

        call()
        for _ in range(rounds):
            present = spent_us()
            with removed:
                pairs.append((present, spent_us()))
    return pairs


def main() -> None:
    """Measure all pieces and print the table."""
    table = Table("piece", "µs", "without it", "saves")
    for piece in PIECES:
        pairs = measure(piece)
        saved = statistics.median(1 - present / removed for present, removed in pairs)
        present, removed = (statistics.median(side) for side in zip(*pairs, strict=True))
        table.add(piece, f"{present:.2f}", f"{removed:.2f}", f"{saved:.0%}")


if __name__ == "__main__":
    main()
