"""The cost of the scripts inside Redis: microseconds per job, and bytes per queued job.

    python -m benchmarks.redis.scripts [--flavour valkey9|redis62|redis7] [--quick] [--write]

Times are those of Redis (SLOWLOG), the lower quartile of the calls, so that other load matters
little. Compare only rows of one run, not runs of two machines.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from benchmarks.common.inputs import INPUT
from benchmarks.common.tables import Table, write_tables
from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.ids import new_id
from headrace.queue.submission import SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import Command, script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts.jobs import ClaimReply, Settlement
from tests.harness.servers.redis_servers import FLAVOURS, redis_server

BATCH_SIZES: Final = (1, 8, 32, 128)
DEPTHS: Final = (1_000, 10_000, 100_000, 1_000_000)
#: Jobs of a call when the queue length varies.
DEPTH_SIZE: Final = 32
#: Calls of each script in a round.
CALLS: Final = 8
#: Waiting jobs and room of a claim, where the order of a queue is by tokens.
ARRANGED: Final = ((512, 1), (512, 8), (10_000, 1), (10_000, 8), (10_000, 64))
KEYS: Final = (Caller("a" * 12, sees_all=False), Caller("b" * 12, sees_all=False))
MEMORY_JOBS: Final = 20_000
LEASE_US: Final = 600_000_000
QUEUE: Final = keys.queue_name("bench")
META: Final = (
    '{"status": "SUCCESS", "result": {"x":1}, "traceback": null, "children": [], '
    '"date_done": "2026-01-01T00:00:00.000000+00:00", "task_id": "%s"}'
)


class Bench:
    """Calls on one server, timed by the server."""

    def __init__(self, client: Any, model: ModelConfig) -> None:
        self._client = client
        self._model = model
        for name in ("jobs/submit", "jobs/claim", "jobs/settle", "queues/arrange"):
            self._client.execute_command(*script(name).load_command())
        # The log also has the commands of scripts; few of them take this long.
        self._client.config_set("slowlog-log-slower-than", 15)
        self._client.config_set("slowlog-max-len", 10_000)

    def submit(self, count: int, caller: Caller = EVERYBODY) -> Command:
        """Return a call that enqueues `count` jobs as the API does."""
        now_s, kind = time.time(), SubmitKind(self._model, 86_400, caller=caller)
        jobs = [submission(kind, new_id(), INPUT, now_s=now_s) for _ in range(count)]
        return job_scripts.submit(0, submit_arguments(jobs))

    def claim(self, count: int) -> Command:
        """Return a call that leases `count` jobs."""
        return job_scripts.claim(
            QUEUE, "bench", "1.0", (count,) * 4, lease_us=LEASE_US, owner="bench@host-0",
            result_ttl_s=86400, job_index_max=0, yield_us=0,
        )  # fmt: skip

    def settle(self, claimed: list[Any]) -> Command:
        """A call that ends what a claim gave."""
        jobs = ClaimReply(claimed).jobs
        timings = "0.123,0.456,0.012,0.345,0.010"
        settlements = []
        for _, raw_id, token, *_ in jobs:
            job_id = raw_id.decode()
            settlements.append(
                Settlement(
                    job_id,
                    token.decode(),
                    "s",
                    (META % job_id).encode(),
                    len(jobs),
                    timings,
                    "",
                    "",
                    "",
                    "1795000000000000",
                    "1.234",
                )
            )
        return job_scripts.settle(QUEUE, "1.0", settlements)

    def run(self, commands: Iterable[Command]) -> list[Any]:
        """Send commands one by one; return their replies."""
        return [self._client.execute_command(*command) for command in commands]

    def _timed(self, name: str, commands: list[Command]) -> tuple[float, list[Any]]:
        self._client.slowlog_reset()
        replies = self.run(commands)
        sha = script(name).sha.encode()
        entries = self._client.slowlog_get(10_000)
        took = sorted(e["duration"] for e in entries if e["command"].split()[1:2] == [sha])
        if not took:
            raise RuntimeError(f"no call of {name} took long enough to be logged")
        return took[len(took) // 4], replies

    def way(self, size: int, calls: int) -> tuple[float, float, float]:
        """Return the microseconds of a call of submit, claim and settle with `size` jobs each."""
        submit_us, _ = self._timed("jobs/submit", [self.submit(size) for _ in range(calls)])
        claim_us, claimed = self._timed("jobs/claim", [self.claim(size)] * calls)
        settle_us, _ = self._timed("jobs/settle", [self.settle(reply) for reply in claimed])
        return submit_us, claim_us, settle_us

    def arranged(self, room: int, calls: int, callers: Sequence[Caller]) -> tuple[float, float]:
        """Return the microseconds of an arrange and of the claim behind it, for this room.

        All that is claimed ends, and as many jobs are submitted.
        """
        arrange_us, claim_us = [], []
        for turn in range(calls):
            arrange = script("queues/arrange").on(QUEUE, *(room,) * 4)
            took, _ = self._timed("queues/arrange", [arrange])
            arrange_us.append(took)
            took, (claimed,) = self._timed("jobs/claim", [self.claim(room)])
            claim_us.append(took)
            self.run([self.settle(claimed), self.submit(room, callers[turn % len(callers)])])
        return statistics.median(arrange_us), statistics.median(claim_us)

    def used_bytes(self) -> int:
        """Return the memory that the server uses."""
        return int(self._client.info("memory")["used_memory"])

    def clear(self) -> None:
        """Empty the server."""
        self._client.flushall(asynchronous=False)


def per_batch_size(bench: Bench, rounds: int) -> Table:
    """Measure microseconds per job by batch size, with few jobs at a time."""
    table = Table("jobs in a call", "submit, µs a job", "claim", "settle")
    for size in BATCH_SIZES:
        bench.clear()
        took = zip(*(bench.way(size, CALLS) for _ in range(rounds)), strict=True)
        table.add(f"{size}", *(f"{statistics.median(one) / size:.1f}" for one in took))
    return table


def fill(bench: Bench, length: int, depth: int) -> None:
    """Extend a queue of `length` jobs to `depth` jobs."""
    while length < depth:
        count = min(256, depth - length)
        bench.run([bench.submit(count)])
        length += count


def per_depth(bench: Bench, reference: Bench, depths: tuple[int, ...], rounds: int) -> Table:
    """Measure microseconds per job by queue length.

    Args:
        bench: its queue grows.
        reference: on its own server; its queue keeps the first length and is measured in turn.
        depths: the lengths.
        rounds: rounds for each length.
    """
    table = Table(
        "jobs in the queue", "submit, µs a job", "claim", "settle",
        f"sum, relative to {depths[0]:,} jobs",
    )  # fmt: skip
    for each in (bench, reference):
        each.clear()
    fill(reference, 0, depths[0])
    length = 0
    for depth in depths:
        fill(bench, length, depth)
        length = depth
        pairs = [
            (bench.way(DEPTH_SIZE, CALLS), reference.way(DEPTH_SIZE, CALLS)) for _ in range(rounds)
        ]
        row = [
            statistics.median(one) / DEPTH_SIZE for one in zip(*(p for p, _ in pairs), strict=True)
        ]
        ratio = statistics.median(sum(one) / sum(other) for one, other in pairs)
        table.add(f"{depth:,}", *(f"{us:.1f}" for us in row), f"{ratio:.2f}")
    return table


def per_room(bench: Bench, rounds: int) -> Table:
    """Measure the order by tokens by queue length and room, with one API key and with two.

    The jobs of the second key wait behind all jobs of the first one.
    """
    table = Table(
        "jobs in the queue", "room", "arrange with one key, µs a call", "with two keys", "claim"
    )
    for depth, room in ARRANGED:
        took = []
        for callers in (KEYS[:1], KEYS):
            bench.clear()
            for caller in callers:
                for _ in range(depth // len(callers) // 32):
                    bench.run([bench.submit(32, caller)])
            took.append(bench.arranged(room, rounds * CALLS, callers))
        (one_us, claim_us), (two_us, _) = took
        table.add(f"{depth:,}", f"{room}", f"{one_us:.0f}", f"{two_us:.0f}", f"{claim_us:.0f}")
    return table


def per_job_bytes(bench: Bench) -> None:
    """Print the bytes of a new server per queued job: message, record and indices."""
    before = bench.used_bytes()
    message_bytes = 0
    for _ in range(MEMORY_JOBS // 200):
        command = bench.submit(200)
        message_bytes += sum(len(a) for a in command if isinstance(a, bytes) and len(a) > 300)
        bench.run([command])
    queued = (bench.used_bytes() - before) / MEMORY_JOBS
    print(f"\nbytes per queued job: {queued:.0f}, its message {message_bytes / MEMORY_JOBS:.0f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flavour", choices=FLAVOURS, default=FLAVOURS[0])
    parser.add_argument("--quick", action="store_true", help="short queues and few calls")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    depths = DEPTHS[:2] if options.quick else DEPTHS
    rounds = 2 if options.quick else 9
    model = ModelConfig(name="bench", handler="echo", max_queue_depth=10_000_000)
    with (
        redis_server(options.flavour) as server,
        server.client() as client,
        redis_server(options.flavour) as second,
        second.client() as other,
    ):
        bench = Bench(client, model)
        print(f"{options.flavour}, input {INPUT.decode()}")
        sizes = per_batch_size(bench, rounds)
        lengths = per_depth(bench, Bench(other, model), depths, rounds)
        by_tokens = msgspec.structs.replace(model, schedule="tokens")
        rooms = per_room(Bench(client, by_tokens), rounds)
    with redis_server(options.flavour) as server, server.client() as client:
        per_job_bytes(Bench(client, model))
    if options.write:
        description = (
            f"{options.flavour}, times of the server: medians of {rounds} rounds, each the "
            f"lower quartile of {CALLS} calls; in the second {DEPTH_SIZE} jobs in a call; in the "
            "third medians of single calls, for a schedule by tokens."
        )
        write_tables("scripts", description, sizes, lengths, rooms)


if __name__ == "__main__":
    main()
