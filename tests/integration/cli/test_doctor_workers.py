"""`headrace doctor` on workers, models, queues, clocks and the API, each broken for real."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extensions.openai.redis import keys as batch_keys
from headrace import __version__
from headrace.cli.doctor import workers
from headrace.cli.shared.exit_codes import ExitCode
from headrace.observability import series
from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures
from headrace.queue import findings
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.server.ports import free_port
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.clients.doctor import (
    BY_NAME,
    breaks,
    fake_smi,
    fake_torch,
    found,
    look,
    site,
    tell,
    verdict,
)
from tests.harness.processes.processes import suspend
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import ROOT, headrace
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

BROKEN = "raise ImportError('no such weights')\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path, echo={"handler": "echo", "max_queue_depth": 3})


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A real worker on a Redis of its own, one of whose models cannot be loaded."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "broken.py").write_text(BROKEN)
    path = write_models(folder, echo={"handler": "echo"}, broken={"handler": "broken.py"})
    host = os.uname().nodename
    with (
        redis_server("valkey9", "--appendonly", "yes") as server,
        celery_worker(server.url, path, folder, node=f"cpu0@{host}") as running,
    ):
        wait_until(
            lambda: (
                running.states().get("broken", {}).get("state") == "failed"
                and running.states()["echo"]["state"] == "ready"
            ),
            "one model is ready and the other has failed",
            60,
        )
        yield running


def test_a_worker_that_runs_is_found_so(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long this machine stands still.
    monkeypatch.setattr(findings, "SILENT_S", 60.0)
    with site(worker.redis_url, worker.models) as whole:
        verdict(look(whole, "workers"), "ok", worker.node)
        verdict(look(whole, "worker-versions"), "ok", __version__)
        verdict(look(whole, "open-files"), "ok")
        assert dict(whole.alive[0][1].versions).keys() >= {"headrace", "python", "celery", "torch"}


@breaks("models")
def test_a_model_that_could_not_be_loaded(worker: Worker, tmp_path: Path) -> None:
    verdict(
        found("models", worker.redis_url, worker.models), "fail",
        "broken on cpu0@", "ImportError: no such weights", "headrace models broken",
    )  # fmt: skip
    # Another models file than the workers have.
    other = write_models(tmp_path, echo={"handler": "echo"}, new={"handler": "echo"})
    with site(worker.redis_url, other) as whole:
        states = whole.alive[0][1].models
        states.pop("broken")
        verdict(look(whole, "models"), "warn", "no worker serves new")


@breaks("worker-answers", "workers")
@pytest.mark.slow
def test_a_worker_that_hangs_and_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, path = os.uname().nodename, write_models(tmp_path, echo={"handler": "echo"})
    with (
        redis_server("valkey9") as server,
        celery_worker(server.url, path, tmp_path, node=f"cpu1@{host}") as running,
    ):
        running.wait_ready("echo")
        monkeypatch.setattr(workers, "PING_S", 40)  # who answers is not waited for
        verdict(found("worker-answers", server.url, path), "ok", "answer")
        suspend(running.pid)
        try:
            with server.client() as client:
                # However slow this machine is: its word must not run out before it was looked at.
                (owner,) = client.zrange(keys.WORKERS, 0, -1)
                client.persist(keys.worker(owner.decode()))
            verdict(found("workers", server.url, path), "warn", "has not reported for 15 s")
            monkeypatch.setattr(workers, "PING_S", 1)
            verdict(found("worker-answers", server.url, path), "fail", "no answer", "cpu1@")
        finally:
            os.kill(running.pid, signal.SIGCONT)
        running.kill()
        verdict(found("workers", server.url, path), "fail", "cpu1@", "was killed")


@breaks("workers")
@pytest.mark.leaves_keys
def test_no_worker_is_missed_only_where_there_is_work(redis_db: RedisServer, models: Path) -> None:
    verdict(found("workers", redis_db.url, models), "skip", "nothing runs here yet")
    with Client(redis_db.url, models) as client:
        client.submit("echo", 1)
    verdict(found("workers", redis_db.url, models), "fail", "no worker runs", "headrace worker")


@breaks("worker-versions")
def test_workers_of_other_versions(redis_db: RedisServer, models: Path) -> None:
    with redis_db.client() as client:
        tell(client, "a", versions={"headrace": "0.0.9", "celery": "5.7.0"})
        verdict(found("worker-versions", redis_db.url, models), "fail", "0.0.9", __version__)
        tell(client, "b", versions={"headrace": __version__, "celery": "5.6.1"})
        verdict(found("worker-versions", redis_db.url, models), "warn", "differ in celery", "5.6.1")
        for owner in "ab":
            client.delete(keys.worker(owner))


@breaks("model-versions", "queues")
@pytest.mark.leaves_keys
def test_models_of_several_versions(redis_db: RedisServer, models: Path) -> None:
    url = redis_db.url
    with redis_db.client() as client:
        verdict(found("model-versions", url, models), "skip")
        tell(client, "a", models={"echo": {"version": "1.0"}})
        verdict(found("model-versions", url, models), "ok", "one version of each of 1 models")
        node = tell(client, "b", models={"echo": {"version": "2.0"}})
        words = ("2 workers serve several versions of echo", "1.0 (a@", f"2.0 ({node})", "rolling")
        verdict(found("model-versions", url, models), "warn", *words)
        client.delete(keys.worker("a"))
        last = found("model-versions", url, models)
        verdict(last, "warn", "echo is version 1.0 in models.yaml", f"serve 2.0 ({node})")
        client.lpush(keys.version_queue("echo", "1.0"), "x")
        client.zadd(keys.versions("echo"), {"1.0": 1})
        last = found("queues", url, models)
        verdict(last, "fail", "1 job waiting for version 1.0 of echo", "queues purge echo@1.0")
        verdict(found("unknown-queues", url, models), "ok")


@breaks("clocks")
def test_clocks_that_are_wrong(
    redis_db: RedisServer, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_db.client() as client:
        tell(client, "late", ahead_s=-4)
        verdict(found("clocks", redis_db.url, models), "warn", "late@", "behind Redis")
        tell(client, "early", ahead_s=40)
        verdict(found("clocks", redis_db.url, models), "fail", "early@", "ahead of Redis", "chrony")
        client.delete(keys.worker("late"), keys.worker("early"), keys.WORKERS)
        monkeypatch.setattr(workers, "clock_skew_s", lambda _: -3.4)
        verdict(found("clocks", redis_db.url, models), "warn", "this host is 3 s behind")


@breaks("api")
def test_an_api_that_is_away_or_cannot_serve(
    redis_db: RedisServer, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = found("api", redis_db.url, models, api=f"http://127.0.0.1:{free_port()}")
    verdict(gone, "fail", "refused", "--api")
    assert gone.code is ExitCode.UNREACHABLE
    with redis_server("valkey9") as own, api_server(own.url, catalog(echo={})) as server:
        verdict(found("api", own.url, models, api=server.url), "ok", __version__)
        monkeypatch.setattr(workers, "__version__", "9.9.9")
        verdict(found("api", own.url, models, api=server.url), "warn", "9.9.9", __version__)
        own.stop(kill=True)
        verdict(found("api", own.url, models, api=server.url), "fail", "answers 503", "Redis")
    port = str(free_port())
    verdict(found("api", redis_db.url, models, HEADRACE_PORT=port), "skip", "no API listens at")


@breaks("queues", "backlog", "dead-letters", "unknown-queues")
@pytest.mark.leaves_keys
def test_work_that_does_not_move(redis_db: RedisServer, models: Path) -> None:
    url = redis_db.url
    with Client(url, models) as client, redis_db.client() as plain:
        first, _ = client.submit("echo", 1, 2)
        verdict(found("queues", url, models), "fail", "echo has 2 jobs and no ready process")
        tell(plain, "a", models={"echo": {}})
        verdict(found("queues", url, models), "ok", "2 jobs wait")
        verdict(found("backlog", url, models), "ok")
        plain.sadd(keys.PAUSED, "headrace.echo")
        verdict(found("queues", url, models), "warn", "paused", "headrace queues resume echo")
        seconds, _ = plain.time()
        plain.hset(keys.job(first), JobField.CREATED, (seconds - 7200) * US_PER_S)
        verdict(found("backlog", url, models), "warn", "oldest job of echo", "2 h")
        client.submit("echo", 3)
        verdict(found("backlog", url, models), "warn", "3 jobs of 3", "429")
        verdict(found("dead-letters", url, models), "ok")
        plain.zadd(keys.dead("headrace.echo"), {"x": 1})
        verdict(found("dead-letters", url, models), "warn", "echo has 1 dead letter", "dead list")
        verdict(found("unknown-queues", url, models), "ok")
        plain.rpush(keys.step_key("headrace.gone", 9), "x")
        verdict(found("unknown-queues", url, models), "warn", "headrace.gone (1)")
        plain.delete(keys.step_key("headrace.gone", 9))


@breaks("failures")
@pytest.mark.leaves_keys
def test_more_failures_than_before(redis_db: RedisServer, models: Path) -> None:
    newest = int(time.time()) // series.MINUTE.step_s - 1
    with redis_db.client() as client:

        def minute(ago: int, succeeded: int, failed: int) -> None:
            record = series.pack(newest - ago, series.Bucket(0, succeeded, failed))
            place = series.place(series.MINUTE, newest - ago)
            client.setrange(keys.series("echo"), place, record)

        verdict(found("failures", redis_db.url, models), "ok", "0 jobs")
        minute(30, 1000, 20)
        minute(2, 80, 9)
        verdict(found("failures", redis_db.url, models), "ok", "29 jobs")
        minute(2, 50, 50)
        verdict(found("failures", redis_db.url, models), "warn", "50% of the jobs of echo", "50")
        # They failed as often before.
        minute(30, 1000, 900)
        verdict(found("failures", redis_db.url, models), "ok", "950 jobs")


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("sep", {"sep": ":"}),
        ("priority_steps", {"priority_steps": list(range(10))}),
        ("global_keyprefix", {"global_keyprefix": "shop:"}),
    ],
)
def test_a_celery_client_that_fills_other_lists(
    redis_db: RedisServer, models: Path, setting: str, options: dict[str, Any]
) -> None:
    with stock_client(redis_db.url) as app:
        app.conf.broker_transport_options = options
        send(app, "echo", 1, priority=4)
    told = found("unknown-queues", redis_db.url, models)
    verdict(told, "warn", "headrace.echo", "(1)", f"a Celery client sets {setting}")


@pytest.mark.leaves_keys
def test_tokens_that_leave_little_room(redis_db: RedisServer, tmp_path: Path) -> None:
    model = {"handler": "echo", "schedule": "tokens", "max_queued_tokens": 200}
    url, models = redis_db.url, write_models(tmp_path, echo=model)
    with Client(url, models) as client:
        client.submit("echo", "x" * 398)
        verdict(found("backlog", url, models), "ok")
        client.submit("echo", "x" * 388)
        verdict(found("backlog", url, models), "warn", "198 tokens of 200", "max_queued_tokens")


@breaks("background", "batches")
@pytest.mark.leaves_keys
def test_work_that_nobody_does(redis_db: RedisServer, models: Path) -> None:
    with redis_db.client() as client:
        verdict(found("background", redis_db.url, models), "skip")
        client.rpush(keys.BACKGROUND_TASKS, "x")
        verdict(
            found("background", redis_db.url, models),
            "fail",
            "1 background task",
            "headrace background",
        )
        client.set(keys.background_alive("e"), '{"node": "background@here", "pid": 1}', ex=60)
        client.sadd(keys.BACKGROUND_WORKERS, "e")
        verdict(found("background", redis_db.url, models), "ok", "background@here; 1 tasks")
        client.zadd(keys.DUE_DELIVERIES, {str(n): n for n in range(1001)})
        verdict(found("background", redis_db.url, models), "warn", "1,001 webhooks", "receivers")
        verdict(found("batches", redis_db.url, models), "skip")
        client.zadd(batch_keys.OPEN_BATCHES, {"b": 1})
        verdict(found("batches", redis_db.url, models), "fail", "1 batch", "headrace runner")


@breaks("gpu-use", "threads", "disks")
def test_what_workers_say_of_their_hosts(
    redis_db: RedisServer, models: Path, tmp_path: Path
) -> None:
    path = fake_smi(tmp_path, "GPU 0: H100 (UUID: GPU-1)", "GPU 1: H100 (UUID: GPU-2)")
    hot = DeviceFigures("0", "GPU-1", "H100", 0.5, 99, 100, 95.0)
    host = HostFigures("far", 4, 0.5, 100, 50, disk_bytes=1000, disk_available_bytes=5)
    with redis_db.client() as client:
        tell(client, "a", models={"echo": {"replicas": 4}}, figures=Figures(host, [hot]))
        of_gpus = found("gpu-use", redis_db.url, models, PATH=path)
        verdict(of_gpus, "warn", "no worker here serves GPU-2", "95 °C", "99% of its memory")
        crowded = found("threads", redis_db.url, models, OMP_NUM_THREADS="64")
        verdict(crowded, "warn", "256 threads on 4 cores", "unset it")
        verdict(found("threads", redis_db.url, models), "ok")
        verdict(found("disks", redis_db.url, models), "fail", "5 B of disk space are free on far")
        client.delete(keys.worker("a"), keys.WORKERS)


@breaks("placement")
def test_processes_that_are_pinned_to_the_same_cores(redis_db: RedisServer, models: Path) -> None:
    pinned = {"capacity": {"device": "cpu", "cores": 2, "pin_cores": "cores", "memory_mib": 900}}
    state = {"replicas": 1, "threads": 2, "cpus": ["0-1"], "memory_mib": 80}
    figures = Figures(HostFigures("far", 4, 0.5, 100, 50), [])
    with redis_db.client() as client:
        verdict(found("placement", redis_db.url, models), "skip")
        tell(client, "a", models={"echo": state}, figures=figures, own=pinned)
        one = found("placement", redis_db.url, models)
        verdict(one, "ok", "cpu, 2 cores, pin_cores cores, 900 MiB of memory, 0 free")
        verdict(one, "ok", "echo: 1 replica of 2 threads on CPUs 0-1, 80 MiB each")
        tell(client, "b", models={"echo": state}, figures=figures, own=pinned)
        both = found("placement", redis_db.url, models)
        verdict(both, "warn", "CPUs 0-1 of far have 2 pinned processes", "taskset")
        client.delete(keys.worker("a"), keys.worker("b"), keys.WORKERS)


@breaks("payload-store")
def test_a_store_of_payloads_that_is_nearly_full(redis_db: RedisServer, models: Path) -> None:
    with redis_db.client() as client:
        client.hset(keys.PAYLOAD_SIZES, "", 95)
        full = found("payload-store", redis_db.url, models, HEADRACE_MAX_PAYLOAD_MEMORY_BYTES="100")
        verdict(full, "warn", "95 B of 100 B")
        client.delete(keys.PAYLOAD_SIZES)


@pytest.fixture
def torch_that_costs_nothing(tmp_path: Path) -> str:
    """A PYTHONPATH on which torch is one that is not there to be imported."""
    return os.pathsep.join([str(fake_torch(tmp_path, version="2.9.0+cpu")), str(ROOT)])


@pytest.mark.slow
def test_the_command_from_end_to_end(
    worker: Worker, tmp_path: Path, torch_that_costs_nothing: str
) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"})
    given = ("--redis-url", worker.redis_url, "--models", str(models))
    environ = {"HEADRACE_PORT": str(free_port()), "PYTHONPATH": torch_that_costs_nothing}

    told = headrace("doctor", *given, "--json", cwd=tmp_path, **environ)
    assert told.returncode == ExitCode.FAILED, told.stdout + told.stderr
    said = {one["check"]: one for one in map(json.loads, told.stdout.splitlines())}
    assert list(said) == sorted(BY_NAME, key=lambda name: BY_NAME[name].background)
    assert said["worker-answers"]["verdict"] == "ok", said["worker-answers"]
    assert said["models"]["verdict"] == "fail"
    assert said["models"]["hint"].startswith("headrace models broken")
    assert said["torch"]["text"].startswith("torch 2.9.0+cpu, on the CPU")
    assert (said["redis-persistence"]["verdict"], said["redis-persistence"]["hint"]) == ("ok", None)
