"""Each model's batches as its handler sees them: a real worker, and a device that is kept busy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import Job, State
from headrace.jobs.values.encoding import binary_input
from headrace.redis import keys
from headrace.redis.scripts.jobs import CLAIM_MAX_BYTES
from headrace.server.ports import free_port
from tests.harness.clients.batch_models import BatchLog
from tests.harness.clients.totals import ModelTotals
from tests.harness.fakes.proxy import proxy
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    return BatchLog(tmp_path)


@pytest.fixture
def worker(redis_db: RedisServer, tmp_path: Path, log: BatchLog) -> Iterator[Worker]:
    path = write_models(
        tmp_path,
        padded=log.model(gated=True, allowed_batch_sizes=[1, 4, 8]),
        costly=log.model(gated=True, max_batch_cost=20, cost="bytes"),
        keyed=log.model(gated=True, batch_key="/lang"),
    )
    with celery_worker(redis_db.url, path, tmp_path) as running:
        running.wait_ready("padded", "costly", "keyed")
        yield running


@pytest.fixture
def client(worker: Worker) -> Iterator[Client]:
    with Client(worker.redis_url, worker.models) as connected:
        yield connected


def behind_a_batch(client: Client, log: BatchLog, model: str, *inputs: Any) -> list[Job]:
    """Run inputs that all came while the device was busy with another."""
    (first,) = client.submit(model, "first")
    wait_until(lambda: bool(log.lines(model)), "the device is busy")
    ids = client.submit(model, *inputs)
    lease = keys.lease(keys.queue_name(model))
    wait_until(lambda: client.redis.zcard(lease) == 1 + len(inputs), "all are prepared")
    log.open_gate()
    jobs = client.wait(first, *ids)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert [client.result(job_id) for job_id in ids] == list(inputs)
    return jobs[1:]


def totals(client: Client, model: str, batches: int) -> ModelTotals:
    """The model's counters, once so many batches are in them."""

    def read() -> ModelTotals:
        return ModelTotals.from_fields(client.redis.hgetall(keys.stats(model)))

    wait_until(lambda: sum(read().labelled["left"].values()) == batches, "the batches are counted")
    return read()


def test_a_batch_is_filled_up_and_its_record_says_by_how_many(
    client: Client, log: BatchLog
) -> None:
    jobs = behind_a_batch(client, log, "padded", 1, 2, 3)
    assert [line.items for line in log.lines()] == [["first"], [1, 2, 3, 3]]
    assert {(job.batch_size, job.batch_padding) for job in jobs} == {(3, 1)}
    counted = totals(client, "padded", 2)
    assert counted.counted["padding"] == 1
    assert counted.histograms["batch_size"].sum == 4


def test_a_batch_leaves_before_it_costs_too_much(client: Client, log: BatchLog) -> None:
    # As JSON text 12, 8, 2 and 17 bytes.
    inputs = ["x" * 10, "y" * 6, "", "z" * 15]
    behind_a_batch(client, log, "costly", *inputs)
    assert [line.items for line in log.lines()] == [["first"], inputs[:2], inputs[2:]]
    assert totals(client, "costly", 3).labelled["left"]["cost"] >= 1


def test_only_like_runs_with_like(client: Client, log: BatchLog) -> None:
    inputs = [{"lang": "en"}, {"lang": "fr"}, {"lang": "en", "n": 2}, {"lang": "fr", "n": 2}, 7]
    behind_a_batch(client, log, "keyed", *inputs)
    assert [line.items for line in log.lines()] == [
        ["first"],
        [inputs[0], inputs[2]],
        [inputs[1], inputs[3]],
        [7],
    ]


def test_images_count_by_the_pixels_of_their_headers(
    redis_db: RedisServer, tmp_path: Path, log: BatchLog
) -> None:
    path = write_models(
        tmp_path, images=log.model(gated=True, max_batch_cost=10_000, cost="pixels")
    )
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (100).to_bytes(4, "big") + (40).to_bytes(4, "big")
    image = binary_input(header + b"no more than its header", "image/png")
    with (
        celery_worker(redis_db.url, path, tmp_path) as running,
        Client(redis_db.url, path) as client,
    ):
        running.wait_ready("images")
        # What is no image costs a whole batch, and so runs alone.
        (first,) = client.submit("images", "first")
        wait_until(lambda: bool(log.lines()), "the device is busy")
        ids = client.submit_raw("images", *[image] * 5)
        lease = keys.lease(keys.queue_name("images"))
        wait_until(lambda: client.redis.zcard(lease) == 6, "all are prepared")
        log.open_gate()
        client.wait(first, *ids)
        assert [len(line.ids) for line in log.lines()] == [1, 2, 2, 1]


def test_a_batch_that_is_cut_by_the_bytes_of_its_claim_is_filled_before_it_leaves(
    redis_db: RedisServer, tmp_path: Path, log: BatchLog
) -> None:
    """Two of these inputs come with a claim; that a batch less is worth a claim is learnt first."""
    path = write_models(tmp_path, m=log.model(pause_s=1.0, max_batch_size=4))
    inline = {"HEADRACE_INLINE_LIMIT_BYTES": str(CLAIM_MAX_BYTES)}
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=inline) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("m")
        for count in (1, 4):
            client.wait(*submitted_at_once(worker, client, ["small"] * count))
        large = submitted_at_once(worker, client, ["x" * (CLAIM_MAX_BYTES // 3)] * 8)
        client.wait(*large)
    assert [len(line.ids) for line in log.lines("m")] == [1, 4, 4, 4]


def test_a_batch_that_waits_for_company_leaves_when_redis_goes_away(
    redis_db: RedisServer, tmp_path: Path, log: BatchLog
) -> None:
    """Its claim is never answered; nothing else would end the wait, however long it was."""
    path = write_models(tmp_path, m=log.model(max_batch_size=77))
    environ = {"HEADRACE_INLINE_LIMIT_BYTES": str(CLAIM_MAX_BYTES)}
    with proxy(redis_db.port) as way, Client(redis_db.url, path) as client:
        url = f"redis://127.0.0.1:{way.port}/0"
        app = "tests.harness.workers.patient_app"
        with celery_worker(url, path, tmp_path, environ=environ, app=app) as worker:
            worker.wait_ready("m")
            client.wait(*client.submit("m", "teaches what a batch takes"))
            # The claim behind the one that gave the first of them has room for 76 of each step.
            claim = b"$2\r\n76\r\n$2\r\n76\r\n$2\r\n76\r\n"
            way.lose_answer_to(claim, then=lambda: way.lead_to(free_port()))
            large = submitted_at_once(worker, client, ["x" * (CLAIM_MAX_BYTES * 2 // 3)] * 3)
            wait_until(lambda: way.lost == 1, "Redis is away")
            wait_until(lambda: len(log.lines("m")) == 2, "the first has left", 60)
            assert log.lines("m")[1].ids == large[:1]
            way.lead_to(redis_db.port)
            assert {job.attempts for job in client.wait(*large)} == {1}
    assert sorted(n for line in log.lines("m")[1:] for n in line.ids) == sorted(large)


def submitted_at_once(worker: Worker, client: Client, inputs: list[Any]) -> list[str]:
    """Submit them where an idle worker sees none of them before all are there."""
    suspend(worker.pid)
    try:
        return client.submit("m", *inputs)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
