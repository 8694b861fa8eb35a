"""Predictions on TorchServe's URLs and on the native route.

    python -m benchmarks.torchserve.native_route

The same model takes the same body on both, in turn. The ratio is that of the rates of a pair. The
CPU is that of the API's process for each request, because other load on the machine changes it less
than the rate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.common.http_load import WAIT, Load, generator, run_load
from benchmarks.common.inputs import BODY
from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table
from extensions.torchserve.config.settings import TorchServeConfig, write_config
from tests.extensions.torchserve.harness.archives import write_archive

CONNECTIONS: Final = 64
#: The models: a handler of Headrace, and one of an archive, which gets all headers.
MODELS: Final = ("echo", "archive")
HANDLER: Final = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""


class Pair(NamedTuple):
    """The loads of one pair, and the CPU seconds of the API per 1,000 requests."""

    native: Load
    ours: Load
    native_cpu_s: float
    cpu_s: float

    @property
    def ratio(self) -> float:
        """The rate on TorchServe's URL, as a part of that on the native route."""
        return self.ours.rate / self.native.rate


@contextmanager
def stack() -> Iterator[Headrace]:
    """Run a server with both kinds of URLs and models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = write_archive(folder / "archive", "handler.py", {"handler.py": HANDLER})
        config = TorchServeConfig(disable_token_authorization=True)
        write_config(folder / "config.properties", config)
        model = {"source": str(archive), "max_queue_depth": 10_000_000, "max_batch_size": 32}
        environ = {"HEADRACE_TORCHSERVE": str(folder / "config.properties")}
        with Headrace(events=False, models={"archive": model}, environ=environ) as running:
            yield running


def measure(running: Headrace, model: str, seconds: float, rounds: int) -> list[Pair]:
    """Return the loads of a model on both kinds of URLs, in pairs.

    Raises:
        RuntimeError: requests failed.
    """
    native = (f"{running.url}/api/v1/models/{model}/jobs", WAIT)
    ours = (f"{running.url}/predictions/{model}", "")
    pairs = []
    for number in range(-1, rounds):
        found: list[tuple[Load, float]] = []
        for url, prefer in (native, ours) if number % 2 else (ours, native):
            cpu = running.cpu()
            cpu.start()
            load = run_load(url, BODY, CONNECTIONS, seconds, prefer)
            if load.bad or not load.requests:
                raise RuntimeError(f"{load.bad} of {load.requests} requests to {url} failed")
            found.append((load, cpu.per_1000(load.requests)["api"]))
        first, second = found if number % 2 else found[::-1]
        if number >= 0:  # the first pair warms up
            pairs.append(Pair(first[0], second[0], first[1], second[1]))
    return pairs


def main() -> None:
    """Measure both models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of each load")
    parser.add_argument("--rounds", type=int, default=9, help="pairs")
    arguments = parser.parse_args()
    print(f"{CONNECTIONS} connections, {generator()}, {arguments.rounds} pairs")
    table = Table(
        "model", "native, 1/s", "TorchServe's, 1/s", "ratio", "native CPU s", "CPU s per 1,000"
    )
    with stack() as running:
        for model in MODELS:
            pairs = measure(running, model, arguments.seconds, arguments.rounds)
            table.add(
                model,
                f"{statistics.median(pair.native.rate for pair in pairs):.0f}",
                f"{statistics.median(pair.ours.rate for pair in pairs):.0f}",
                f"{statistics.median(pair.ratio for pair in pairs):.3f}",
                f"{statistics.median(pair.native_cpu_s for pair in pairs):.3f}",
                f"{statistics.median(pair.cpu_s for pair in pairs):.3f}",
            )


if __name__ == "__main__":
    main()
