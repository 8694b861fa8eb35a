"""The system under kills: `headrace up` (two workers, two API processes), on its own Redis."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import redis

from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.server.supervisor.proc import start_time_ticks
from tests.chaos.plan import ALL, BATCH, INLINE_BYTES, MAX_DELIVERIES, Kill, models
from tests.harness.processes.processes import descendants, gone, suspend
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import RunningUp, running_up, write_models
from tests.harness.wait import wait_until

WORKERS = ("cpu0", "cpu1")
APIS = ("api0", "api1")
#: After a kill under `everysec` that much may be missing.
WINDOW_S = 2.5


@dataclass
class System:
    """A running one, and what was killed of it.

    Attributes:
        lost: for each model, the kills that may have cost it what one of its processes held.
        redis_killed: when, by `time.monotonic`.
    """

    server: RedisServer
    up: RunningUp
    fsync: str
    lost: Counter[str] = field(default_factory=Counter)
    redis_killed: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.up.port}"

    def kill(self, kill: Kill) -> str:
        """Carry it out, and say whom it hit."""
        if kill.what == "model":
            return self._kill_model(kill.draw)
        if kill.what == "stop":
            return self._suspend(_one_of(WORKERS, kill.draw))
        names = [
            name
            for what, several in (("worker", WORKERS), ("api", APIS))
            if what in kill.what
            for name in (several if kill.what == ALL else [_one_of(several, kill.draw)])
        ]
        # While Redis is away nobody can give back what a worker held: its leases run out.
        if "redis" in kill.what:
            self.redis_killed.append(time.monotonic())
            self.server.stop(kill=True)
            self.lost.update(BATCH.keys())
        for name in names:
            self._kill_part(name)
        if "redis" in kill.what:
            time.sleep(1.5 * kill.draw)  # how long Redis is away is a part of the schedule
            self.server.start()
        return ", ".join(["redis"] * ("redis" in kill.what) + names)

    def may_be_lost(self, at: float) -> bool:
        """Whether what Redis acknowledged then (`time.monotonic`) may be missing."""
        if self.fsync == "always":
            return False
        return any(0 <= killed - at <= WINDOW_S for killed in self.redis_killed)

    def _running(self, name: str) -> int:
        """The pid of a part, once it runs."""

        def running() -> int:
            pid = int(self.up.record()["pids"].get(name, 0))
            return pid if start_time_ticks(pid) is not None else 0

        return wait_until(running, f"{name} runs", 120)

    def _suspend(self, name: str) -> str:
        """Stop a worker until its leases were reaped; what it settles then must be refused."""
        pid = self._running(name)
        self.lost.update(BATCH.keys())
        suspend(pid)
        try:
            raw: Any = self.server.client()
            with raw as client:
                owner = self._owner_of(client, pid)

                def held() -> list[bytes]:
                    return [
                        job_id
                        for queue in map(keys.queue_name, BATCH)
                        for job_id in client.zrange(keys.lease(queue), 0, -1)
                        if client.hget(keys.job(job_id.decode()), JobField.OWNER) == owner
                    ]

                before = len(held())
                wait_until(lambda: gone(pid) or not held(), f"what {name} holds is reaped", 120)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return f"{name}, suspended with {before} jobs and not"

    @staticmethod
    def _owner_of(client: Any, pid: int) -> bytes:
        """The name under which a worker holds its leases; empty before it has reported."""
        for owner in client.zrange(keys.WORKERS, 0, -1):
            state = client.hget(keys.worker(owner.decode()), "")
            if state and msgspec.json.decode(state).get("pid") == pid:
                return bytes(owner)
        return b""

    def _kill_part(self, name: str) -> None:
        pid = self._running(name)
        os.kill(pid, signal.SIGKILL)
        if name in WORKERS:
            self.lost.update(BATCH.keys())
        wait_until(lambda: gone(pid), f"{name} is dead")

    def _kill_model(self, draw: float) -> str:
        model, at = _one_of(tuple(BATCH), draw), int(draw * 1000)

        def running() -> list[int]:
            ours = set(descendants(self.up.process.pid))
            return [pid for pid in self._model_pids(model) if pid in ours and not gone(pid)]

        pids = wait_until(running, f"{model} runs", 120)
        victim = sorted(pids)[at % len(pids)]
        os.kill(victim, signal.SIGKILL)
        self.lost[model] += 1
        wait_until(lambda: gone(victim), f"{victim} is dead")
        return model

    def _model_pids(self, model: str) -> list[int]:
        client: Any = self.server.client()
        with client:
            told = [
                client.hget(keys.worker(owner.decode()), model)
                for owner in client.zrange(keys.WORKERS, 0, -1)
            ]
        return [pid for state in filter(None, told) for pid in msgspec.json.decode(state)["pids"]]

    def processes(self) -> list[int]:
        """Every process of it that lives, wherever it hangs: each inherited the state directory."""
        mark = f"HEADRACE_STATE_DIR={self.up.state_dir}\0".encode()
        return [
            pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _has(pid, mark)
        ]


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes() and not gone(pid)
    except OSError:
        return False


def _one_of(names: tuple[str, ...], draw: float) -> str:
    return names[int(draw * len(names))]


@contextmanager
def running_system(folder: Path, flavour: str, fsync: str, timeout_s: float) -> Iterator[System]:
    """A running system; all of it is gone afterwards."""
    persistence = ("--appendonly", "yes", "--appendfsync", fsync)
    path = write_models(folder, models(folder, timeout_s))
    with (
        redis_server(flavour, *persistence) as server,
        running_up(
            folder, "--workers", str(len(WORKERS)), models=path,
            HEADRACE_REDIS_URL=server.url,
            HEADRACE_API_PROCESSES=str(len(APIS)),
            HEADRACE_INLINE_LIMIT_BYTES=str(INLINE_BYTES),
            HEADRACE_LEASE_TTL_S="5",
            HEADRACE_MAX_DELIVERIES=str(MAX_DELIVERIES),
        ) as up,
    ):  # fmt: skip
        yield System(server, up, fsync)


class Ends:
    """When each job's end was published, as far as it was heard: nobody hears while Redis is away.

    A settlement publishes one, so that two are two ends.
    """

    def __init__(self, server: RedisServer) -> None:
        self.seen: dict[str, list[float]] = {}
        self._client = server.client()
        self._pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._listen)
        self._stop = threading.Event()

    def __enter__(self) -> Ends:
        self._pubsub.psubscribe(keys.meta + "*")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._pubsub.close()
        self._client.close()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._pubsub.get_message(timeout=0.2)
            except redis.RedisError:
                self._stop.wait(0.05)  # it is away; redis-py subscribes again when it is back
                continue
            if message is not None and message["type"] == "pmessage":
                job_id = message["channel"].decode().removeprefix(keys.meta)
                self.seen.setdefault(job_id, []).append(time.monotonic())
