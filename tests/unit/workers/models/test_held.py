"""What is known of the time that batches take, and who is too late."""

from __future__ import annotations

import time

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.jobs.message import decode_message
from tests.harness.clients.messages import write_message
from workers.batching.batcher import Batcher, BatchPolicy
from workers.batching.estimates import LEAST_AGE_S, LEAST_BATCHES, LeastTime
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.model_process.executor import CANCELLED
from workers.models.held import Deadlines
from workers.models.served_model import ServedModel
from workers.protocol.frames import Done, Phase
from workers.replicas.replica import Replica


def job(name: str, expires_at: float = NEVER) -> LeasedJob:
    return LeasedJob(
        id=name, token=name, message=None, created_us=0, enqueued_at=0, claimed_at=0, attempts=1,
        isolated=False, expires_at=expires_at,
    )  # fmt: skip


def sent(name: str, **given: float) -> LeasedJob:
    message = decode_message(write_message(name, "m", "headrace.m", b"1"))
    return msgspec.structs.replace(job(name), message=msgspec.structs.replace(message, **given))


def seen(batches: int, seconds: float = 1.0, at: float = 0.0) -> LeastTime:
    least = LeastTime()
    for _ in range(batches):
        least.add(seconds, at)
    return least


def test_the_least_time_is_half_of_the_shortest_of_enough_fresh_batches() -> None:
    assert seen(LEAST_BATCHES - 1).at(0) == 0
    least = seen(LEAST_BATCHES)
    assert least.at(0) == 0.5
    least.add(0.2, 1)
    assert least.at(1) == 0.1
    # Of the long ago nothing is said, so that what refused everybody is tried again.
    assert least.at(LEAST_AGE_S + 1) == 0
    least.clear()
    assert least.at(1) == 0


def test_a_short_batch_counts_until_enough_others_have_run() -> None:
    least = seen(LEAST_BATCHES, 0.2)
    for _ in range(LEAST_BATCHES - 1):
        least.add(1.0, 1)
    assert least.at(1) == 0.1
    least.add(1.0, 1)
    assert least.at(1) == 0.5


def prepared(*jobs: LeasedJob) -> tuple[Deadlines, Batcher[LeasedJob]]:
    """Deadlines that watch these jobs, and the batcher that has them."""
    batcher: Batcher[LeasedJob] = Batcher(BatchPolicy(4, 0.0))
    deadlines = Deadlines(ModelConfig(name="m", handler="echo"), batcher)
    for waiting in jobs:
        batcher.add(waiting)
        assert not deadlines.expires_too_soon(waiting, [])
    return deadlines, batcher


def test_what_expires_is_ended_in_time_and_what_has_left_is_not() -> None:
    early, later, gone = job("early", 5), job("later", 9), job("gone", 4)
    deadlines, batcher = prepared(later, early, gone)
    assert deadlines.next_at == 4
    deadlines.unwatch([gone, job("nobody")])
    deadlines.expire(3.9)
    assert deadlines.take_ended() == []
    deadlines.expire(5)
    assert [settlement.id for settlement in deadlines.take_ended()] == ["early"]
    assert batcher.take_all() == [later, gone]
    assert deadlines.next_at == 9
    deadlines.unwatch([later])
    assert deadlines.next_at == NEVER
    deadlines.expire(100)
    assert deadlines.take_ended() == []


def test_only_what_still_waits_ends_as_expired() -> None:
    early, later = job("early", 5), job("later", 9)
    deadlines, batcher = prepared(early, later)
    assert batcher.remove(early)
    deadlines.expire(10)
    assert [settlement.id for settlement in deadlines.take_ended()] == ["later"]
    assert deadlines.next_at == NEVER


def model_with(*inputs: tuple[str, float]) -> ServedModel:
    """A model with an idle process and these jobs, each with its timeout."""
    config = ModelConfig(name="m", handler="echo", timeout_s=9, min_timeout_s=0.2)
    model = ServedModel(config, 0, [Replica({"device": "cpu"}, {}, state=Phase.READY)])
    for name, timeout_s in inputs:
        model._prepare(sent(name, timeout_s=timeout_s))
    return model


def test_without_an_estimate_every_timeout_is_tried() -> None:
    batch = model_with(("a", 0.3), ("b", 9)).next_batch(100)
    assert batch is not None
    assert [job.id for job in batch.jobs] == ["a", "b"]
    assert batch.deadline == 100.3


def test_who_cannot_make_it_is_left_out_of_the_batch_and_of_its_deadline() -> None:
    model = model_with(("a", 0.3), ("b", 9), ("c", 0.31), ("d", 0.01))
    model._deadlines.least_time = seen(LEAST_BATCHES, 0.62, at=99)
    batch = model.next_batch(100)
    assert batch is not None
    assert [job.id for job in batch.jobs] == ["b", "c"]
    assert batch.deadline == 100.31
    # The model's own floor is what the last one would have been given.
    ended = model._deadlines.take_ended()
    messages = [str(end.value) for end in ended]
    assert [(end.id, end.state) for end in ended] == [("a", "x"), ("d", "x")]
    assert "its timeout of 0.2 s" in messages[1]


def test_a_model_with_which_nobody_can_make_it_has_no_batch() -> None:
    model = model_with(("a", 0.3), ("b", 0.3))
    model._deadlines.least_time = seen(LEAST_BATCHES, 5, at=99)
    assert model.next_batch(100) is None
    assert model.unfinished, "a worker that drains must not end before Redis knows"
    assert [end.id for end in model._deadlines.take_ended()] == ["a", "b"]
    assert not model.unfinished


def test_only_a_job_whose_process_was_killed_says_so() -> None:
    model = model_with(("a", 0.3))
    batch = model.next_batch(100)
    assert batch is not None
    killed = str(model.batch_timed_out(batch, 101, "").value)
    assert "its timeout of 0.3 s; its model process was killed" in killed
    model.replicas[0].continuous = True
    assert model.let_leave(model.replicas[0], batch, 101)
    batch.jobs[0].used = "0"
    (left,), _ = model.batch_done(batch, Done(1, [CANCELLED], [0.0] * 4), 102)
    assert "its timeout of 0.3 s; it was stopped, and other jobs run on" in str(left.value)
    assert left.used == "0", "it has returned its tokens"


def test_what_must_begin_before_a_process_can_be_free_ends_at_once() -> None:
    now = time.monotonic()
    for estimate_s, processes, hopeless in (
        (20.0, [now], True),  # it is busy for 10 s at the least
        (20.0, [now, now - 7], False),  # another may be free in 3 s
        (20.0, [now, None], False),
        (0.0, [now], False),  # nothing is known
    ):
        deadlines, _ = prepared()
        if estimate_s:
            deadlines.least_time = seen(LEAST_BATCHES, estimate_s, at=now)
        running = [Replica({}, {}) for _ in processes]
        for replica, at in zip(running, processes, strict=True):
            replica.batch = None if at is None else Batch([], "idle", at, at + 60)
        late = job("late", expires_at=time.monotonic() + 6)
        assert deadlines.expires_too_soon(late, running) is hopeless
        assert [end.id for end in deadlines.take_ended()] == (["late"] if hopeless else [])
        assert (deadlines.next_at == NEVER) is hopeless
