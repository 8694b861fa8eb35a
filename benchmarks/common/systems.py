"""The systems under measurement, as separate processes, and their CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import psutil
import redis

from headrace.server.embedded_redis import EmbeddedServer, find_server
from headrace.server.ports import free_port
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.children import end_child
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

ROOT = Path(__file__).resolve().parents[2]
#: The embedded server, as `headrace up` runs it.
DURABLE = (
    "valkey9", "--appendonly", "yes", "--appendfsync", "everysec", "--latency-tracking", "no",
    "--rdbcompression", "no",
)  # fmt: skip


def as_embedded() -> dict[str, str]:
    """Return the environment that `headrace up` gives to its server."""
    return EmbeddedServer(find_server(), Path(), 0, "").environment


@contextmanager
def process(command: list[str], log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child process with its output in a file; terminate it afterwards."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        )  # fmt: skip
        try:
            yield child
        finally:
            end_child(child, 15)


def answers(url: str, expected: Callable[[int], bool] = lambda status: status < 500) -> bool:
    """Return whether an HTTP server responds at a URL."""
    try:
        return expected(httpx2.get(url, timeout=1, verify=PLAIN).status_code)
    except httpx2.HTTPError:
        return False


@dataclass
class Cpu:
    """CPU seconds by process since `start`, including children that have ended."""

    pids: dict[str, list[int]]
    _before: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        self._before = {name: self._seconds(name) for name in self.pids}

    def per_1000(self, jobs: int) -> dict[str, float]:
        """Return CPU seconds per 1,000 jobs."""
        return {
            name: (self._seconds(name) - before) / jobs * 1000
            for name, before in self._before.items()
        }

    def _seconds(self, name: str) -> float:
        total = 0.0
        for pid in self.pids[name]:
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        return total


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def core_shares(groups: Sequence[Sequence[int]], seconds: float) -> list[float]:
    """Return the CPU time of each group of processes in these seconds, as percentages of a core."""
    before = [sum(map(cpu_s, group)) for group in groups]
    began = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - began
    return [
        (sum(map(cpu_s, group)) - spent) / took * 100
        for group, spent in zip(groups, before, strict=True)
    ]


class Headrace:
    """Redis with AOF everysec, one API process, one worker with `echo`.

    Args:
        events: whether the worker sends Celery's task events.
        environ: further settings of the API and the worker.
    """

    def __init__(
        self,
        *,
        events: bool,
        models: Mapping[str, Mapping[str, Any]] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.events = events
        self._models = models or {}
        self._environ = dict(environ or {})
        self._stack = ExitStack()

    def __enter__(self) -> Headrace:
        try:
            return self._start()
        except BaseException:
            self._stack.close()
            raise

    def _start(self) -> Headrace:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        models = write_models(
            folder,
            echo={"handler": "echo", "max_queue_depth": 10_000_000},
            short={"handler": "echo", "max_queue_depth": 100},
            **self._models,
        )
        self.redis: RedisServer = self._stack.enter_context(
            redis_server(*DURABLE, environ=as_embedded())
        )
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environ = {
            "HEADRACE_REDIS_URL": self.redis.url,
            "HEADRACE_MODELS_FILE": str(models),
            "HEADRACE_PORT": str(port),
            **self._environ,
        }
        self.api = self._stack.enter_context(
            process([sys.executable, "-m", "api"], folder / "api.log", **environ)
        )
        self.worker: Worker = self._stack.enter_context(
            celery_worker(
                self.redis.url,
                models,
                folder,
                arguments=("-E",) if self.events else (),
                environ=self._environ,
            )
        )
        self.client = self._stack.enter_context(Client(self.redis.url, models))
        self.worker.wait_ready("echo", "short", *self._models)
        wait_until(lambda: answers(self.url + "/live"), "the API responds", timeout_s=30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def submit_url(self) -> str:
        return self.url + "/api/v1/models/echo/jobs"

    @property
    def short_url(self) -> str:
        """The URL of submits to a queue of at most 100 jobs."""
        return self.url + "/api/v1/models/short/jobs"

    def cpu(self) -> Cpu:
        """Return the CPU by process: api, redis, worker, model."""
        assert self.redis.process is not None
        return Cpu({
            "api": [self.api.pid],
            "redis": [self.redis.process.pid],
            "worker": [self.worker.pid],
            "model": self.worker.model_pids(),
        })  # fmt: skip

    def idle(self) -> bool:
        """Return whether every job has ended."""
        with self.redis.client() as client:
            return not any(
                client.llen(f"headrace.{model}") or client.zcard(f"hr:lease:headrace.{model}")
                for model in ("echo", "short")
            )


CELERY_APP = """
import os
from celery import Celery
app = Celery("plain", broker=os.environ["URL"], backend=os.environ["URL"])
app.conf.update(worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)
@app.task(name="echo")
def echo(value):
    return value
"""

FASTAPI_APP = """
from fastapi import FastAPI, Request
app = FastAPI()
@app.post("/echo")
async def echo(request: Request) -> dict:
    return await request.json()
"""


@contextmanager
def plain_celery(folder: Path) -> Iterator[tuple[Any, RedisServer, int]]:
    """Run a stock Celery worker (prefork, one child); yield (app, server, worker's pid)."""
    (folder / "plain_app.py").write_text(CELERY_APP)
    with redis_server(*DURABLE, environ=as_embedded()) as server:
        command = [
            sys.executable, "-m", "celery", "-A", "plain_app", "worker", "-c", "1",
            "-l", "WARNING", "--without-gossip", "--without-mingle",
        ]  # fmt: skip
        environ = {"URL": server.url, "PYTHONPATH": f"{folder}:{ROOT}"}
        with process(command, folder / "celery.log", **environ) as worker:
            from celery import Celery

            app = Celery("plain", broker=server.url, backend=server.url, set_as_current=False)
            wait_until(lambda: bool(app.control.ping(timeout=0.5)), "Celery responds", timeout_s=30)
            yield app, server, worker.pid
            app.close()


@contextmanager
def bare_fastapi(folder: Path) -> Iterator[tuple[str, int]]:
    """Run FastAPI on uvicorn with a route that returns its JSON; yield (url, pid)."""
    (folder / "bare_app.py").write_text(FASTAPI_APP)
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "bare_app:app", "--port", str(port),
        "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    with process(command, folder / "bare.log", PYTHONPATH=str(folder)) as server:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url + "/docs"), "FastAPI responds", timeout_s=30)
        yield url + "/echo", server.pid


def backlog_drained(server: RedisServer, queue: str, timeout_s: float = 120) -> float:
    """Wait until a list is empty; return the seconds."""
    started = time.perf_counter()
    with redis.Redis(port=server.port) as client:
        wait_until(lambda: client.llen(queue) == 0, f"{queue} is empty", timeout_s=timeout_s)
    return time.perf_counter() - started
