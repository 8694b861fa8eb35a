"""Priorities in a real worker: what runs when, as handlers see it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import CLAIM_MAX_BYTES
from tests.harness.clients.batch_models import BatchLog, Line, uses
from tests.harness.servers.redis_servers import leaked_keys, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

ONE_AT_A_TIME = {"HEADRACE_DEVICE_SLOTS": "1"}
BATCH_S = 0.03
OFFLINE = 9


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("priorities")
    log = BatchLog(folder)
    pairs: dict[str, Any] = {"max_batch_size": 2, "gated": True}
    path = write_models(
        folder,
        pairs=log.model(**pairs),
        other=log.model(**pairs),
        single=log.model(max_batch_size=1, gated=True, pause_s=BATCH_S, max_yield_s=BATCH_S),
        patient=log.model(max_batch_size=1, gated=True, max_yield_s=0),
        eights=log.model(allowed_batch_sizes=[1, 8], gated=True, pause_s=BATCH_S),
    )
    with redis_server() as server:
        with celery_worker(server.url, path, folder, environ=ONE_AT_A_TIME) as running:
            running.wait_ready("pairs", "other", "single", "patient", "eights")
            yield running
        with server.client() as redis:
            assert leaked_keys(redis) == []


@pytest.fixture
def log(worker: Worker) -> BatchLog:
    """The worker's log, empty, with the gate closed."""
    log = BatchLog(worker.folder)
    log.path.unlink(missing_ok=True)
    log.gate.unlink(missing_ok=True)
    return log


@pytest.fixture
def client(worker: Worker, log: BatchLog) -> Iterator[Client]:
    with Client(worker.redis_url, worker.models) as connected:
        yield connected
        log.open_gate()
        wait_until(lambda: not left(connected), "all is run")


def left(client: Client) -> int:
    """How many jobs wait or run."""
    queues = [model.queue for model in client.catalog.models.values()]
    names = [name for queue in queues for name in keys.step_keys(queue)]
    waiting = sum(int(client.redis.llen(name)) for name in names)
    return waiting + sum(int(client.redis.zcard(keys.lease(queue))) for queue in queues)


def held(client: Client, *ids: str) -> bool:
    """Whether the worker has claimed all of these."""
    leased = {
        name
        for model in client.catalog.models.values()
        for name in client.redis.zrange(keys.lease(model.queue), 0, -1)
    }
    return {job_id.encode() for job_id in ids} <= leased


def order(log: BatchLog) -> list[str]:
    return [job_id for line in log.lines() for job_id in line.ids]


def test_an_online_job_goes_before_an_offline_batch_that_is_prepared(
    client: Client, log: BatchLog
) -> None:
    offline = client.submit("pairs", *range(8), priority=OFFLINE)
    wait_until(lambda: len(log.lines()) == 1, "an offline batch runs")
    running = len(log.lines()[0].ids)
    prepared = offline[running : running + 2]
    wait_until(lambda: held(client, *prepared), "another is prepared")
    online = client.submit("pairs", *range(3))
    lowest = client.submit("pairs", 1, priority=6)
    best_two = online[:2]
    wait_until(lambda: held(client, *best_two), "two online jobs are prepared too")
    assert not held(client, offline[running + 2]), "of each class one batch is prepared"
    log.open_gate()
    jobs = client.wait(*online, *lowest, *offline)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert order(log)[running:] == [*online, *lowest, *offline[running:]]


def test_each_better_priority_goes_before_what_is_prepared(client: Client, log: BatchLog) -> None:
    client.submit("patient", 0)
    wait_until(lambda: bool(log.lines()), "it runs")
    ids: list[str] = []
    for priority in (9, 6, 3, 0):
        ids[:0] = client.submit("patient", priority, priority=priority)
        wait_until(lambda: held(client, *ids), "it is prepared")
    log.open_gate()
    client.wait(*ids)
    assert order(log)[1:] == ids


def test_offline_work_of_one_model_waits_for_all_online_work_of_another(
    client: Client, log: BatchLog
) -> None:
    offline = client.submit("pairs", *range(8), priority=OFFLINE)
    wait_until(lambda: len(log.lines()) == 1, "an offline batch runs")
    running = log.lines()[0].ids
    online = client.submit("other", *range(9))
    wait_until(lambda: held(client, *online[:2]), "an online batch is prepared")
    log.open_gate()
    client.wait(*offline, *online)
    assert order(log) == [*running, *online, *offline[len(running) :]]
    assert log.most_at_once() == 1


