"""TorchServe's URLs on both: `python -m benchmarks.torchserve.real_torchserve [--write]`.

It needs `make torchserve`. Both servers load the same archive, which returns its input, with
batches of 1, 8 and 32. They receive the same body on 64 keep-alive connections, in turn, as does
Headrace's own route. The CPU is that of all processes of a server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.common.http_load import WAIT, Load, generator, run_load
from benchmarks.common.inputs import BODY
from benchmarks.common.systems import Cpu
from benchmarks.common.tables import Table, write_tables
from tests.extensions.torchserve.compat.archives import build_all
from tests.extensions.torchserve.compat.servers import ARCHIVER, Ask, Server, missing, ours, theirs

CONNECTIONS: Final = 64
BATCHES: Final = (1, 8, 32)
#: TorchServe holds a batch for so long, whatever else is there.
DELAY_MS: Final = 10
#: Time for both to end their requests, so that the CPU counts for the right one.
QUIET_S: Final = 0.5
#: No server logs each request.
QUIET_LOG: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%m%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="ACCESS_LOG" level="off"/>
    <Logger name="TS_METRICS" level="off"/>
    <Logger name="MODEL_METRICS" level="off"/>
    <Logger name="MODEL_LOG" level="off"/>
    <Root level="warn"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class Target:
    """Where a load goes.

    Attributes:
        url: the URL of the requests.
        cpu: the CPU of the server's processes.
    """

    url: str
    cpu: Cpu
    prefer: str = ""


@dataclass(frozen=True)
class Served:
    """A load, and the CPU seconds per 1,000 requests."""

    load: Load
    cpu_s: float


def model(batch: int) -> str:
    """Return the name of the model with batches of this size."""
    return f"echo{batch}"


def configuration(batches: Sequence[int]) -> dict[str, str]:
    """Return the properties of both servers."""
    models = {
        model(batch): {
            "1.0": {
                "defaultVersion": True,
                "marName": "echo.mar",
                "minWorkers": 1,
                "maxWorkers": 1,
                "batchSize": batch,
                "maxBatchDelay": DELAY_MS,
                "responseTimeout": 120,
            }
        }
        for batch in batches
    }
    return {
        "disable_system_metrics": "true",
        "job_queue_size": "1000",
        "models": json.dumps(models, separators=(",", ":")),
    }


@contextmanager
def both(batches: Sequence[int] = BATCHES) -> Iterator[dict[str, Server]]:
    """Start both servers with a model per size of batch.

    Raises:
        RuntimeError: TorchServe or Java is not installed.
    """
    if missing():
        raise RuntimeError(missing())
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        build_all(store, ["echo"], ARCHIVER)
        quiet = store / "quiet.xml"
        quiet.write_text(QUIET_LOG)
        flags = ("--disable-token-auth", "--ncs", "--log-config", str(quiet))
        models = [f"{model(batch)}=echo.mar" for batch in batches]
        config = configuration(batches)
        with (
            ours(store, models, config, *flags) as own,
            theirs(store, models, {**config, "vmargs": "-Xmx1g"}, *flags) as real,
        ):
            for server in (own, real):
                for batch in batches:
                    ready = Ask("POST", f"/predictions/{model(batch)}", BODY, until=200)
                    if server.ask(ready)[0].status != 200:
                        raise RuntimeError(f"{model(batch)} does not answer: {server.log[-2000:]}")
            yield {"Headrace": own, "TorchServe": real}


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def targets(servers: dict[str, Server], batch: int) -> dict[str, Target]:
    """Return the targets for one size of batch: TorchServe's URL on both, and Headrace's route."""
    cpu = {name: Cpu({"all": tree(server.process.pid)}) for name, server in servers.items()}
    found = {
        name: Target(f"{server.url()}/predictions/{model(batch)}", cpu[name])
        for name, server in servers.items()
    }
    native = f"{servers['Headrace'].url()}/api/v1/models/{model(batch)}/jobs"
    found["its own route"] = Target(native, cpu["Headrace"], WAIT)
    return found


def serve(target: Target, seconds: float, connections: int = CONNECTIONS) -> Served:
    """Run one load.

    Raises:
        RuntimeError: requests failed.
    """
    target.cpu.start()
    load = run_load(target.url, BODY, connections, seconds, target.prefer)
    if load.bad or not load.requests:
        raise RuntimeError(f"{load.bad} of {load.requests} requests to {target.url} failed")
    time.sleep(QUIET_S)
    return Served(load, target.cpu.per_1000(load.requests)["all"])


def compare(sides: dict[str, Target], seconds: float, rounds: int) -> dict[str, list[Served]]:
    """Run loads on all in turn; the order alternates."""
    found: dict[str, list[Served]] = {name: [] for name in sides}
    for target in sides.values():
        run_load(target.url, BODY, CONNECTIONS, min(seconds, 2), target.prefer)
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            found[name].append(serve(sides[name], seconds))
    return found


def ratio(found: dict[str, list[Served]], one: str, other: str, part: str) -> str:
    """Return the median of the pairs' ratios."""
    pairs = zip(found[one], found[other], strict=True)
    return f"{statistics.median(value(a, part) / value(b, part) for a, b in pairs):.2f}"


def value(served: Served, part: str) -> float:
    """Return one number of a load."""
    return served.cpu_s if part == "cpu_s" else float(getattr(served.load, part))


def add_rows(table: Table, batch: int, found: dict[str, list[Served]]) -> None:
    """Add the medians of one size of batch."""
    for name, part, digits in (
        ("requests a second", "rate", 0),
        ("p50, ms", "p50_ms", 1),
        ("p99, ms", "p99_ms", 1),
        ("CPU s per 1,000", "cpu_s", 3),
    ):
        medians = [
            f"{statistics.median(value(one, part) for one in found[side]):,.{digits}f}"
            for side in ("Headrace", "TorchServe", "its own route")
        ]
        table.add(
            f"batch {batch}: {name}",
            *medians[:2],
            ratio(found, "Headrace", "TorchServe", part),
            medians[2],
            ratio(found, "Headrace", "its own route", part),
        )


def measure(
    servers: dict[str, Server], batches: Sequence[int], seconds: float, rounds: int
) -> Table:
    """Measure all sizes of batch."""
    table = Table(
        "64 connections",
        "Headrace",
        "TorchServe",
        "Headrace's to TorchServe's",
        "Headrace's own route",
        "TorchServe's URL to the own route",
    )
    for batch in batches:
        sides = targets(servers, batch)
        add_rows(table, batch, compare(sides, seconds, rounds))
        alone = {name: [serve(target, min(seconds, 3), 1)] for name, target in sides.items()}
        p50 = {name: f"{one.load.p50_ms:.2f}" for name, (one,) in alone.items()}
        table.add(
            f"batch {batch}: one connection, p50, ms",
            p50["Headrace"],
            p50["TorchServe"],
            ratio(alone, "Headrace", "TorchServe", "p50_ms"),
            p50["its own route"],
            ratio(alone, "Headrace", "its own route", "p50_ms"),
        )
    return table


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--seconds", type=float, default=6, help="length of each load")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each")
    options = parser.parse_args()
    with both() as servers:
        table = measure(servers, BATCHES, options.seconds, options.rounds)
    if options.write:
        what = f"load by {generator()}; {options.rounds} loads of {options.seconds:g} s each."
        write_tables("torchserve", what, table)


if __name__ == "__main__":
    main()
