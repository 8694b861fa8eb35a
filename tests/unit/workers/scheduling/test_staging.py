"""When a second batch is handed over, and whose slot of the device it takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from workers.jobs.leased_job import Batch, LeasedJob
from workers.models.backlog import OWN, Place
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import QUIET_S, Dispatcher, replica_for_second, stage_at

NOW = 1000.0
numbers = itertools.count(1)


def job(*, alone: bool = False, step: int = 0) -> LeasedJob:
    job_id = f"job-{next(numbers)}"
    return LeasedJob(
        id=job_id, token="1", message=None, created_us=0, enqueued_at=NOW, claimed_at=NOW,
        attempts=1, isolated=alone, step=step,
    )  # fmt: skip


def batch(reason: str = "idle", started_at: float = NOW) -> Batch:
    return Batch([job()], reason, started_at, started_at + 60, seq=next(numbers))


def served(name: str = "m", *, overlap: bool = True, **options: Any) -> ServedModel:
    """A model with one loaded process."""
    config = ModelConfig(name=name, handler="echo", max_batch_size=4, **options)
    replica = Replica({"device": "cpu"}, {}, state=Phase.READY, overlap=overlap)
    return ServedModel(config, 0, [replica])


def busy(
    running: ServedModel, waiting: int, *, ends_in_s: float = 1.0, prepare_s: float = 0.01
) -> ServedModel:
    """The model with a running batch, `waiting` jobs, and known times."""
    running._batcher.latency_model.add(1, ends_in_s)
    running.prepare_s = prepare_s
    running.replicas[0].batch = batch()
    for _ in range(waiting):
        running._batcher.add(job())
    return running


def staged(running: ServedModel, *others: ServedModel, now: float = NOW) -> bool:
    return replica_for_second(running, [running, *others], now) is not None


def test_a_full_batch_is_staged_at_once_and_a_smaller_one_as_late_as_it_may() -> None:
    assert staged(busy(served(), 4))
    late = busy(served(), 2)
    assert not staged(late)
    at = stage_at(late, NOW)
    assert at == pytest.approx(NOW + 1 - 2 * 0.01)
    assert staged(late, now=NOW + 0.981)
    assert stage_at(late, NOW + 0.981) is None


def test_what_waits_longest_for_its_preparation_is_staged_first_of_all() -> None:
    assert staged(busy(served(), 1, prepare_s=2.0))


def test_nothing_is_staged_behind_what_must_run_alone_nor_that_behind_others() -> None:
    first = busy(served(), 4)
    first.replicas[0].batch = batch("alone")
    assert not staged(first)
    second = busy(served(), 4)
    second._batcher.add(job(alone=True))
    assert not staged(second)


def test_a_handler_that_runs_in_turn_gets_one_batch_at_a_time() -> None:
    assert not staged(busy(served(overlap=False), 4))


def test_there_is_room_for_one() -> None:
    full = busy(served(), 4)
    full.replicas[0].staged = batch()
    assert not staged(full)


def test_where_models_share_the_device_a_batch_is_not_staged_early_nor_before_one_that_waits() -> (
    None
):
    other = served("other")
    other._batcher.online_at = NOW - 1
    assert not staged(busy(served(), 4), other)
    assert staged(busy(served(), 4, ends_in_s=0.01), other)
    other._batcher.add(job())
    assert not staged(busy(served(), 4, ends_in_s=0.01), other)


def test_a_model_of_the_device_without_recent_jobs_does_not_keep_a_full_batch_back() -> None:
    other = served("other")
    assert staged(busy(served(), 4), other)
    other._batcher.online_at = NOW - QUIET_S - 1
    assert staged(busy(served(), 4), other)
    other._backlog.assume_waiting([Place(OWN, 1)])
    assert not staged(busy(served(), 4), other)


def test_a_staged_batch_takes_over_the_slot_of_the_one_before_it() -> None:
    first, other = served(), served("other")
    for one in (first, other):
        one._batcher.add(job())
    devices = Dispatcher([first, other], slots=1)
    running = devices.next(NOW)
    assert running is not None
    replica = running.replica
    replica.batch = running.batch
    replica.staged = behind = batch()
    assert devices.next(NOW) is None
    assert replica.finished(running.batch.seq, NOW + 1) is running.batch
    assert replica.batch is behind
    # It runs now, so that the other model still waits for the device.
    assert devices.next(NOW + 1) is None
    assert replica.finished(behind.seq, NOW + 2) is behind
    following = devices.next(NOW + 2)
    assert following is not None
    assert following.model is not running.model


def test_jobs_that_run_at_the_same_time_are_charged_for_it_once() -> None:
    """Of two models with equal shares, one with several jobs at once is charged by the clock."""
    many, other = served(), served("other")
    many._batcher.add(job())
    devices = Dispatcher([many, other], slots=1)
    running = devices.next(NOW)
    assert running is not None
    replica = running.replica
    replica.continuous = True
    running.batch.begin(NOW)
    replica.batch, replica.joined = running.batch, [batch() for _ in range(7)]
    for n, one in enumerate(replica.running, 1):
        replica.finished(one.seq, NOW + 1 + n / 100)
        assert devices.next(NOW + 1 + n / 100) is None
    # It has used the device for 1.08 seconds. The other one, after 1.05, is still behind.
    other._batcher.add(job())
    turn = devices.next(NOW + 2)
    assert turn is not None
    assert turn.model is other
    turn.batch.begin(NOW + 2)
    turn.replica.batch = turn.batch
    turn.replica.finished(turn.batch.seq, NOW + 3.12)
    many._batcher.add(job())
    other._batcher.add(job())
    turn = devices.next(NOW + 3.12)
    assert turn is not None
    assert turn.model is many


def test_the_time_of_a_staged_batch_begins_when_the_one_before_it_has_ended() -> None:
    replica = Replica({}, {}, batch=batch(), staged=batch())
    ran, behind = replica.batch, replica.staged
    assert ran is not None
    assert behind is not None
    assert replica.finished(ran.seq, NOW + 30) is ran
    assert (behind.started_at, behind.deadline) == (NOW + 30, NOW + 90)
    assert replica.finished(12345, NOW) is None


@pytest.mark.parametrize("began", [False, True])
def test_who_is_suspect_when_the_process_dies(began: bool) -> None:
    replica = Replica({}, {}, batch=batch(), staged=batch(), staged_began=began)
    ran, behind = replica.batch, replica.staged
    begun, untouched = replica.take_batches()
    assert begun == ([ran, behind] if began else [ran])
    assert untouched == ([] if began else [behind])
    assert replica.take_batches() == ([], [])


def offline_flood(running: ServedModel) -> ServedModel:
    """The model with a running batch and waiting offline jobs."""
    busy(running, 0)
    for _ in range(4):
        running._batcher.add(job(step=9))
    return running


def test_offline_work_is_staged_as_late_as_it_may_and_only_where_it_is_quiet() -> None:
    quiet = offline_flood(served())
    assert not staged(quiet), "not early, though it is full"
    assert staged(quiet, now=NOW + 0.99)
    assert stage_at(quiet, NOW) == pytest.approx(NOW + 1 - 4 * 0.01)
    other = served("other")
    assert staged(quiet, other, now=NOW + 0.99)
    other._backlog.assume_waiting([Place(OWN, 1)])
    assert not staged(quiet, other, now=NOW + 0.99), "something online is known to come"
    third = served("served")
    third._batcher.add(job())
    third._batcher.take_all()
    assert not staged(quiet, third, now=NOW + 0.99), "an online job came a moment ago"
    assert staged(quiet, third, now=NOW + 0.99 + QUIET_S)


def test_an_online_batch_is_staged_before_the_offline_work_of_another_model() -> None:
    online = busy(served(), 4, ends_in_s=0.01)
    other = served("other")
    other._batcher.add(job(step=9))
    assert staged(online, other)


def test_a_staged_batch_makes_way_for_who_is_next_and_for_nobody_else() -> None:
    flooded, other = busy(served(), 0), served("other")
    flooded.replicas[0].batch = None
    flooded._batcher.add(job())
    dispatch = Dispatcher([flooded, other], 1)
    dispatched = dispatch.next(NOW)
    assert dispatched is not None
    dispatched.replica.batch = dispatched.batch
    assert not dispatch.should_preempt(flooded, batch(), NOW + 1), "nobody waits"
    other._batcher.add(job())
    assert dispatch.should_preempt(flooded, batch(), NOW + 1)
    assert not dispatch.should_preempt(flooded, batch(), NOW), "its own turn is not over"
    offline = Batch([job(step=9)], "full", NOW, NOW + 60)
    assert dispatch.should_preempt(flooded, offline, NOW)
    other._batcher.take_all()
    assert not dispatch.should_preempt(flooded, offline, NOW)
    flooded._batcher.add(job())
    assert dispatch.should_preempt(flooded, offline, NOW), "its own online job goes first"
    offline.jobs[0].overdue_at = NOW
    assert not dispatch.should_preempt(flooded, offline, NOW), "but not before an overdue one"
    other._batcher.add(job())
    free = Dispatcher([flooded, other], 2)
    assert not free.should_preempt(flooded, batch(), NOW + 1), "there is room for both"


def test_what_gave_way_waits_again_but_for_those_that_were_dropped() -> None:
    flooded = served()
    returned = Batch([job() for _ in range(3)], "full", NOW, NOW + 60)
    for one in returned.jobs:
        one.dispatched_at = NOW
        flooded._held[one.id] = one
    kept, cancelled, lost = returned.jobs
    cancelled.dropped, lost.dropped = "cancelled", "lost"
    ended = flooded.batch_returned(returned)
    assert [(end.id, end.state) for end in ended] == [(cancelled.id, "c")]
    assert set(flooded._held) == {kept.id, cancelled.id}
    assert flooded._batcher.take_all() == [kept]
    assert kept.dispatched_at == 0.0
