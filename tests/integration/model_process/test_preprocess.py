"""`preprocess` in processes and threads of its own, for real through a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models


def model(handler: str = "Prepared", **more: Any) -> dict[str, Any]:
    spec = f"{HANDLERS / 'prepared.py'}:{handler}"
    return {"handler": spec, "preprocess_processes": 2, "max_batch_size": 8, **more}


@contextmanager
def prepared(
    redis: RedisServer, folder: Path, **models: dict[str, Any]
) -> Iterator[tuple[Worker, Client]]:
    path = write_models(folder, **models)
    with celery_worker(redis.url, path, folder) as worker, Client(redis.url, path) as client:
        yield worker, client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Client]]:
    """A worker for all tests that leave it running."""
    models = {
        "m": model(),
        "threads": model(preprocess_processes=0, preprocess_threads=4),
        "room": model(),
        "broken": model(options={"load": "fail"}),
        "keeps": model("Keeps"),
        "heavy": model("Heavy"),
    }
    with (
        redis_server() as server,
        prepared(server, tmp_path_factory.mktemp("shared"), **models) as (worker, client),
    ):
        worker.wait_ready("m", "threads", "room")
        yield worker, client
        nothing_leaks(client.redis)


def results(client: Client, *ids: str) -> list[dict[str, Any]]:
    client.wait(*ids)
    return [client.result(job_id) for job_id in ids]


def load_error(worker: Worker, name: str) -> str:
    def error() -> str:
        return str(worker.states()[name]["error"])

    return wait_until(error, "the load has failed", timeout_s=60)


def test_the_items_of_a_batch_are_shared_and_their_arrays_cross(
    shared: tuple[Worker, Client],
) -> None:
    worker, client = shared
    ids = client.submit("m", *({"n": n} for n in range(200)))
    got = results(client, *ids)
    assert [one["array"] for one in got] == [float(n * n * 64) for n in range(200)]
    assert {one["where"] for one in got} == {"preprocess"}
    assert len({one["pid"] for one in got}) == 2
    assert {one["model_pid"] for one in got} == set(worker.states()["m"]["pids"])
    assert {one["gpu"] for one in got} == {""}
    assert max(one["size"] for one in got) == 4


def test_threads_share_a_batch_too(shared: tuple[Worker, Client]) -> None:
    _, client = shared
    got = results(client, *client.submit("threads", *({"n": n} for n in range(100))))
    assert {one["where"] for one in got} == {"model"}
    assert max(one["size"] for one in got) == 2


def test_each_item_has_its_own_outcome(shared: tuple[Worker, Client]) -> None:
    _, client = shared
    inputs: list[dict[str, Any]] = [{"n": n} for n in range(16)]
    inputs[3] = {"raise": "zzz"}
    inputs[7] = {"error": "send text"}
    inputs[9] = {"odd": True}
    inputs[11] = {"n": 1 << 80}
    inputs[13] = {"n": "\ud800"}
    jobs = client.wait(*client.submit("m", *inputs))
    errors = {n: json.loads(job.error_json) for n, job in enumerate(jobs) if job.error_json}
    assert {n: error["message"][:31] for n, error in errors.items()} == {
        3: "ValueError: no such word: zzz",
        7: "send text",
        9: "preprocess returned a value tha",
        11: "a number in the input has more ",
        13: "text in the input is not valid ",
    }
    assert [errors[n]["type"] for n in (3, 7, 9, 11, 13)] == [
        "handler-error", "input-error", "handler-error", "input-error", "input-error",
    ]  # fmt: skip
    assert "in item" in (jobs[3].traceback or "")
    assert sum(job.state is State.SUCCEEDED for job in jobs) == 11


def test_memory_that_is_short_there_makes_the_batches_smaller(
    shared: tuple[Worker, Client],
) -> None:
    worker, client = shared
    jobs = client.wait(*client.submit("room", *({"room": 2} for _ in range(32))))
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    wait_until(lambda: worker.states()["room"]["fits"] == 4, "the size that fits is told")


@pytest.mark.slow
def test_an_input_that_takes_its_process_with_it_pays_alone_and_all_end_with_their_worker(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with prepared(redis_db, tmp_path, m=model()) as (worker, client):
        worker.wait_ready("m")
        jobs = client.wait(*client.submit("m", {"n": 1}, {"die": True}, {"n": 3}), timeout_s=90)
        assert [job.state for job in jobs] == [
            State.SUCCEEDED, State.FAILED, State.SUCCEEDED,
        ]  # fmt: skip
        assert json.loads(jobs[1].error_json)["type"] == "replica-lost"
        assert "a preprocess process ended with 9" in worker.log

        got = results(client, *client.submit("m", *({"n": n} for n in range(40))))
        pids = {one["pid"] for one in got} | {one["model_pid"] for one in got}
        assert len(pids) == 3
        worker.kill()
        wait_until(lambda: gone(*pids), "they are gone")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "RuntimeError: no such vocabulary"),
        ("keeps", "runs its verbs in turn; set overlap = True if the handler keeps nothing"),
        ("heavy", "define initialize_preprocess(context): set up what preprocess needs"),
    ],
)
def test_a_handler_that_cannot_be_run_so_is_a_failed_load(
    shared: tuple[Worker, Client], name: str, says: str
) -> None:
    assert says in load_error(shared[0], name)
