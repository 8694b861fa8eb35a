"""What a job costs one Redis as API processes and workers are added.

    python -m benchmarks.redis.scaling [--write]

All processes share one machine, so the rates say nothing about a larger one. What a job costs the
main thread of Redis does, as this thread is the limit of one Redis. *Calls* are those of scripts,
each for one job or many. In the second table Redis is stopped for most of the time, so that it is
the limit although the others have few cores. The last one shows what idle processes ask of Redis.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any, Final, Generic, TypeVar

from benchmarks.common.http_load import WAIT, spread_load
from benchmarks.common.inputs import BODY
from benchmarks.common.systems import DURABLE, Cpu, answers, as_embedded, process
from benchmarks.common.tables import Table, write_tables
from benchmarks.redis.slowed import slowed
from headrace.server.ports import free_port
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models

T = TypeVar("T")

DOC: Final = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
#: Keep-alive connections of clients to each API process.
CONNECTIONS: Final = 16
#: Redis runs for one millisecond of so many.
SLOWED: Final = (1, 5, 17)
IO_THREADS: Final = (1, 2, 4)


@dataclass
class Usage:
    """What Redis has done, by its own account: seconds of CPU, and counts.

    Attributes:
        kernel_s: the part of `main_s` in the kernel, which mostly reads and writes sockets.
        calls: those of scripts.
        commands: with those that scripts run.
    """

    main_s: float
    kernel_s: float
    all_s: float
    calls: int
    commands: int
    bytes_in: int
    bytes_out: int

    @classmethod
    def read(cls, client: Any) -> Usage:
        """Return everything since the server started."""
        info = client.info("everything")
        return cls(
            main_s=info["used_cpu_sys_main_thread"] + info["used_cpu_user_main_thread"],
            kernel_s=info["used_cpu_sys_main_thread"],
            all_s=info["used_cpu_sys"] + info["used_cpu_user"],
            calls=info["cmdstat_evalsha"]["calls"],
            commands=sum(of["calls"] for name, of in info.items() if name.startswith("cmdstat_")),
            bytes_in=info["total_net_input_bytes"],
            bytes_out=info["total_net_output_bytes"],
        )

    def since(self, before: Usage) -> Usage:
        """Return the difference."""
        names = [field.name for field in fields(self)]
        return Usage(*(getattr(self, name) - getattr(before, name) for name in names))


@dataclass
class Process(Generic[T]):
    """A process that was started, what is known of it, and how it ends."""

    known: T
    stack: ExitStack


@dataclass(kw_only=True)
class Row:
    """One load: `cpu_us` is microseconds of CPU for a job by process."""

    apis: int
    workers: int
    connections: int
    jobs: int
    rate: float
    cpu_us: dict[str, float]
    redis: Usage

    @property
    def redis_us(self) -> float:
        """The CPU time of Redis for a job."""
        return self.redis.all_s / self.jobs * 1e6

    @property
    def main_us(self) -> float:
        """That of its main thread."""
        return self.redis.main_s / self.jobs * 1e6

    @property
    def kernel_us(self) -> float:
        """The part of that in the kernel."""
        return self.redis.kernel_s / self.jobs * 1e6

    @property
    def calls(self) -> float:
        """How many calls of scripts a job takes; less than one where jobs share calls."""
        return self.redis.calls / self.jobs


@dataclass(frozen=True)
class Plan:
    """The most processes, and how long and how often each load and each idle time is measured."""

    apis: int
    workers: int
    seconds: float
    rounds: int


class Site:
    """One Redis, and the API processes and workers that a row asks for."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server = server
        self.redis: Any = server.client()
        self._folder = folder
        self._models = write_models(folder, echo={"handler": "echo", "max_queue_depth": 1_000_000})
        self._apis: list[Process[tuple[int, str]]] = []
        self._workers: list[Process[Worker]] = []

    def close(self) -> None:
        """End all processes."""
        self.scale(0, 0)
        self.redis.close()

    def scale(self, apis: int, workers: int) -> None:
        """Start and end processes until there are as many as this; return when they are ready."""
        while len(self._apis) > apis:
            self._apis.pop().stack.close()
        while len(self._workers) > workers:
            self._workers.pop().stack.close()
        new_apis = range(len(self._apis), apis)
        new_workers = range(len(self._workers), workers)
        for number in new_apis:
            self._start_api(number)
        for number in new_workers:
            stack = ExitStack()
            worker = stack.enter_context(
                celery_worker(
                    self.server.url, self._models, self._folder, arguments=(),
                    node=f"w{number}@bench",
                )
            )  # fmt: skip
            self._workers.append(Process(worker, stack))
        for number in new_workers:
            self._workers[number].known.wait_ready("echo", timeout_s=120)
        for number in new_apis:
            _, url = self._apis[number].known
            wait_until(partial(answers, url + "/live"), "the API responds", timeout_s=120)

    def _start_api(self, number: int) -> None:
        port, stack = free_port(), ExitStack()
        command = [sys.executable, "-m", "api"]
        environ = {**self.environ, "HEADRACE_PORT": str(port)}
        api = stack.enter_context(process(command, self._folder / f"api{number}.log", **environ))
        self._apis.append(Process((api.pid, f"http://127.0.0.1:{port}"), stack))

    @property
    def apis(self) -> list[tuple[int, str]]:
        """The process id and the address of each API process."""
        return [api.known for api in self._apis]

    @property
    def environ(self) -> dict[str, str]:
        """The settings of all processes."""
        return {"HEADRACE_REDIS_URL": self.server.url, "HEADRACE_MODELS_FILE": str(self._models)}

    def load(self, connections: int, seconds: float) -> Row:
        """Submit and wait in a closed loop, through all API processes."""
        pids, urls = zip(*self.apis, strict=True)
        targets = [f"{url}/api/v1/models/echo/jobs" for url in urls]
        workers = [worker.known for worker in self._workers]
        spread_load(targets, BODY, connections, seconds / 4, WAIT)
        cpu = Cpu({
            "api": list(pids),
            "worker": [worker.pid for worker in workers],
            "model": [pid for worker in workers for pid in worker.model_pids()],
        })  # fmt: skip
        before = Usage.read(self.redis)
        cpu.start()
        load = spread_load(targets, BODY, connections, seconds, WAIT)
        spent = cpu.per_1000(load.requests)
        used = Usage.read(self.redis).since(before)
        if load.bad:
            raise RuntimeError(f"requests failed: {load}")
        return Row(
            apis=len(self._apis), workers=len(workers), connections=connections,
            jobs=load.requests, rate=load.rate,
            cpu_us={name: seconds * 1000 for name, seconds in spent.items()}, redis=used,
        )  # fmt: skip

    def idle(self, plan: Plan) -> Usage:
        """Return what Redis does in a second without jobs, in the quietest of a few times."""
        found = []
        for _ in range(plan.rounds):
            before = Usage.read(self.redis)
            time.sleep(plan.seconds)
            found.append(Usage.read(self.redis).since(before))
        used = min(found, key=lambda one: one.main_s)
        return Usage(*(getattr(used, field.name) / plan.seconds for field in fields(used)))


