"""API, worker and Redis are killed in the middle of each change of the models, while jobs run.

A change ends as before or as requested, and never between. The seed chooses the moments.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from headrace import Client
from headrace.errors import HeadraceError
from headrace.redis.script_client import ScriptClient
from headrace.registry.store import RegistryStore
from headrace.server.supervisor.proc import start_time_ticks
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import RunningUp, running_up
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

MODEL: Final = "words"
PATIENCE_S: Final = 120.0
JOBS: Final = 5
#: A change takes some milliseconds; kills come before, during and after it.
LATEST_KILL_S: Final = 0.03
PARTS: Final = ("api", "cpu0", "redis")
HANDLER: Final = """
from headrace import Handler


class Answers(Handler):
    def initialize(self, context):
        self.version = context.version

    def inference(self, items):
        return [self.version for _ in items]
"""
NEW: Final = {"handler": "answers.py"}

#: The changes in an order that leads back to the first state.
OPERATIONS: Final[dict[str, Callable[[Client], Any]]] = {
    "register a version": lambda c: c.register_model(MODEL, "2.0", NEW),
    "set an option": lambda c: c.set_model_options(MODEL, {"max_batch_size": 3}, version="2.0"),
    "scale up": lambda c: c.set_model_options(MODEL, {"replicas": 2}, version="2.0"),
    "promote": lambda c: c.promote_model(MODEL, "2.0"),
    "reload": lambda c: c.reload_model(MODEL),
    "scale down": lambda c: c.set_model_options(MODEL, {"replicas": 1}, version="2.0"),
    "roll back": lambda c: c.promote_model(MODEL, "1.0"),
    "remove a version": lambda c: c.remove_model(MODEL, version="2.0"),
}

Snapshot = dict[str, Any]


@dataclass
class Site:
    """A running system, whose Redis is a process of its own."""

    server: RedisServer
    up: RunningUp
    client: Client

    def registered(self) -> Snapshot:
        """What the registry holds of the model, without who changed it and how often."""
        with self.server.client() as client:
            model = RegistryStore(ScriptClient(client)).read().models[MODEL]
        versions = {
            name: (version.options, version.loads) for name, version in model.versions.items()
        }
        return {"default": model.default_version, "versions": versions}

    def serves(self) -> bool:
        """Whether the workers run what is registered, and nothing else."""
        wanted = {
            version: options.get("replicas", 1)
            for version, (options, _) in self.registered()["versions"].items()
        }
        with suppress(HeadraceError, OSError, msgspec.DecodeError):
            model = self.up.request("GET", f"/api/v1/models/{MODEL}")[1]
            running = {
                worker["version"]: worker["ready_replicas"]
                for worker in model["workers"]
                if worker["state"] == "ready"
            }
            return running == wanted
        return False

    def answers(self, version: str) -> bool:
        """Whether a job that names no version runs on this one."""
        job_id = self.client.submit(MODEL, {}).id
        return bool(self.client.result(job_id, timeout_s=PATIENCE_S) == version)

    def kill(self, part: str) -> Callable[[], None]:
        """Kill a part; return what waits until it is back."""
        if part == "redis":
            self.server.stop(kill=True)
            self.server.start()
            return lambda: None
        (pid,) = wait_until(partial(self._pids, part), f"{part} runs", PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), f"{part} is dead", PATIENCE_S)
        return lambda: self._back(part, pid)

    def _back(self, part: str, before: int) -> None:
        wait_until(lambda: set(self._pids(part)) - {before}, f"{part} is back", PATIENCE_S)

    def _pids(self, part: str) -> list[int]:
        pid = int(self.up.record()["pids"].get(part, 0))
        return [pid] if start_time_ticks(pid) is not None else []


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    (folder / "answers.py").write_text(HANDLER)
    models = write_models(folder, **{MODEL: {"handler": "answers.py"}})
    with ExitStack() as stack:
        durable = ("--appendonly", "yes", "--appendfsync", "always")
        server = stack.enter_context(redis_server("valkey9", *durable))
        up = stack.enter_context(
            running_up(
                folder, "--workers", "1", models=models, HEADRACE_REDIS_URL=server.url,
                HEADRACE_LEASE_TTL_S="5", HEADRACE_MODEL_API="true",
            )
        )  # fmt: skip
        client = stack.enter_context(Client(f"http://127.0.0.1:{up.port}", retry_s=PATIENCE_S))
        yield Site(server, up, client)


def settled(site: Site, change: Callable[[Client], Any]) -> Snapshot:
    """Make a change without a kill; return what is registered then."""
    change(site.client)
    wait_until(site.serves, "the workers follow", PATIENCE_S)
    return site.registered()


def without_loads(snapshot: Snapshot) -> Snapshot:
    versions = {name: options for name, (options, _) in snapshot["versions"].items()}
    return {**snapshot, "versions": versions}


def reloads(before: Snapshot, now: Snapshot) -> set[int]:
    """How often each version was reloaded between two moments."""
    pairs = [(before["versions"].get(name, one), one) for name, one in now["versions"].items()]
    return {count - earlier for (_, earlier), (_, count) in pairs}


def once(site: Site, change: Callable[[Client], Any]) -> None:
    """Make a change through a client that does not repeat it."""
    with Client(f"http://127.0.0.1:{site.up.port}", retry_s=0) as client:
        change(client)


def interrupted(
    site: Site, change: Callable[[Client], Any], part: str, after_s: float
) -> Callable[[], None]:
    """Make a change, and kill a part meanwhile; return what waits until it is back."""
    with ThreadPoolExecutor(1) as pool:
        made: Future[None] = pool.submit(once, site, change)
        threading.Event().wait(after_s)
        back = site.kill(part)
        # A change that was cut off has an error; the registry has the truth.
        with suppress(HeadraceError):
            made.result(PATIENCE_S)
    return back


#: What is registered after each change; the first test finds it out.
EXPECTED: Final[dict[str, Snapshot]] = {}


@pytest.mark.parametrize("shift", range(len(PARTS)))
def test_a_change_that_is_cut_off_ends_as_before_or_as_requested(
    shift: int, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")  # noqa: T201 - pytest shows it with the failure
    chance = random.Random(seed)
    with running_site(tmp_path) as site:
        wait_until(site.serves, "it serves", PATIENCE_S)
        if not EXPECTED:
            EXPECTED.update({name: settled(site, make) for name, make in OPERATIONS.items()})
        # A part that is killed often is restarted late, so each test has kills of all parts.
        for number, (name, change) in enumerate(OPERATIONS.items(), shift):
            part = PARTS[number % len(PARTS)]
            before = site.registered()
            ids = [site.client.submit(MODEL, n).id for n in range(JOBS)]
            interrupted(site, change, part, chance.uniform(0, LATEST_KILL_S))()

            now = site.registered()
            assert reloads(before, now) <= {0, 1}, (part, name)
            if now == before:
                change(site.client)
                now = site.registered()
            assert without_loads(now) == without_loads(EXPECTED[name]), (part, name)
            wait_until(site.serves, f"the workers follow: {part}, {name}", PATIENCE_S)
            for job_id in ids:
                assert site.client.wait(job_id, timeout_s=PATIENCE_S).succeeded
            wait_until(partial(site.answers, now["default"]), "the default", PATIENCE_S)