def test_what_has_waited_too_long_goes_before_better_jobs_one_in_ten(
    client: Client, log: BatchLog
) -> None:
    (first,) = client.submit("single", 0)
    wait_until(lambda: bool(log.lines()), "it runs")
    offline = client.submit("single", *range(20), priority=OFFLINE)
    online = client.submit("single", *range(60))
    log.open_gate()
    client.wait(*online, *offline, timeout_s=120)
    ran = order(log)
    assert ran[0] == first
    assert [job_id for job_id in ran if job_id in offline] == offline, "the oldest first"
    assert [job_id for job_id in ran if job_id in online] == online
    before = log.lines()[: ran.index(online[-1])]
    early = [line for line in before if line.ids[0] in offline]
    claimed_s = {job_id: client.job(job_id).started_us / US_PER_S for job_id in online}

    def passed_over(line: Line) -> bool:
        """Whether the worker had an online job by then, and not only Redis."""
        following = ran[ran.index(line.ids[0]) :]
        best = next(job_id for job_id in following if job_id in claimed_s)
        return claimed_s[best] < line.at - 2 * BATCH_S

    told = ["offline" if line in early else "online" for line in before]
    # Six, and a few more where the worker was slow to hear of the next online job.
    assert len(early) >= 4, told
    assert sum(map(passed_over, early)) <= 10, told


def test_without_a_bound_it_waits_for_all_of_them(client: Client, log: BatchLog) -> None:
    client.submit("patient", 0)
    wait_until(lambda: bool(log.lines()), "it runs")
    offline = client.submit("patient", *range(3), priority=OFFLINE)
    online = client.submit("patient", *range(30))
    wait_until(lambda: held(client, online[0]), "an online job is prepared")
    log.open_gate()
    client.wait(*online, *offline)
    assert order(log)[1:] == [*online, *offline]


def test_overdue_offline_work_gets_device_time_beside_the_flood_of_another_model(
    client: Client, log: BatchLog
) -> None:
    log.open_gate()
    # Far more than run until the others have ended, however long this test is held up.
    online = client.submit("eights", *range(2400))
    wait_until(lambda: len(log.lines()) > 1, "the flood runs")
    offline = client.submit("single", *range(3), priority=OFFLINE)
    client.wait(*offline, timeout_s=120)
    client._call("jobs/cancel", 0, *online)
    client.wait(*online, timeout_s=120)
    models = [line.model for line in log.lines()]
    turns = [number for number, model in enumerate(models) if model == "single"]
    assert len(turns) == 3
    assert turns[-1] < len(models) - 1, "the flood was over before it"
    # A tenth of the time, less what the flood had used beyond its share when they came. That is one
    # batch, whose length depends on how slow the machine is.
    used = [use for _, use in uses(log)]
    first, last = used[turns[0]], used[turns[-1]]
    beside_s = last["eights"].most_s - first["eights"].most_s
    batch_s = max(b["eights"].most_s - a["eights"].most_s for a, b in pairwise(used))
    assert beside_s + batch_s >= 5 * last["single"].least_s, (models, used)


def test_offline_jobs_fill_the_places_that_an_online_batch_leaves_empty(
    client: Client, log: BatchLog
) -> None:
    (first,) = client.submit("eights", 0)
    wait_until(lambda: len(log.lines()) == 1, "a batch runs")
    offline = client.submit("eights", *range(10), priority=OFFLINE)
    wait_until(lambda: held(client, *offline[:8]), "an offline batch is prepared")
    online = client.submit("eights", *range(3))
    wait_until(lambda: held(client, *online), "the online jobs are prepared")
    log.open_gate()
    client.wait(*offline, *online)
    assert [line.ids for line in log.lines()] == [
        [first],
        [*online, *offline[:5]],
        offline[5:],
    ]


def test_a_batch_of_large_inputs_is_filled_by_several_claims_while_the_device_is_busy(
    client: Client, log: BatchLog
) -> None:
    client.submit("eights", 0)
    wait_until(lambda: bool(log.lines()), "a batch runs")
    large = client.submit("eights", *("x" * (CLAIM_MAX_BYTES // 3) for _ in range(8)))
    wait_until(lambda: held(client, *large), "all of them are prepared")
    log.open_gate()
    client.wait(*large)
    assert log.lines()[1].ids == large
