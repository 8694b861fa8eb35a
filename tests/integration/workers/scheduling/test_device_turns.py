"""Models of one worker share its device, one batch at a time: what runs when, as handlers see."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from tests.harness.clients.batch_models import BatchLog, uses
from tests.harness.clients.celery_client import Events, stock_client
from tests.harness.clients.totals import ModelTotals
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.verbs import bench
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

ONE_AT_A_TIME = {"HEADRACE_DEVICE_SLOTS": "1"}
BATCH_S = 0.03


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    return BatchLog(tmp_path)


@pytest.fixture
def worker(redis_db: RedisServer, tmp_path: Path, log: BatchLog) -> Iterator[Worker]:
    size: dict[str, Any] = {"max_batch_size": 2, "pause_s": BATCH_S}
    path = write_models(
        tmp_path,
        flooded=log.model(**size),
        heavy=log.model(**size, weight=3),
        lone=log.model(pause_s=BATCH_S / 10),
        first=log.model(gated=True),
    )
    with celery_worker(redis_db.url, path, tmp_path, environ=ONE_AT_A_TIME) as running:
        running.wait_ready("flooded", "heavy", "lone", "first")
        yield running


@pytest.fixture
def client(worker: Worker) -> Iterator[Client]:
    with Client(worker.redis_url, worker.models) as connected:
        yield connected


def test_a_lone_job_beside_a_flood_waits_for_one_batch_of_it(client: Client, log: BatchLog) -> None:
    flood = client.submit("flooded", *range(200))
    wait_until(lambda: bool(log.lines("flooded")), "the flood runs")
    waited = []
    for n in range(10):
        # However long this test was held up.
        if client.redis.llen(keys.queue_name("flooded")) < 100:
            flood += client.submit("flooded", *range(100))
        (lone,) = client.submit("lone", n)
        (job,) = client.wait(lone)
        began = [line.ids[0] if line.model == "lone" else "" for line in log.lines()].index(lone)
        came_s = job.created_us / US_PER_S
        before = [line for line in log.lines()[:began] if line.model == "flooded"]
        waited.append(sum(line.at > came_s for line in before))
    # The batch that ran when the job came is not counted. One more may have begun between then
    # and the claim of the job, which takes a round trip to Redis or two.
    assert sorted(waited)[5] <= 1, waited
    assert max(waited) <= 2, waited
    assert log.most_at_once() == 1
    assert {job.state for job in client.wait(*flood)} == {State.SUCCEEDED}


def test_under_flood_device_time_goes_by_weight(client: Client, log: BatchLog) -> None:
    """Time is shared, and not batches: on a busy machine some take much longer than others."""
    weights = {"flooded": 1, "heavy": 3}
    # Both are prepared behind one batch, so that from then on neither ever lacks work.
    ids = client.submit("first", 0)
    wait_until(lambda: bool(log.lines("first")), "the device is busy")
    ids += [*client.submit("flooded", *range(60)), *client.submit("heavy", *range(180))]
    leases = [keys.lease(keys.queue_name(model)) for model in weights]
    wait_until(lambda: all(client.redis.zcard(lease) for lease in leases), "both are prepared")
    log.open_gate()
    assert {job.state for job in client.wait(*ids)} == {State.SUCCEEDED}
    assert log.most_at_once() == 1
    turns = list(uses(log, without="first"))
    models = [model for model, _ in turns]
    both = min(len(models) - models[::-1].index(model) for model in weights)
    # A batch that stood still with the machine costs its model so many turns.
    longest_s = max(
        after[model].most_s - before[model].most_s
        for (_, before), (_, after) in pairwise(turns)
        for model in weights
    )
    assert both >= 60 or longest_s > 1, turns
    # While the other was not claimed again yet, one of them ran at most two batches. Their length
    # depends on how slow the machine is.
    _, whole = turns[-1]
    usual_s = max(whole[model].most_s / models.count(model) for model in weights)
    before_s = 2 * max(usual_s, longest_s)
    for n, (model, used) in enumerate(turns[:both]):
        (other,) = weights.keys() - {model}
        ahead_s = used[model].least_s / weights[model] - used[other].most_s / weights[other]
        assert ahead_s <= before_s, (n, model, used)


def test_a_model_that_hangs_gives_its_turn_up_at_its_timeout(
    client: Client, worker: Worker, log: BatchLog
) -> None:
    """Its slot comes back with the kill; the job behind it runs."""
    pid = worker.states()["flooded"]["pids"][0]
    suspend(pid)
    (stuck,) = client.submit("flooded", 1, timeout=2)
    (lone,) = client.submit("lone", 2)
    client.wait(lone, stuck)
    assert client.job(lone).state is State.SUCCEEDED
    assert client.job(stuck).state is State.FAILED


def test_a_device_of_two_slots_runs_two_batches_and_no_more(
    redis_db: RedisServer, tmp_path: Path, log: BatchLog
) -> None:
    path = write_models(
        tmp_path, **{name: log.model(gated=True, max_batch_size=1) for name in ("a", "b", "c")}
    )
    environ = {"HEADRACE_DEVICE_SLOTS": "2"}
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=environ) as running,
        Client(redis_db.url, path) as client,
    ):
        running.wait_ready("a", "b", "c")
        ids = [job_id for name in "abc" for job_id in client.submit(name, *range(3))]
        wait_until(lambda: len(log.lines()) == 2, "two run")
        held = [keys.lease(keys.queue_name(name)) for name in "abc"]
        wait_until(
            lambda: all(client.redis.zcard(lease) for lease in held), "the third is prepared"
        )
        assert max(client.redis.zcard(lease) for lease in held) <= 2, "one runs, one is prepared"
        log.open_gate()
        client.wait(*ids)
        assert log.most_at_once() == 2
        # Both may end at once, and the answer to the claim may still have been on its way then. But
        # neither of the others runs to its end before the third has had a turn. A process that has
        # a batch may be slow to begin it, so the worker's times count.
        started = sorted(map(client.job, ids), key=lambda job: job.started_us)
        assert {job.model for job in started[:6]} == {"a", "b", "c"}


def test_requests_of_a_generator_run_together_beside_a_model_that_always_waits(
    redis_db: RedisServer, tmp_path: Path, log: BatchLog
) -> None:
    generator = {"handler": f"{HANDLERS / 'generation/generating.py'}:Words"}
    options = {"slots": 16, "step_s": 0.02}
    path = write_models(
        tmp_path,
        static=log.model(pause_s=0.5, max_batch_size=4),
        words={**generator, "options": options},
    )
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=ONE_AT_A_TIME) as running,
        Client(redis_db.url, path) as client,
    ):
        running.wait_ready("static", "words")
        flood = client.submit("static", *range(48))
        wait_until(lambda: bool(log.lines()), "the static model has the device")
        ids = client.submit("words", *({"words": 50} for _ in range(24)))
        started = {job.started_us / US_PER_S: True for job in client.wait(*ids)}
        turns = dict.fromkeys((line.at for line in log.lines()), False) | started
        kinds = [kind for kind, _ in groupby(turns[at] for at in sorted(turns))]
        # 16 and 8 requests. A pause of the machine while they come can cost a turn.
        assert kinds.count(True) <= 4, kinds
        client.wait(*flood)


def totals(client: Client) -> ModelTotals:
    """What was counted of the model."""
    return ModelTotals.from_fields(client.redis.hgetall(keys.stats("m")))


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_batch_that_is_only_prepared_makes_way_for_another_model(
    redis_db: RedisServer, tmp_path: Path, cancelled: bool
) -> None:
    with (
        bench(redis_db, tmp_path, environ=ONE_AT_A_TIME, beside=("lone",)) as at,
        stock_client(redis_db.url) as app,
        Events(app) as events,
    ):
        # What a batch takes is known, so that one that takes longer is expected to end at once.
        at.client.wait(*at.submit({"name": "quick"}))
        running = at.submit({"name": "x", "drops": "inference", "count": 2 if cancelled else 1})
        at.wait_for("inference x begins")
        (staged,) = at.submit({"name": "staged"})
        at.wait_for("preprocess staged ends")
        events.wait_for("started", staged)
        if cancelled:
            at.client._call("jobs/cancel", 0, staged)
        lone = at.client.submit("lone", {"name": "lone"})
        jobs = at.client.wait(*running, staged, *lone)
        ended = State.CANCELLED if cancelled else State.SUCCEEDED
        assert [job.state for job in jobs] == [State.SUCCEEDED, ended, State.SUCCEEDED]
        began = [line for line in at.lines() if line.startswith("inference") and "begins" in line]
        names = ["quick", "x", "lone", *([] if cancelled else ["staged"])]
        assert began == [f"inference {name} begins" for name in names]
        assert jobs[1].attempts == (0 if cancelled else 1)
        assert at.client.redis.hlen(keys.held("headrace.m")) == 0
        # It left twice, and is announced and counted once; if its job was cancelled it never ran.
        events.wait_for("revoked" if cancelled else "succeeded", staged)
        assert events.kinds(staged) == ["received", "started", events.kinds(staged)[-1]]
        ran = 2 if cancelled else 3
        wait_until(
            lambda: totals(at.client).histograms["batch_size"].count == ran,
            "all batches are counted",
        )
        counted = totals(at.client).labelled
        assert sum(counted["left"].values()) == ran
        assert sum(counted["ended"].values()) == 3
