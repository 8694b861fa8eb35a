"""Closed loops beside mosec and TorchServe.

    python -m benchmarks.batching.peers [--mosec PYTHON] [--torchserve PYTHON] [--write]

`PYTHON` is the interpreter of a virtual environment that has mosec, or torchserve and
torch-model-archiver (which need Java). A peer without one is left out. All servers run the same
handler, which sleeps as long as a device would take, with batches of at most 8. A batch takes the
same time at each size, or a time for each item as a model does that fills the device alone. One
server runs at a time. Of several rounds, the medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.batching.sleeping_handler import Overlapped, Sleeping
from benchmarks.common.http_load import WAIT, Load, generator, run_load
from benchmarks.common.systems import ROOT, Headrace, process
from benchmarks.common.tables import Table, write_tables
from headrace.server.ports import free_port
from tests.harness.wait import wait_until

SIZE: Final = 8
CLIENTS: Final = (1, 2, 4, 8, 10, 12, 16, 32, 64)
BATCH_MS: Final = (20.0, 7.0)
ITEM_MS: Final = (10.0,)
#: How long the peers collect a batch: mosec's default of this figure, and TorchServe's benchmark's.
MOSEC_WAIT_MS: Final = 5
TORCHSERVE_DELAY_MS: Final = 10
#: Headrace's default.
DELAY_MS: Final = 10.0
BODY: Final = b'{"x": 1}'
START_S: Final = 300.0

MOSEC_APP: Final = """
import time
from mosec import Server, Worker
class Sleeping(Worker):
    def forward(self, data):
        time.sleep({pause_s} + {item_s} * len(data))
        return data
if __name__ == "__main__":
    server = Server()
    server.append_worker(Sleeping, num=1, max_batch_size={size}, max_wait_time={wait_ms})
    server.run()
"""

TORCHSERVE_HANDLER: Final = """
import json, time
def handle(data, context):
    if data is None:
        return None
    time.sleep({pause_s} + {item_s} * len(data))
    rows = [row.get("body") or row.get("data") for row in data]
    return [row if isinstance(row, dict) else json.loads(bytes(row)) for row in rows]
