"""Models that load at their first job, in a real worker on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

GATED = f"{HANDLERS / 'gated.py'}:Gated"
UNLOADED = ":unloaded"
#: No test waits for it.
LONG_S = 3600
#: Loads wait for the file `go` next to the models file, and fail if there is a file `broken`.
SLOW = """
import os
import time
from pathlib import Path

from headrace import Handler

HERE = Path(__file__).parent


class Slow(Handler):
    def initialize(self, context):
        (HERE / "loading").write_text(str(os.getpid()))
        with (HERE / "loads").open("a") as loads:
            loads.write(f"{os.getpid()}\\n")
        while not (HERE / "go").exists():
            time.sleep(0.01)
        if (HERE / "broken").exists():
            raise RuntimeError("the weights are broken")

    def inference(self, items):
        return items
"""


def on_demand(**options: Any) -> dict[str, Any]:
    return {"handler": GATED, "load": "on_demand", "idle_unload_s": LONG_S, **options}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def unloaded(client: Client) -> dict[str, str]:
    """What the workers report as unloaded, with what is wrong with it."""
    found: dict[str, str] = {}
    for owner in client.redis.zrange(keys.WORKERS, 0, -1):
        found |= json.loads(client.redis.hget(keys.worker(owner.decode()), UNLOADED) or b"{}")
    return found


def pids(worker: Worker, model: str) -> list[int]:
    return list(worker.states().get(model, {}).get("pids", []))


def wait_unloaded(worker: Worker, client: Client, *models: str) -> None:
    def gone() -> bool:
        states, names = worker.states(), unloaded(client)
        return all(m not in states and any(n.startswith(f"{m}@") for n in names) for m in models)

    wait_until(gone, f"{models} are unloaded", 120)


def succeeded(client: Client, *ids: str) -> None:
    for job in client.wait(*ids, timeout_s=240):
        assert job.state.status == "succeeded", job


@pytest.fixture
def models(folder: Path) -> Path:
    return write_models(
        folder,
        a=on_demand(),
        b=on_demand(),
        brief=on_demand(idle_unload_s=0.2),
        eager={"handler": "echo"},
    )


@pytest.fixture
def client(redis_db: RedisServer, models: Path) -> Iterator[Client]:
    with Client(redis_db.url, models) as made:
        yield made


def test_the_first_job_loads_a_model_and_an_idle_one_is_unloaded(
    redis_db: RedisServer, models: Path, folder: Path, client: Client
) -> None:
    with celery_worker(redis_db.url, models, folder) as worker:
        worker.wait_ready("eager")
        assert set(worker.states()) == {"", "eager"}
        assert unloaded(client) == {"a@1.0": "", "b@1.0": "", "brief@1.0": ""}
        gate = folder / "gate"
        (job,) = client.submit("brief", {"until": str(gate)})
        wait_until(lambda: pids(worker, "brief"), "it is loaded")
        process = pids(worker, "brief")[0]
        assert "brief@1.0" not in unloaded(client)
        gate.touch()
        succeeded(client, job)
        wait_unloaded(worker, client, "brief")
        wait_until(lambda: not Path(f"/proc/{process}").exists(), "its process has ended")
        succeeded(client, *client.submit("brief", 1, 2, 3))


def test_two_models_take_turns_if_there_is_room_for_one(
    redis_db: RedisServer, models: Path, folder: Path, client: Client
) -> None:
    """Both are busy all the time, and each has run jobs before either has ended its own."""
    environ = {"HEADRACE_MAX_LOADED_MODELS": "1", "HEADRACE_LOAD_TURN_S": "0"}
    with celery_worker(redis_db.url, models, folder, environ=environ) as worker:
        worker.wait_ready("eager")
        jobs = {model: client.submit(model, *range(8)) for model in ("a", "b")}
        succeeded(client, *jobs["a"], *jobs["b"])
        # Of one report: between two of them one model may take the place of the other.
        states = worker.states()
        assert sum(len(states[model]["pids"]) for model in ("a", "b") if model in states) <= 1
        # More of both come until each was loaded again.
        gates = [folder / "gate1", folder / "gate2"]
        held = client.submit("a", {"until": str(gates[0])})
        wait_until(lambda: client.leased(*held), "a is busy")
        others = client.submit("b", 1)
        behind = client.submit("a", *range(4))
        wait_until(lambda: "a" in worker.states() and not pids(worker, "b"), "b waits")
        assert not client.job(others[0]).state.final
        gates[0].touch()
        succeeded(client, *held, *others, *behind)


def test_a_job_that_comes_while_its_model_is_unloaded_is_not_lost(
    redis_db: RedisServer, folder: Path
) -> None:
    """The model is unloaded whenever it is idle, and jobs come all the time."""
    models = write_models(folder, a=on_demand(idle_unload_s=0.001))
    with (
        Client(redis_db.url, models) as client,
        celery_worker(redis_db.url, models, folder) as worker,
    ):
        jobs = []
        for n in range(4):
            jobs += client.submit("a", n)
            succeeded(client, *jobs)
            # The next one comes when the process ends, or has just ended.
            wait_until(lambda: worker.states().get("a", {}).get("state") != "ready", "it retires")
        succeeded(client, *jobs)
        wait_unloaded(worker, client, "a")


def test_a_failed_load_is_shown_and_tried_again_and_the_job_waits(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, slow=on_demand(handler="slow.py"))
    (folder / "broken").touch()
    (folder / "go").touch()
    with (
        Client(redis_db.url, models) as client,
        celery_worker(redis_db.url, models, folder) as worker,
    ):
        (job,) = client.submit("slow", 1)
        wait_until(
            lambda: "the weights are broken" in worker.states().get("slow", {}).get("error", ""),
            "the traceback is reported",
        )
        assert client.job(job).state.status == "queued"
        (folder / "broken").unlink()
        succeeded(client, job)


def test_one_that_fails_gives_its_room_up_and_keeps_its_traceback(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, slow=on_demand(handler="slow.py"), a=on_demand())
    (folder / "broken").touch()
    (folder / "go").touch()
    environ = {"HEADRACE_MAX_LOADED_MODELS": "1"}
    with (
        Client(redis_db.url, models) as client,
        celery_worker(redis_db.url, models, folder, environ=environ) as worker,
    ):
        (job,) = client.submit("slow", 1)
        wait_until(lambda: worker.says("the model cannot be loaded", "slow"), "it has failed")
        gate = folder / "gate"
        held = client.submit("a", {"until": str(gate)})
        wait_until(lambda: client.leased(*held), "the other one runs")
        wait_until(
            lambda: "the weights are broken" in unloaded(client).get("slow@1.0", ""),
            "the traceback is reported",
        )
        (folder / "broken").unlink()
        gate.touch()
        succeeded(client, *held, job)


def test_one_that_never_fits_is_reported_and_its_jobs_wait(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, large=on_demand(memory_mb=5000), a=on_demand())
    environ = {"HEADRACE_LOADED_MEMORY_MB": "4000"}
    with (
        Client(redis_db.url, models) as client,
        celery_worker(redis_db.url, models, folder, environ=environ),
    ):
        (job,) = client.submit("large", 1)
        succeeded(client, *client.submit("a", 1))
        why = "needs 5000 MiB, and loaded_memory_mb is 4000"
        wait_until(lambda: why in unloaded(client)["large@1.0"], "the reason is reported")
        assert client.job(job).state.status == "queued"
    with Client(redis_db.url, models) as client, celery_worker(redis_db.url, models, folder):
        succeeded(client, job)


def test_memory_is_measured_and_the_least_recently_used_is_unloaded(
    redis_db: RedisServer, folder: Path
) -> None:
    """After the first load each is known to need more than half of the limit."""
    models = write_models(folder, a=on_demand(memory_mb=1), b=on_demand(memory_mb=1))
    # Nothing is as small as that, so that each is unloaded after its load.
    with Client(redis_db.url, models) as client:
        environ = {"HEADRACE_LOADED_MEMORY_MB": "2"}
        with celery_worker(redis_db.url, models, folder, environ=environ) as worker:
            (job,) = client.submit("a", 1)
            wait_until(
                lambda: "raise loaded_memory_mb" in unloaded(client).get("a@1.0", ""), "measured"
            )
            wait_until(lambda: not pids(worker, "a"), "it is unloaded")
        with celery_worker(redis_db.url, models, folder):
            succeeded(client, job)


def test_a_worker_that_is_killed_while_it_loads_loses_no_job(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, slow=on_demand(handler="slow.py"))
    with Client(redis_db.url, models) as client:
        with celery_worker(redis_db.url, models, folder) as worker:
            jobs = client.submit("slow", 1, 2)
            wait_until(lambda: (folder / "loading").exists(), "it loads")
            worker.kill()
        (folder / "go").touch()
        with celery_worker(redis_db.url, models, folder, node="cpu0@next"):
            succeeded(client, *jobs)


def test_the_leases_of_a_killed_worker_are_found_although_the_model_is_unloaded(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, a=on_demand())
    environ = {"HEADRACE_LEASE_TTL_S": "2"}
    with Client(redis_db.url, models) as client:
        with celery_worker(redis_db.url, models, folder, environ=environ) as worker:
            gate = folder / "gate"
            held = client.submit("a", {"until": str(gate)})
            wait_until(lambda: client.leased(*held), "it runs")
            worker.kill()
        gate.touch()
        with celery_worker(redis_db.url, models, folder, node="cpu0@next", environ=environ):
            succeeded(client, *held)


def test_a_delayed_job_wakes_its_model_when_it_is_due(
    redis_db: RedisServer, models: Path, folder: Path, client: Client
) -> None:
    with celery_worker(redis_db.url, models, folder) as worker:
        worker.wait_ready("eager")
        (job,) = client.submit("a", 1, countdown=LONG_S)
        # One look finds the queues of both.
        succeeded(client, *client.submit("b", 1))
        assert not worker.says("loaded on demand", "model=a")
        assert client.job(job).state.status == "scheduled"
        # As though its time had come.
        client.redis.zadd(keys.delayed(keys.queue_name("a")), {job: 1}, xx=True)
        succeeded(client, job)


def test_a_paused_queue_loads_nothing(
    redis_db: RedisServer, models: Path, folder: Path, client: Client
) -> None:
    client.redis.sadd(keys.PAUSED, keys.queue_name("a"))
    with celery_worker(redis_db.url, models, folder) as worker:
        (job,) = client.submit("a", 1)
        # One look finds the queues of both.
        succeeded(client, *client.submit("b", 1))
        assert not worker.says("loaded on demand", "model=a")
        client.redis.srem(keys.PAUSED, keys.queue_name("a"))
        succeeded(client, job)


def test_a_worker_that_stops_returns_the_jobs_of_a_model_that_loads(
    redis_db: RedisServer, folder: Path
) -> None:
    models = write_models(folder, slow=on_demand(handler="slow.py"))
    with Client(redis_db.url, models) as client:
        with celery_worker(redis_db.url, models, folder) as worker:
            (job,) = client.submit("slow", 1)
            wait_until(lambda: (folder / "loading").exists(), "it loads")
            assert worker.stop() == 0
            assert client.job(job).state.status == "queued"
        (folder / "go").touch()
        with celery_worker(redis_db.url, models, folder, node="cpu0@next"):
            succeeded(client, job)


def test_two_workers_that_share_a_replica_load_it_once(redis_db: RedisServer, folder: Path) -> None:
    (folder / "go").touch()
    models = write_models(folder, slow=on_demand(handler="slow.py", total_replicas=1))
    with (
        Client(redis_db.url, models) as client,
        celery_worker(redis_db.url, models, folder, node="cpu0@one") as one,
        celery_worker(redis_db.url, models, folder, node="cpu0@two") as two,
    ):
        wait_until(lambda: one.states() and two.states(), "both run")
        succeeded(client, *client.submit("slow", *range(20)))
        assert len((folder / "loads").read_text().split()) == 1
        wait_until(lambda: len(pids(one, "slow") + pids(two, "slow")) == 1, "one has it")


def test_a_worker_that_is_killed_while_a_model_is_unloaded_loses_no_job(
    redis_db: RedisServer, models: Path, folder: Path, client: Client
) -> None:
    """The model ends its batch, and has returned the other jobs, as another one needs the room."""
    environ = {
        "HEADRACE_MAX_LOADED_MODELS": "1", "HEADRACE_LOAD_TURN_S": "0", "HEADRACE_LEASE_TTL_S": "2",
    }  # fmt: skip
    with celery_worker(redis_db.url, models, folder, environ=environ) as worker:
        gate = folder / "gate"
        jobs = client.submit("a", {"until": str(gate)})
        wait_until(lambda: client.leased(*jobs), "it runs")
        jobs += client.submit("a", 1, 2) + client.submit("b", 3)
        wait_until(lambda: worker.says("needs the room", "model=a"), "it is unloaded")
        worker.kill()
    gate.touch()
    with celery_worker(redis_db.url, models, folder, node="cpu0@next", environ=environ):
        succeeded(client, *jobs)