@contextmanager
def site() -> Iterator[Site]:
    """Run Redis as `headrace up` does, and no other process yet."""
    with (
        tempfile.TemporaryDirectory() as name,
        redis_server(*DURABLE, environ=as_embedded()) as server,
    ):
        running = Site(server, Path(name))
        try:
            yield running
        finally:
            running.close()


def add_load(table: Table, row: Row) -> None:
    """Add a row to the first table."""
    jobs = row.jobs
    table.add(
        f"{row.apis}", f"{row.workers}", f"{row.connections}", f"{row.rate:,.0f}",
        *(f"{row.cpu_us[name]:.0f}" for name in ("api", "worker", "model")),
        f"{row.main_us:.0f}, {row.kernel_us:.0f}", f"{row.calls:.2f}",
        f"{row.redis.bytes_in / jobs:,.0f}, {row.redis.bytes_out / jobs:,.0f}",
        f"{1e6 / row.main_us:,.0f}",
    )  # fmt: skip


def add_idle(
    table: Table, name: str, used: Usage, over: Usage | None = None, count: int = 1
) -> None:
    """Add a row to the last table: a second of `count` processes more than `over`."""
    more = used if over is None else used.since(over)
    table.add(
        name, f"{more.calls / count:.1f}", f"{more.commands / count:.0f}",
        f"{more.bytes_in / count:,.0f}, {more.bytes_out / count:,.0f}",
        f"{more.main_s / count * 1e6:,.0f}",
    )  # fmt: skip


