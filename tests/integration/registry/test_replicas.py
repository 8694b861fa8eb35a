"""Replicas that the workers of a deployment share, with two workers as of two hosts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from headrace.registry.catalog import read_declared
from headrace.server.recovery import release_incarnation
from tests.harness.clients.commands import Commands
from tests.harness.clients.doctor import look, site, verdict
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

MODEL = "words"
HANDLER = """
from headrace import Handler


class Answers(Handler):
    def initialize(self, context):
        self.version = context.version

    def inference(self, items):
        return [self.version for _ in items]
"""
#: Longer than any test takes: no lease expires.
LONG_S = "3600"


@dataclass
class Hosts:
    """An API and two workers, as of two hosts."""

    models: Path
    api: ApiServer
    one: Worker
    two: Worker

    def scale(self, total: int) -> None:
        command = Commands(self.api.url, self.models.parent)
        command.lines("models", "scale", MODEL, str(total), "--total")

    def answer(self) -> str:
        made = self.api.http.post("/api/v1/jobs", json={"model": MODEL, "input": {}}).json()
        job = self.api.ended(made["id"])
        assert job["status"] == "succeeded", job
        return str(job["result"])


def running(worker: Worker, model: str = MODEL) -> int | None:
    """How many replicas a worker runs; None while it starts or ends some."""
    state = worker.states().get(model, {})
    number = len(state.get("pids", ()))
    return number if number == state.get("replicas") == state.get("ready") else None


def shares(worker: Worker, total: int) -> bool:
    """Whether a worker runs all replicas that are shared."""
    return bool(worker.states()[MODEL]["total_replicas"] == total == running(worker))


def wait_shares(workers: list[Worker], *shares: int) -> None:
    def settled() -> bool:
        numbers = [running(worker) for worker in workers]
        if None in numbers or sorted(filter(None, numbers)) != sorted(filter(None, shares)):
            # A failure shows what each worker has.
            raise ValueError([worker.states().get(MODEL) for worker in workers])
        return True

    wait_until(settled, f"the workers run {shares}", 120)


def hosts_of(redis_url: str, folder: Path, stack: ExitStack, lease_ttl_s: str) -> Hosts:
    models = write_models(folder, **{MODEL: {"handler": "answers.py", "total_replicas": 3}})
    (folder / "answers.py").write_text(HANDLER)
    settings = {"model_api": True}
    api = stack.enter_context(
        api_server(redis_url, load_catalog(models), read_declared(models), **settings)
    )
    environ = {"HEADRACE_LEASE_TTL_S": lease_ttl_s}
    one, two = (
        stack.enter_context(celery_worker(redis_url, models, folder, node=node, environ=environ))
        for node in ("cpu0@one", "cpu0@two")
    )
    hosts = Hosts(models, api, one, two)
    wait_shares([one, two], 1, 2)
    return hosts


@pytest.fixture
def hosts(redis_db: RedisServer, tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield hosts_of(redis_db.url, tmp_path, stack, LONG_S)


def test_the_workers_share_up_down_to_none_and_back_and_no_job_is_lost(hosts: Hosts) -> None:
    stop, answers, problems = threading.Event(), Counter[str](), []

    def submit() -> None:
        try:
            while not stop.is_set():
                answers[hosts.answer()] += 1
        except AssertionError as error:
            problems.append(error)

    clients = [threading.Thread(target=submit) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        for total, shares in ((4, (2, 2)), (1, (0, 1)), (0, (0, 0)), (2, (1, 1))):
            hosts.scale(total)
            wait_shares([hosts.one, hosts.two], *shares)
        with site(hosts.one.redis_url, hosts.models) as whole:
            verdict(look(whole, "models"), "ok", MODEL)
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert not problems
    assert set(answers) == {"1.0"}


def test_what_serves_serves_on_when_its_replicas_are_shared(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "answers.py").write_text(HANDLER)
    models = write_models(tmp_path, **{MODEL: {"handler": "answers.py", "replicas": 2}})
    with (
        api_server(redis_db.url, load_catalog(models), read_declared(models)) as api,
        celery_worker(redis_db.url, models, tmp_path) as worker,
    ):
        worker.wait_ready(MODEL)
        wait_until(lambda: running(worker) == 2, "both replicas are ready")
        pids = set(worker.model_pids())
        for total in (2, 1):
            options = {"total_replicas": total}
            answer = api.http.patch(f"/api/v1/models/{MODEL}", json={"options": options})
            assert answer.is_success, answer.text
            wait_until(partial(shares, worker, total), f"{total} replicas are shared")
            assert set(worker.model_pids()) <= pids


def test_a_worker_that_stops_gives_its_replicas_to_the_other_at_once(hosts: Hosts) -> None:
    assert hosts.two.stop() == 0
    wait_shares([hosts.one], 3)


def test_a_supervisor_that_sees_its_worker_die_frees_its_replicas_at_once(
    hosts: Hosts, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        owners = [owner.decode() for owner in client.zrange(keys.WORKERS, 0, -1)]
        (owner,) = [owner for owner in owners if owner.startswith("cpu0@two")]
        hosts.two.kill()
        release_incarnation(redis_db.url, owner)
        assert not client.hexists(keys.replica_leases(f"{MODEL}@1.0"), owner)
    wait_shares([hosts.one], 3)
    with site(redis_db.url, hosts.models) as whole:
        verdict(look(whole, "models"), "ok", MODEL)


def test_a_version_is_promoted_when_it_is_loaded_anywhere(hosts: Hosts) -> None:
    options = {"handler": "answers.py", "total_replicas": 1}
    url = f"/api/v1/models/{MODEL}"
    put = hosts.api.http.put(f"{url}/versions/2.0", json={"options": options})
    assert put.status_code == 201, put.text
    promoted = hosts.api.http.patch(url, json={"default_version": "2.0"})
    assert promoted.is_success, promoted.text
    wait_until(lambda: hosts.answer() == "2.0", "2.0 is the default version", 120)


def test_the_replicas_of_a_lost_host_start_elsewhere_and_are_shared_again(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        hosts = hosts_of(redis_db.url, tmp_path, stack, "2")
        hosts.two.kill()
        wait_shares([hosts.one], 3)
        assert hosts.answer() == "1.0"
        again = stack.enter_context(
            celery_worker(redis_db.url, hosts.models, tmp_path, node="cpu0@three")
        )
        wait_shares([hosts.one, again], 1, 2)


def test_a_worker_that_cannot_load_the_model_leaves_its_share_to_the_other(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    # The first worker's host lacks what the handler needs.
    handler = HANDLER.replace("context.version", "os.environ['LIBRARY_OF_THE_TEST']")
    (tmp_path / "answers.py").write_text(f"import os\n{handler}")
    models = write_models(tmp_path, words={"handler": "answers.py", "total_replicas": 2})
    start = partial(celery_worker, redis_db.url, models, tmp_path)
    with (
        start(node="cpu0@one") as one,
        start(node="cpu0@two", environ={"LIBRARY_OF_THE_TEST": "1"}) as two,
    ):
        wait_until(lambda: (running(one), running(two)) == (0, 2), "the second runs both", 300)
        assert one.says("cannot be loaded here: left to other workers", MODEL) == 1


def test_workers_without_an_api_share_by_their_models_file(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    models = write_models(tmp_path, words={"handler": "echo", "total_replicas": 2})
    start = partial(celery_worker, redis_db.url, models, tmp_path)
    with start(node="cpu0@one") as one, start(node="cpu0@two") as two:
        wait_shares([one, two], 1, 1)
        with Client(redis_db.url, models) as client:
            (job,) = client.submit(MODEL, {"x": 1})
            client.wait(job)
            assert client.result(job) == {"x": 1}
