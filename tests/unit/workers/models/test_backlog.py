"""When a batch is held for jobs that are known to come, as a claim had no room for their bytes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.redis.scripts.jobs import ClaimReply
from tests.harness.clients.messages import write_message
from workers.batching.estimates import KNOWN_SHARE
from workers.jobs.leased_job import Batch
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica

NOW = 1000.0
TRIP_S = 0.002
SIZE = 4
#: How long a batch may be held where one takes a second.
WORTH_S = KNOWN_SHARE * 1.0


def served(
    taken: int, *left: int, batch_s: float = 1.0, steps: tuple[int, ...] = (), **options: Any
) -> ServedModel:
    """Its claim, of a whole batch, took TRIP_S until NOW, gave so many jobs and left so many.

    Its batches took `batch_s`, all of the same size.
    """
    replica = Replica({"device": "cpu"}, {}, state=Phase.READY)
    config = ModelConfig(name="m", handler="echo", max_batch_size=SIZE, **options)
    made = ServedModel(config, 0, [replica])
    made._batcher.latency_model.add(SIZE, batch_s)
    flat: list[bytes] = []
    for n in range(taken):
        raw = write_message(f"j{n}", "m", "q", b"1", timeout_s=60.0)
        step = b"%d" % (steps[n] if steps else 0)
        # Submitted long ago: no delay of the policy is left.
        flat += [raw, b"j%d" % n, b"t%d" % n, b"1", b"1", b"", b"", step]
    made._backlog.claim_sent([SIZE] * 4, NOW - TRIP_S)
    lefts = [*left, 0, 0, 0, 0][:4]
    reply = [b"1000000000", *(b"%d" % some for some in lefts), 0, *flat]
    made.claim_answered(ClaimReply(reply), NOW)
    assert made.read_claims(NOW) == []
    return made


def size(batch: Batch | None) -> int:
    """How many left; 0 for none."""
    return len(batch.jobs) if batch is not None else 0


def test_a_batch_that_the_claims_bytes_cut_is_held_until_the_next_claim_fills_it() -> None:
    one = served(3, 9)
    assert one.next_batch(NOW) is None
    assert one.hold_until == pytest.approx(NOW + WORTH_S)
    one._backlog.claim_sent(one.room, NOW)
    last = ClaimReply([b"1", b"8", b"0", b"0", b"0", 0, *_row("last")])
    one.claim_answered(last, NOW + TRIP_S)
    one.read_claims(NOW + TRIP_S)
    assert size(one.next_batch(NOW + TRIP_S)) == SIZE


def _row(job_id: str) -> list[bytes]:
    raw = write_message(job_id, "m", "q", b"1", timeout_s=60.0)
    return [raw, job_id.encode(), b"t", b"1", b"1", b"", b"", b"0"]


def test_it_is_held_no_longer_than_it_is_worth() -> None:
    one = served(3, 9)
    assert one.next_batch(NOW + WORTH_S - TRIP_S) is None, "the claim is late"
    assert size(one.next_batch(NOW + WORTH_S)) == 3
    late = served(1, 9, batch_s=2.9 * TRIP_S / KNOWN_SHARE)
    assert size(late.next_batch(NOW)) == 1, "three are missing, and a claim brings one"


@pytest.mark.parametrize(
    "found",
    [
        served(1, 0),
        served(3, 0),
        served(3, 0, 0, 0, 9),
        served(3, 9, batch_s=0.05),
        served(3, 9, max_batch_cost=9),
        served(3, 9, batch_key="/a"),
    ],
    ids=["lone", "all", "offline", "quick", "costs", "keys"],
)
def test_nobody_waits_where_nobody_is_known_to_join_soon_enough(found: ServedModel) -> None:
    assert size(found.next_batch(NOW)) in (1, 3)


def test_a_saved_batch_may_be_worth_more_than_its_share() -> None:
    found = served(3, 9, batch_s=0.01)
    for _ in range(20):
        for count in (1, SIZE):
            found._batcher.latency_model.add(count, 0.01)
    assert found.next_batch(NOW) is None, "3 * 2 ms are less than the 10 ms that a batch costs"


def test_offline_jobs_wait_for_each_other_and_for_better_ones() -> None:
    assert served(3, 0, 0, 0, 9, steps=(9, 9, 9)).next_batch(NOW) is None
    assert served(3, 9, steps=(9, 9, 9)).next_batch(NOW) is None


def test_a_batch_is_held_while_the_claim_that_fills_it_is_pending() -> None:
    one = served(3, 9)
    one._backlog.claim_sent(one.room, NOW)
    assert one.next_batch(NOW) is None


def test_a_worker_that_drains_holds_nothing() -> None:
    assert size(served(3, 9).next_batch(NOW, draining=True)) == 3


def test_a_full_batch_leaves_whatever_is_still_to_come() -> None:
    found = served(SIZE, 9)
    assert size(found.next_batch(NOW)) == SIZE


def test_nobody_is_waited_for_without_redis_or_without_room() -> None:
    away = served(3, 9)
    assert away.next_batch(NOW) is None
    away._backlog.connection_lost()
    assert size(away.next_batch(NOW)) == 3
    full = served(3, 9)
    assert full._backlog.hold_until(full._batcher, [0] * 4, NOW) is None


def test_of_a_paused_queue_nothing_is_known() -> None:
    found = served(3, 9)
    found._backlog.claim_sent([SIZE] * 4, NOW)
    found._backlog.claim_answered(0, [-1, 0, 0, 0], NOW)
    assert size(found.next_batch(NOW)) == 3
