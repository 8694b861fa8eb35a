"""A served model notes the ends of its batches, and waits for the callers that come back."""

from __future__ import annotations

import itertools

from headrace.config.model.catalog import ModelConfig
from headrace.redis.keys import OFFLINE_STEP
from workers.jobs.leased_job import Batch, LeasedJob
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica

TRIP_S = 0.002
BATCH_S = 0.02
numbers = itertools.count(1)


def job(at: float, step: int = 0) -> LeasedJob:
    return LeasedJob(
        id=f"j{next(numbers)}", token="1", message=None, created_us=0, enqueued_at=at,
        claimed_at=at, ready_at=at, attempts=1, step=step,
    )  # fmt: skip


def looping(step: int = 0) -> tuple[ServedModel, Batch, float]:
    """A model whose callers come back; its last batch has just ended."""
    replica = Replica({"device": "cpu"}, {}, state=Phase.READY, overlap=True)
    model = ServedModel(ModelConfig(name="m", handler="echo", max_batch_size=8), 0, [replica])
    for size in (1, 4) * 20:
        model._batcher.latency_model.add(size, BATCH_S)
    at = 1000.0
    for _ in range(8):
        batch = Batch([job(at, step) for _ in range(4)], "idle", at, at + 60)
        at += BATCH_S
        model.batch_ended(batch, at)
        for _ in range(4):
            model._prepare(job(at + TRIP_S))
        model.release_prepared()
        at += TRIP_S
    model.batch_ended(batch, at)
    return model, batch, at


def test_the_next_batch_waits_for_the_callers_of_the_one_that_has_ended() -> None:
    model, _, at = looping()
    model._prepare(job(at - BATCH_S / 2))
    assert model.next_batch(at) is None
    assert model.hold_until is not None
    for _ in range(4):
        model._prepare(job(at + TRIP_S))
    left = model.next_batch(at + TRIP_S)
    assert left is not None
    assert len(left.jobs) == 5


def test_nothing_is_staged_behind_a_batch_whose_callers_come_back() -> None:
    model, batch, at = looping()
    for _ in range(4):
        model._prepare(job(at + TRIP_S))
    assert model.next_batch(at + TRIP_S) is not None
    model._prepare(job(at + BATCH_S))
    assert model.next_batch(at + BATCH_S, behind=batch) is None


def test_offline_jobs_have_no_callers() -> None:
    model, batch, at = looping(step=OFFLINE_STEP)
    assert (batch.online, batch.offline) == (0, True)
    model._prepare(job(at - BATCH_S / 2))
    assert model.next_batch(at) is not None
