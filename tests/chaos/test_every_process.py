"""Each process of a system is killed in turn, under jobs, pipelines, webhooks and batches.

A wave of work is in flight at each kill: a gate holds every run. The seed chooses the order.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace import Client
from headrace.redis import keys
from headrace.server.ports import free_port
from headrace.server.supervisor.proc import start_time_ticks
from headrace.webhooks.signing import new_secret
from tests.extensions.openai.harness.batches import Batches, batches_at, line
from tests.harness.deployments.pipelines import write_site
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.servers.up import RunningUp, running_up
from tests.harness.servers.webhook_receiver import Receiver, webhook_receiver
from tests.harness.wait import wait_until

PARTS = ("redis", "api", "cpu0", "model", "background", "runner", "flower")
#: If one of these dies, no job runs again.
RUNS_ON = frozenset({"api", "background", "runner", "flower"})
JOBS, PIPELINES, PIECES, LINES = 6, 2, 3, 8
ENDPOINT = "/api/v1/models/weigh/jobs"
PATIENCE_S = 120.0


@dataclass
class Wave:
    """The work that is in flight when a part is killed."""

    part: str
    jobs: dict[str, Any] = field(default_factory=dict)
    pipelines: list[str] = field(default_factory=list)
    batch: Any = None


@dataclass
class Site:
    """A running system and its users."""

    server: RedisServer
    up: RunningUp
    receiver: Receiver
    client: Client
    batches: Batches
    folder: Path

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def serves(self) -> bool:
        with suppress(OSError, msgspec.DecodeError):
            return self.up.request("GET", "/ready?models=all")[0] == 200
        return False

    def submit(self, number: int, part: str) -> Wave:
        """Submit a wave, and wait until some of it runs."""
        wave = Wave(part)
        for n in range(JOBS):
            job_id, given = f"{part}-{n}", {"wave": number, "n": n}
            hook = self.receiver.url("/200")
            self.client.submit("weigh", given, id=job_id, webhook=hook)
            wave.jobs[job_id] = {"given": given}
        for n in range(PIPELINES):
            job_id, given = f"{part}-whole-{n}", {"pieces": PIECES, "size": 10 + number}
            self.client.submit("pieces", given, id=job_id)
            wave.pipelines.append(job_id)
        lines = [line(str(n), "weigh", {"line": n}) for n in range(LINES)]
        wave.batch = self.batches.create(lines, ENDPOINT)
        with self.server.client() as client:
            leases = keys.lease(keys.queue_name("weigh"))
            wait_until(lambda: client.zcard(leases), "some of it is leased", PATIENCE_S)
        return wave

    def kill(self, part: str) -> None:
        """Kill a part; Redis is started again here, and all others by the supervisor."""
        if part == "redis":
            self.server.stop(kill=True)
            self.server.start()
            return
        running = self.model_pids if part == "model" else partial(self.pids_of, part)
        pids = wait_until(running, f"{part} runs", PATIENCE_S)
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: gone(pids[0]), f"{part} is dead", PATIENCE_S)
        wait_until(lambda: set(running()) - set(pids), f"{part} is back", PATIENCE_S)

    def pids_of(self, part: str) -> list[int]:
        pid = int(self.up.record()["pids"].get(part, 0))
        return [pid] if start_time_ticks(pid) is not None else []

    def model_pids(self) -> list[int]:
        raw: Any = self.server.client()
        with raw as client:
            told = [
                client.hget(keys.worker(owner.decode()), "weigh")
                for owner in client.zrange(keys.WORKERS, 0, -1)
            ]
        pids = [pid for state in filter(None, told) for pid in msgspec.json.decode(state)["pids"]]
        return [pid for pid in pids if not gone(pid)]


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    pieces = {"pieces": {"stages": {"cut": {}, "weigh": {"each": "pieces[*]"}}}}
    models = write_site(folder, pieces, weigh={"max_batch_size": 4})
    with ExitStack() as stack:
        server = stack.enter_context(redis_server("valkey9", *durable))
        receiver = stack.enter_context(webhook_receiver())
        up = stack.enter_context(
            running_up(
                folder, "--workers", "1", models=models, flower=True, background=True, runner=True,
                HEADRACE_REDIS_URL=server.url,
                HEADRACE_FLOWER_PORT=str(free_port()),
                HEADRACE_LEASE_TTL_S="5",
                HEADRACE_WEBHOOK_SECRETS=new_secret(),
                HEADRACE_WEBHOOK_ALLOW_NETWORKS="127.0.0.0/8",
                HEADRACE_WEBHOOK_ALLOW_HTTP="true",
            )
        )  # fmt: skip
        url = f"http://127.0.0.1:{up.port}"
        client = stack.enter_context(Client(url, retry_s=PATIENCE_S))
        batches = stack.enter_context(batches_at(url))
        yield Site(server, up, receiver, client, batches, folder)


def check_jobs(site: Site, wave: Wave) -> None:
    for job_id, result in wave.jobs.items():
        job = site.client.wait(job_id, timeout_s=PATIENCE_S)
        assert job.succeeded, job
        assert site.client.result(job_id) == result
        if wave.part in RUNS_ON:
            assert job.attempts == 1, job
    for job_id in wave.pipelines:
        weighed = site.client.result(job_id, timeout_s=PATIENCE_S)
        assert [one["first"] for one in weighed] == list(range(PIECES))


def check_batch(site: Site, wave: Wave) -> None:
    batch = site.batches.ended(wave.batch, PATIENCE_S)
    assert batch.status == "completed", batch
    good, bad = site.batches.both(batch)
    assert bad == {}
    assert {name: row["response"]["body"]["result"] for name, row in good.items()} == {
        str(n): {"given": {"line": n}} for n in range(LINES)
    }


def check_webhooks(site: Site, wave: Wave) -> None:
    """Each job has one delivery, which has arrived; a repeat has the same id and body."""

    def delivered(job_id: str) -> bool:
        found = site.up.request("GET", f"/api/v1/jobs/{job_id}/webhooks")[1]["deliveries"]
        return [one["state"] for one in found] == ["delivered"]

    for job_id in wave.jobs:
        wait_until(partial(delivered, job_id), f"the webhook of {job_id} arrives", PATIENCE_S)
        assert len({(one.id, one.body) for one in site.receiver.of(job_id)}) == 1


def check_counts(site: Site, waves: int) -> None:
    raw: Any = site.server.client()
    with raw as client:
        each = JOBS + LINES + PIPELINES * PIECES
        expected = {"weigh": each * waves, "cut": PIPELINES * waves, "pieces": PIPELINES * waves}
        for model, count in expected.items():
            stats = client.hgetall(keys.stats(model))
            ended = {name: int(n) for name, n in stats.items() if name.startswith(b"ended:")}
            ended.pop(b"ended:retried", None)  # a wait after a crash, and no end
            assert ended == {b"ended:succeeded": count}, model
            assert client.zcard(keys.lease(keys.queue_name(model))) == 0
        nothing_leaks(client)


def test_each_process_dies_in_turn_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")  # noqa: T201 - pytest shows it with the failure
    parts = random.Random(seed).sample(PARTS, len(PARTS))
    with running_site(tmp_path) as site:
        waves = []
        for number, part in enumerate(parts):
            wait_until(site.serves, "all serve", PATIENCE_S)
            site.gate.touch()
            waves.append(site.submit(number, part))
            site.kill(part)
            site.gate.unlink()
            # Else the next kill would be one of these jobs' too.
            check_jobs(site, waves[-1])
        for wave in waves:
            check_batch(site, wave)
            check_webhooks(site, wave)
        check_counts(site, len(waves))