def least(running: Site, connections: int, plan: Plan) -> Row:
    """Return the load in which Redis took the least CPU for a job, of a few.

    Other programs on the same cores only add to it.
    """
    loads = (running.load(connections, plan.seconds) for _ in range(plan.rounds))
    return min(loads, key=lambda row: row.main_us)


def measure(running: Site, plan: Plan) -> tuple[list[Table], str]:
    """Return the tables (loads, slow Redis, io-threads, idle), and what a job and a call take."""
    loads = Table(
        "API processes", "workers", "connections", "jobs/s", "API, µs of CPU a job", "workers",
        "model processes", "Redis' main thread, of it kernel", "calls a job",
        "bytes to and from Redis", "jobs/s of a whole core",
    )  # fmt: skip
    rows = []

    def load(apis: int, workers: int, connections: int) -> None:
        running.scale(apis, workers)
        rows.append(least(running, connections, plan))
        add_load(loads, rows[-1])

    for apis in _doubled(plan.apis):
        load(apis, 1, CONNECTIONS * apis)
    connections = CONNECTIONS * plan.apis
    for workers in _doubled(plan.workers)[1:]:
        load(plan.apis, workers, connections)
    assert running.server.process is not None
    limit = Table("Redis runs", "jobs/s", "its main thread, µs of CPU a job", "calls a job")
    for times in SLOWED:
        with slowed(running.server.process.pid, times):
            row = least(running, connections, plan)
        share = "always" if times == 1 else f"1 ms of {times}"
        limit.add(share, f"{row.rate:,.0f}", f"{row.main_us:.0f}", f"{row.calls:.2f}")
    threads = Table("io-threads", "jobs/s", "Redis, µs of CPU a job", "its main thread")
    for count in IO_THREADS:
        running.redis.config_set("io-threads", count)
        row = least(running, connections, plan)
        threads.add(f"{count}", f"{row.rate:,.0f}", f"{row.redis_us:.0f}", f"{row.main_us:.0f}")
    running.redis.config_set("io-threads", 1)
    all_idle = running.idle(plan)
    running.scale(1, plan.workers)
    workers_idle = running.idle(plan)
    load(1, plan.workers, 1)
    load(1, 1, 1)
    few_idle = running.idle(plan)
    idle = Table(
        "without jobs", "calls/s", "commands/s", "bytes/s to and from Redis", "main thread, µs/s"
    )
    add_idle(idle, "one API process, one worker", few_idle)
    add_idle(idle, "each further API process", all_idle, workers_idle, max(1, plan.apis - 1))
    add_idle(idle, "each further worker", workers_idle, few_idle, max(1, plan.workers - 1))
    slope, constant = linear_regression([row.calls for row in rows], [row.main_us for row in rows])
    fit = f"of the main thread, a job takes {constant:.0f} µs and a call {slope:.0f} µs"
    return [loads, limit, threads, idle], fit


def _doubled(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def main() -> None:
    """Print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into docs/scaling.md")
    parser.add_argument("--seconds", type=float, default=2, help="length of each load")
    parser.add_argument("--apis", type=int, default=16, help="the most API processes")
    parser.add_argument("--workers", type=int, default=8, help="the most workers")
    parser.add_argument("--rounds", type=int, default=3, help="loads of which the best counts")
    options = parser.parse_args()
    with site() as running:
        plan = Plan(options.apis, options.workers, options.seconds, options.rounds)
        tables, fit = measure(running, plan)
    description = (
        f"`echo`, `appendfsync everysec`, load {os.getloadavg()[1]:.1f}; the best of "
        f"{options.rounds} loads of {options.seconds:g} s; {fit}."
    )
    print(description)
    if options.write:
        write_tables("scaling", description, *tables, doc=DOC)


if __name__ == "__main__":
    main()