"""

QUIET_LOG: Final = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders><Console name="out" target="SYSTEM_OUT"/></Appenders>
  <Loggers><Root level="error"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class Device(NamedTuple):
    """How long a batch takes: `batch_ms`, and `item_ms` for each item."""

    batch_ms: float
    item_ms: float

    @property
    def options(self) -> dict[str, float]:
        """The options of the handlers, in seconds."""
        return {"pause_s": self.batch_ms / 1000, "item_s": self.item_ms / 1000}

    @property
    def name(self) -> str:
        """How long a batch takes, in words."""
        return f"{self.item_ms:g} ms an item" if self.item_ms else f"{self.batch_ms:g} ms a batch"


#: Runs a server with a device, and gives its URL and the `Prefer` header.
Running = Callable[[Device], AbstractContextManager[tuple[str, str]]]


@contextmanager
def headrace(
    device: Device, handler: type[Sleeping], delay_ms: float = DELAY_MS
) -> Iterator[tuple[str, str]]:
    """Run Headrace with one model."""
    model = {
        "handler": f"{ROOT / 'benchmarks/batching/sleeping_handler.py'}:{handler.__name__}",
        "options": device.options,
        "max_batch_size": SIZE,
        "max_batch_delay_ms": delay_ms,
    }
    with Headrace(events=False, models={"device": model}) as server:
        yield f"{server.url}/api/v1/models/device/jobs", WAIT


@contextmanager
def mosec(device: Device, python: str) -> Iterator[tuple[str, str]]:
    """Run mosec with one worker."""
    with tempfile.TemporaryDirectory() as name:
        app, port = Path(name) / "app.py", free_port()
        app.write_text(_mosec_app(device))
        command = [
            python, str(app), "--address", "127.0.0.1", "--port", str(port),
            "--timeout", "120000", "--log-level", "warning",
        ]  # fmt: skip
        with process(command, Path(name) / "log", PYTHONPATH=""):
            url = f"http://127.0.0.1:{port}/inference"
            _wait_ready(url)
            yield url, ""


def _mosec_app(device: Device) -> str:
    return MOSEC_APP.format(**device.options, size=SIZE, wait_ms=MOSEC_WAIT_MS)


@contextmanager
def torchserve(device: Device, python: str) -> Iterator[tuple[str, str]]:
    """Run TorchServe with one worker."""
    tools = Path(python).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "handler.py").write_text(TORCHSERVE_HANDLER.format(**device.options))
        (folder / "log.xml").write_text(QUIET_LOG)
        subprocess.run(
            [tools / "torch-model-archiver", "--model-name", "m", "--version", "1.0",
             "--handler", folder / "handler.py", "--export-path", folder],
            check=True, env=_environ(tools),
        )  # fmt: skip
        ports = [free_port() for _ in range(3)]
        version = {
            "defaultVersion": True, "marName": "m.mar", "minWorkers": 1, "maxWorkers": 1,
            "batchSize": SIZE, "maxBatchDelay": TORCHSERVE_DELAY_MS, "responseTimeout": 120,
        }  # fmt: skip
        addresses = zip(("inference", "management", "metrics"), ports, strict=True)
        lines = [f"{kind}_address=http://127.0.0.1:{port}" for kind, port in addresses]
        lines += [f"grpc_{kind}_port={free_port()}" for kind in ("inference", "management")]
        lines += [
            "job_queue_size=1000", "disable_system_metrics=true", "load_models=m.mar",
            "models=" + json.dumps({"m": {"1.0": version}}),
        ]  # fmt: skip
        (folder / "config.properties").write_text("\n".join(lines))
        command = [
            str(tools / "torchserve"), "--foreground", "--ncs", "--disable-token-auth",
            "--model-store", name, "--ts-config", str(folder / "config.properties"),
            "--log-config", str(folder / "log.xml"),
        ]  # fmt: skip
        environ = {
            **_environ(tools),
            "TMPDIR": name,
            "LOG_LOCATION": name,
            "METRICS_LOCATION": name,
        }
        with process(command, folder / "log", **environ):
            url = f"http://127.0.0.1:{ports[0]}/predictions/m"
            _wait_ready(url)
            yield url, ""
            # The end of the launcher alone would leave its Java process behind.
            subprocess.run([tools / "torchserve", "--stop"], check=True, env=environ)


def _environ(tools: Path) -> dict[str, str]:
    return {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": ""}


def _wait_ready(url: str) -> None:
    def answers() -> bool:
        try:
            load = run_load(url, BODY, 1, 0.1)
        except (OSError, RuntimeError, subprocess.SubprocessError):
            return False
        return load.requests > load.bad

    wait_until(answers, f"{url} answers", timeout_s=START_S)


def servers(
    mosec_python: str, torchserve_python: str, delay_ms: float = DELAY_MS
) -> dict[str, Running]:
    """Return how each server runs."""
    running: dict[str, Running] = {
        "Headrace": partial(headrace, handler=Sleeping, delay_ms=delay_ms),
        "Headrace, overlap": partial(headrace, handler=Overlapped, delay_ms=delay_ms),
    }
    if mosec_python:
        running["mosec"] = partial(mosec, python=mosec_python)
    if torchserve_python:
        running["TorchServe"] = partial(torchserve, python=torchserve_python)
    return running


def measure(run: Running, device: Device, clients: list[int], seconds: float) -> dict[int, Load]:
    """Return the load of each number of clients; the server is warm before the first."""
    with run(device) as (url, prefer):
        run_load(url, BODY, max(clients), min(3.0, seconds), prefer)
        loads = {}
        for count in clients:
            # The callers of the load before are gone, and the batches change their sizes.
            run_load(url, BODY, count, min(2.0, seconds), prefer)
            loads[count] = run_load(url, BODY, count, seconds, prefer)
    return loads


def median(loads: list[Load]) -> Load:
    """Return the medians of the rates and times; the others are sums."""
    return Load(
        statistics.median(load.rate for load in loads),
        statistics.median(load.p50_ms for load in loads),
        statistics.median(load.p99_ms for load in loads),
        sum(load.bad for load in loads),
        sum(load.requests for load in loads),
    )


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mosec", default="", help="the Python that has mosec")
    parser.add_argument("--torchserve", default="", help="the Python that has torchserve")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--batch-ms", type=float, nargs="+", default=BATCH_MS)
    parser.add_argument("--item-ms", type=float, nargs="*", default=ITEM_MS)
    parser.add_argument("--seconds", type=float, default=6, help="of a load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=DELAY_MS, help="of Headrace")
    parser.add_argument("--only", nargs="+", default=(), help="the names of servers")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    running = servers(options.mosec, options.torchserve, options.delay_ms)
    running = {name: run for name, run in running.items() if name in (options.only or running)}
    tables = []
    devices = [Device(ms, 0.0) for ms in options.batch_ms]
    devices += [Device(0.0, ms) for ms in options.item_ms]
    for device in devices:
        rounds: dict[str, list[dict[int, Load]]] = {name: [] for name in running}
        for number in range(options.rounds):
            for name in list(running)[:: -1 if number % 2 else 1]:
                loads = measure(running[name], device, options.clients, options.seconds)
                rounds[name].append(loads)
        heads = [f"{name}: requests/s, p50, p99 ms" for name in running]
        table = Table(f"{device.name}; clients", *heads)
        for count in options.clients:
            medians = [median([loads[count] for loads in rounds[name]]) for name in running]
            bad = sum(load.bad for load in medians)
            if bad:
                raise RuntimeError(f"{bad} requests of {count} clients failed")
            cells = [f"{load.rate:.0f}, {load.p50_ms:.1f}, {load.p99_ms:.1f}" for load in medians]
            table.add(str(count), *cells)
        tables.append(table)
    if options.write:
        description = (
            f"at most {SIZE} in a batch; mosec collects for {MOSEC_WAIT_MS} ms, TorchServe for "
            f"{TORCHSERVE_DELAY_MS} ms, Headrace for {options.delay_ms:g} ms; "
            f"{options.rounds} round{'s' * (options.rounds > 1)} of "
            f"{options.seconds:g} s; load by {generator()}."
        )
        write_tables("policy_peers", description, *tables)


if __name__ == "__main__":
    main()
