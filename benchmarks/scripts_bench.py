"""What the scripts cost inside Redis: microseconds per job, and bytes per queued job.

    python -m benchmarks.scripts_bench [--flavour valkey9|redis62|redis7] [--quick]

Times are Redis' own (SLOWLOG), the lower quartile of the calls, so that what else the machine does
weighs little. Compare rows of one run: the numbers of two machines say nothing of the scripts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any, Final

from headrace import keys
from headrace.catalog import ModelConfig
from headrace.jobs import new_id
from headrace.scripts import CLAIM_HEAD, CLAIM_MAX_BYTES, CLAIM_ROW, Arg, Command, script
from headrace.submission import submission, submit_arguments
from tests.harness.redis_servers import FLAVOURS, redis_server

INPUT: Final = b'{"x":1}'
BATCH_SIZES: Final = (1, 8, 32, 128)
DEPTHS: Final = (1_000, 10_000, 50_000, 200_000)
MEMORY_JOBS: Final = 20_000
LEASE_US: Final = 600_000_000
QUEUE: Final = keys.queue_name("bench")
QUEUE_KEYS: Final = keys.queue_keys(QUEUE)
META: Final = (
    '{"status": "SUCCESS", "result": {"x":1}, "traceback": null, "children": [], '
    '"date_done": "2026-01-01T00:00:00.000000+00:00", "task_id": "%s"}'
)


class Bench:
    """Calls on one server, timed by the server."""

    def __init__(self, client: Any, model: ModelConfig) -> None:
        self._client = client
        self._model = model
        for name in ("submit", "claim", "settle"):
            self._client.execute_command(*script(name).load_command())
        # Scripts' own commands are logged too; few of them take this long.
        self._client.config_set("slowlog-log-slower-than", 15)
        self._client.config_set("slowlog-max-len", 10_000)

    def submit(self, count: int) -> Command:
        """A call that enqueues `count` jobs as the API does."""
        now_s = time.time()
        jobs = [
            submission(new_id(), self._model, INPUT, now_s=now_s, result_ttl_s=86400)
            for _ in range(count)
        ]
        return script("submit").call([], 0, *submit_arguments(jobs))

    def claim(self, count: int) -> Command:
        """A call that leases `count` jobs."""
        return script("claim").call(
            QUEUE_KEYS, QUEUE, "bench", "1.0", count, CLAIM_MAX_BYTES, LEASE_US, "bench@host-0",
            keys.TASK_NAME, 86400,
        )  # fmt: skip

    def settle(self, claimed: list[Any]) -> Command:
        """A call that ends what a claim gave."""
        arguments: list[Arg] = [QUEUE]
        for at in range(CLAIM_HEAD, len(claimed), CLAIM_ROW):
            job_id, token = claimed[at + 1].decode(), claimed[at + 2]
            arguments += [job_id, token, "s", META % job_id, len(claimed) // CLAIM_ROW]
            arguments += ["0.123,0.456,0.012,0.345,0.010", "", "", "", ""]
        return script("settle").call(QUEUE_KEYS, *arguments)

    def run(self, commands: Iterable[Command]) -> list[Any]:
        """Send commands one by one; their replies."""
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
        """Microseconds of one call of submit, claim and settle, each on `size` jobs."""
        submit_us, _ = self._timed("submit", [self.submit(size) for _ in range(calls)])
        claim_us, claimed = self._timed("claim", [self.claim(size)] * calls)
        settle_us, _ = self._timed("settle", [self.settle(reply) for reply in claimed])
        return submit_us, claim_us, settle_us

    def used_bytes(self) -> int:
        """Memory that the server has in use."""
        return int(self._client.info("memory")["used_memory"])

    def clear(self) -> None:
        """Empty the server."""
        self._client.flushall(asynchronous=False)


def per_batch_size(bench: Bench, calls: int) -> None:
    """Microseconds per job by batch size, at a depth of `calls` batches."""
    print(f"{'jobs in a call':>14}  {'submit':>8} {'claim':>8} {'settle':>8}   us per job")
    for size in BATCH_SIZES:
        bench.clear()
        row = (took / size for took in bench.way(size, calls))
        print(f"{size:>14}  " + " ".join(f"{us:>8.1f}" for us in row))


def per_depth(bench: Bench, depths: tuple[int, ...], calls: int) -> None:
    """Microseconds per job by the length of the queue, as ratios to the first row."""
    print(f"\n{'queue length':>14}  {'submit':>8} {'claim':>8} {'settle':>8}   ratio to the first")
    size, first = 32, (0.0, 0.0, 0.0)
    bench.clear()
    length = 0
    for depth in depths:
        while length < depth:
            count = min(256, depth - length)
            bench.run([bench.submit(count)])
            length += count
        row = bench.way(size, calls)
        if not first[0]:
            first = row
        ratios = (us / base for us, base in zip(row, first, strict=True))
        print(f"{depth:>14}  " + " ".join(f"{ratio:>8.2f}" for ratio in ratios))


def per_job_bytes(bench: Bench) -> None:
    """Bytes of a fresh server per queued job: message, record and what indexes them."""
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
    options = parser.parse_args()
    depths = DEPTHS[:2] if options.quick else DEPTHS
    calls = 15 if options.quick else 60
    model = ModelConfig(name="bench", handler="echo", max_queue_depth=10_000_000)
    with redis_server(options.flavour) as server, server.client() as client:
        bench = Bench(client, model)
        print(f"{options.flavour}, input {INPUT.decode()}")
        per_batch_size(bench, calls)
        per_depth(bench, depths, calls)
    with redis_server(options.flavour) as server, server.client() as client:
        per_job_bytes(Bench(client, model))


if __name__ == "__main__":
    main()
