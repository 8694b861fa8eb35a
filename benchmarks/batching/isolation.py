"""The cost of one bad input for the 31 others.

    python -m benchmarks.batching.isolation [--write]

A batch of 32 jobs of which one raises is run in turn with a batch of 32 good ones. Measured are the
time from the submit to the last end, by the records, the calls of the handler, and their inputs in
all. One handler takes no time, which leaves the overhead; one sleeps as long as a device would
take.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common.tables import Table, write_tables
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

SIZE: Final = 32
BAD_AT: Final = 20
#: Seconds per call and per input.
COSTS: Final = {"free": (0.0, 0.0), "costly": (0.010, 0.001)}


@dataclass(frozen=True)
class Round:
    """One batch: milliseconds to the last end, calls of the handler, and their inputs."""

    ms: float
    calls: int
    inputs: int


@dataclass
class Site:
    """A worker whose models log their calls."""

    client: Client
    folder: Path

    def log(self, model: str) -> Path:
        return self.folder / f"{model}.log"

    def run(self, model: str, *, bad: bool) -> Round:
        """Run one batch, with or without a bad input.

        Raises:
            RuntimeError: other jobs failed than expected.
        """
        self.log(model).write_text("")
        inputs: list[dict[str, Any]] = [{"n": number} for number in range(SIZE)]
        if bad:
            inputs[BAD_AT]["do"] = "raise"
        jobs = self.client.wait(*self.client.submit(model, *inputs))
        failed = [job.id for job in jobs if job.result_json is None]
        if len(failed) != bad:
            raise RuntimeError(f"{len(failed)} of {SIZE} jobs failed instead of {int(bad)}")
        # A line is an input of a call, with the number of inputs of the call.
        sizes = [int(line.split()[1]) for line in self.log(model).read_text().splitlines()]
        return Round(
            (max(job.ended_us for job in jobs) - jobs[0].created_us) / 1000,
            round(sum(1 / size for size in sizes)),
            len(sizes),
        )


@contextmanager
def site() -> Iterator[Site]:
    """Run a worker with a model of each cost."""
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        folder = Path(name)
        models = {
            model: {
                "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky",
                "max_batch_size": SIZE,
                "options": {"log": str(folder / f"{model}.log"), "pause_s": call, "item_s": item},
            }
            for model, (call, item) in COSTS.items()
        }
        path = write_models(folder, **models)
        with (
            celery_worker(server.url, path, folder, arguments=()) as worker,
            Client(server.url, path) as client,
        ):
            worker.wait_ready(*models)
            running = Site(client, folder)
            for model in models:
                running.run(model, bad=False)
            yield running


def measure(running: Site, model: str, rounds: int) -> tuple[list[Round], list[Round]]:
    """Run good batches and batches with a bad input in turn."""
    pairs = [(running.run(model, bad=False), running.run(model, bad=True)) for _ in range(rounds)]
    return [good for good, _ in pairs], [bad for _, bad in pairs]


def _median(rounds: list[Round], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in rounds))


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    table = Table(
        f"{SIZE} jobs, the handler", "good, ms", "one bad, ms", "ratio", "calls", "inputs in them"
    )
    with site() as running:
        for model, (call_s, item_s) in COSTS.items():
            good, bad = measure(running, model, options.rounds)
            ratio = statistics.median(b.ms / a.ms for a, b in zip(good, bad, strict=True))
            cost = (
                f"takes {call_s * 1000:g} + {item_s * 1000:g} n ms" if call_s else "takes no time"
            )
            table.add(
                cost, f"{_median(good, 'ms'):.1f}", f"{_median(bad, 'ms'):.1f}", f"{ratio:.2f}",
                f"{_median(good, 'calls'):.0f}, {_median(bad, 'calls'):.0f}",
                f"{_median(good, 'inputs'):.0f}, {_median(bad, 'inputs'):.0f}",
            )  # fmt: skip
    if options.write:
        write_tables("isolation", f"medians of {options.rounds} pairs.", table)


if __name__ == "__main__":
    main()
