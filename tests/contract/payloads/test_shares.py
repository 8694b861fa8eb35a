"""The share of an API key: its inputs, results and files together, on each server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import PayloadTooLarge, StoreFull
from headrace.payloads.index import SCRIPT_MAX_BYTES, PayloadIndex
from headrace.payloads.store import PayloadEntry, new_entry
from headrace.payloads.stores import RedisPayloadStore
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.payloads import make_due
from tests.harness.clients.script_calls import Queue

SHARE = 3000
BODY = b"x" * 1000
ALICE, BOB = "alice", "bob"


@pytest.fixture
def index(queue: Queue) -> PayloadIndex:
    return PayloadIndex(queue.client, 100 * SCRIPT_MAX_BYTES, SHARE)


def used(queue: Queue, owner: str) -> int:
    return int(queue.client.hget(keys.PAYLOAD_SIZES, f":{owner}") or 0)


def entry_of(
    owner: str, kind: str = "i", job_id: str = "one", store: str = "redis"
) -> PayloadEntry:
    return new_entry(store, job_id, "m", kind, owner)


def sweep(queue: Queue, index: PayloadIndex) -> None:
    """Delete all payloads; then no key has any."""
    make_due(queue.client)
    index.due()
    assert not queue.client.exists(keys.PAYLOAD_SIZES)
    queue.client.delete(keys.PAYLOADS)


@pytest.mark.parametrize("store", ["redis", "file"])
def test_a_full_share_refuses_its_key_alone(queue: Queue, index: PayloadIndex, store: str) -> None:
    def note(owner: str, kind: str = "i", bounded: bool = True) -> PayloadEntry:
        entry = entry_of(owner, kind, store=store)
        if store == "redis":
            index.note(entry, BODY, bounded=bounded)
        else:
            index.note(entry, size=len(BODY), bounded=bounded)
        return entry

    taken = [note(ALICE, kind) for kind in "iff"]
    before = {key: queue.client.dump(key) for key in queue.client.keys("*")}
    with pytest.raises(StoreFull, match=r"alice take 3000 bytes; with 1000 .*, 3000 \(payload_byt"):
        note(ALICE)
    assert {key: queue.client.dump(key) for key in queue.client.keys("*")} == before
    note(BOB)
    note("")
    # What a batch writes always passes, and counts.
    note(ALICE, "f", bounded=False)
    assert (used(queue, ALICE), used(queue, BOB)) == (4000, 1000)
    index.look(*taken[:2])
    assert used(queue, ALICE) == 2000
    note(ALICE)
    sweep(queue, index)


def test_what_alone_exceeds_a_share_never_fits(index: PayloadIndex) -> None:
    with pytest.raises(PayloadTooLarge, match=r"3001 bytes, more than the 3000 .*per_key\)"):
        index.note(entry_of(ALICE), b"x" * (SHARE + 1))


def test_by_default_a_key_has_half_of_redis_and_all_of_the_other_stores(queue: Queue) -> None:
    index = PayloadIndex(queue.client, 2 * SHARE)
    index.note(entry_of(ALICE), b"x" * SHARE)
    with pytest.raises(StoreFull):
        index.note(entry_of(ALICE), b"x")
    index.note(entry_of(ALICE, store="file"), size=10 * SHARE)
    index.note(entry_of(BOB), b"x" * SHARE)
    sweep(queue, index)


def test_several_at_once_stop_at_the_share(queue: Queue, index: PayloadIndex) -> None:
    store = RedisPayloadStore(index, queue.client)
    errors = store.put_all([(entry_of(owner), BODY) for owner in [ALICE] * 4 + [BOB]])
    assert [type(error) for error in errors] == [type(None)] * 3 + [StoreFull, type(None)]
    sweep(queue, index)


def test_threads_together_stop_at_the_share(queue: Queue, index: PayloadIndex) -> None:
    def note(_: int) -> bool:
        try:
            index.note(entry_of(ALICE), BODY)
        except StoreFull:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(note, range(40))) == 3
    assert used(queue, ALICE) == SHARE
    sweep(queue, index)


def test_a_result_counts_for_the_key_of_its_job(queue: Queue, index: PayloadIndex) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    queue.client.hset(keys.job(leased.id), JobField.KEY, ALICE)
    entry = new_entry("redis", leased.id, "m", "r")
    for _ in range(2):  # a repeat counts once
        index.note(entry, BODY, bounded=False)
    assert used(queue, ALICE) == len(BODY)
    # A pipeline's result was that of a stage, which has no key.
    stage = new_entry("redis", "stage", "m", "r")
    index.note(stage, BODY, bounded=False)
    for _ in range(2):
        index.hand_over(stage, PayloadEntry(stage.ref, leased.id, "p", "r"))
    assert used(queue, ALICE) == 2 * len(BODY)
    queue.settle(leased)
    sweep(queue, index)
