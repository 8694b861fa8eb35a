"""The account of payloads: what is entered, what is needed, and what is deleted, on each server."""

from __future__ import annotations

import pytest
import redis

from headrace.errors import BrokerFull, StoreFull
from headrace.payloads.index import GRACE_S, SCRIPT_MAX_BYTES, PayloadIndex
from headrace.payloads.store import PayloadEntry, new_entry
from headrace.payloads.stores import RedisPayloadStore
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import script
from headrace.redis.scripts.jobs import IN_EITHER
from tests.harness.clients.payloads import make_due, noted
from tests.harness.clients.script_calls import Queue, full_memory

BODY = b"x" * 1000


@pytest.fixture
def store(queue: Queue) -> RedisPayloadStore:
    return RedisPayloadStore(PayloadIndex(queue.client, 10_000), queue.client)


def put(store: RedisPayloadStore, job_id: str, kind: str = "i", body: bytes = BODY) -> PayloadEntry:
    entry = new_entry("redis", job_id, "m", kind)
    store.put(entry, body, bounded=kind == "i")
    return entry


def total(client: redis.Redis) -> int:
    return int(client.hget(keys.PAYLOAD_SIZES, "") or 0)


def there(store: RedisPayloadStore, entry: PayloadEntry) -> bool:
    key = keys.payload(entry.ref.partition(":")[2])
    return bool(store.index.client.exists(key))


def sweep(queue: Queue, store: RedisPayloadStore) -> int:
    make_due(queue.client)
    return store.index.due()[0]


def end(queue: Queue, job_id: str, **options: str) -> None:
    leased = queue.claim_one()
    assert leased.id == job_id
    assert queue.settle(leased, **options) == [1]  # type: ignore[arg-type] # only text here


def test_a_payload_is_counted_and_looked_at_later(queue: Queue, store: RedisPayloadStore) -> None:
    entry = put(store, "one")
    assert store.get(entry.ref) == BODY
    assert total(queue.client) == len(BODY)
    now_s, _ = queue.client.time()
    due_us = queue.client.zscore(keys.PAYLOADS, entry.text)
    assert isinstance(due_us, float)
    assert GRACE_S - 60 < due_us / 1e6 - now_s <= GRACE_S + 1
    assert store.index.due() == (0, [])
    assert sweep(queue, store) == 1  # its job never came
    assert not there(store, entry)
    assert (noted(queue.client), total(queue.client)) == ([], 0)


def test_said_twice_it_is_counted_once(queue: Queue, store: RedisPayloadStore) -> None:
    entry = put(store, "one")
    store.put(entry, BODY)
    assert total(queue.client) == len(BODY)
    sweep(queue, store)
    assert total(queue.client) == 0


def test_more_than_the_limit_is_refused_and_writes_nothing(
    queue: Queue, store: RedisPayloadStore
) -> None:
    for n in range(10):
        put(store, f"job-{n}")
    before = {key: queue.client.dump(key) for key in queue.client.keys("*")}
    with pytest.raises(StoreFull, match="10000 bytes of Redis; with 1000 more they would exceed"):
        put(store, "one-more")
    assert {key: queue.client.dump(key) for key in queue.client.keys("*")} == before
    # A result ends a job, and frees what its input takes.
    put(store, "result", "r")
    make_due(queue.client)
    put(store, "after-a-sweep")
    sweep(queue, store)


@pytest.mark.parametrize("kind", ["i", "r"])
def test_what_is_very_long_is_written_apart(queue: Queue, kind: str) -> None:
    body = b"v" * (SCRIPT_MAX_BYTES + 1)
    store = RedisPayloadStore(PayloadIndex(queue.client, 3 * SCRIPT_MAX_BYTES), queue.client)
    entry = put(store, "one", kind, body)
    assert store.get(entry.ref) == body
    assert total(queue.client) == len(body)
    store.put(entry, body, bounded=kind == "i")
    assert total(queue.client) == len(body)
    put(store, "two", kind, body)
    with pytest.raises(StoreFull):
        put(store, "three", "i", body)
    with full_memory(queue):
        with pytest.raises(BrokerFull):
            put(
                RedisPayloadStore(PayloadIndex(queue.client, 10**9), queue.client),
                "four",
                "i",
                body,
            )
        assert store.get(put(store, "five", "r", body).ref) == body
    assert total(queue.client) == 3 * len(body)
    sweep(queue, store)
    assert (noted(queue.client), total(queue.client)) == ([], 0)


def test_no_room_between_entry_and_payload_leaves_nothing(queue: Queue) -> None:
    body = b"v" * (SCRIPT_MAX_BYTES + 1)
    index = PayloadIndex(queue.client, 100 * SCRIPT_MAX_BYTES)
    entry = new_entry("redis", "one", "m", "i")
    # The entry still fits, the payload does not any more: as though memory ran out in between.
    index.call(script("payloads/put").call([], entry.text, entry.ref, 1, "", len(body), "", ""))
    with full_memory(queue), pytest.raises(BrokerFull):
        index._write(entry, body, "", bounded=True)
    assert (noted(queue.client), total(queue.client)) == ([], 0)


def test_the_limit_is_half_of_maxmemory(queue: Queue) -> None:
    assert PayloadIndex(queue.client).max_bytes() == 1024**3
    queue.client.config_set("maxmemory", 100_000_000)
    try:
        assert PayloadIndex(queue.client).max_bytes() == 50_000_000
        assert PayloadIndex(queue.client, 7).max_bytes() == 7
    finally:
        queue.client.config_set("maxmemory", 0)


def test_at_maxmemory_an_input_is_refused_and_a_result_passes(
    queue: Queue, store: RedisPayloadStore
) -> None:
    kept = put(store, "input")
    before = {key: queue.client.dump(key) for key in queue.client.keys("*")}
    with full_memory(queue):
        with pytest.raises(BrokerFull):
            put(store, "another")
        assert {key: queue.client.dump(key) for key in queue.client.keys("*")} == before
        result = put(store, "result", "r")
        assert store.get(result.ref) == BODY
        store.index.look(kept)
        assert not there(store, kept)
    sweep(queue, store)
    assert not there(store, result)


def test_an_input_is_kept_until_its_job_has_ended(queue: Queue, store: RedisPayloadStore) -> None:
    entry = put(store, "j")
    queue.submit_one(id="j", input_ref=entry.ref)
    assert store.index.look(entry) == []
    sweep(queue, store)
    leased = queue.claim_one()
    sweep(queue, store)
    assert queue.settle(leased, state="f", extra=("e", "{}"), retry_us="1") == [4]
    sweep(queue, store)
    assert there(store, entry)
    assert queue.sweep()[0] == 1
    end(queue, "j")
    assert store.index.look(entry) == []
    assert not there(store, entry)
    assert noted(queue.client) == []


def test_a_repeats_own_input_is_dropped_though_the_job_waits(
    queue: Queue, store: RedisPayloadStore
) -> None:
    first, repeat = put(store, "j"), put(store, "j")
    queue.submit_one(id="j", input_ref=first.ref)
    store.index.look(first, repeat)
    assert (there(store, first), there(store, repeat)) == (True, False)
    end(queue, "j")
    store.index.look(first)


def test_an_input_lives_as_long_as_its_dead_letter(queue: Queue, store: RedisPayloadStore) -> None:
    entry = put(store, "j")
    queue.submit_one(id="j", input_ref=entry.ref)
    for _ in range(8):
        queue.isolate(queue.claim_one(owner="w", lease_us=0), IN_EITHER)
        queue.release_owner("w", mode="lost")
        if queue.dead_letters():
            break
    assert list(queue.dead_letters()) == ["j"]
    sweep(queue, store)
    assert there(store, entry)
    queue.client.delete(keys.job("j"))  # its time is over
    sweep(queue, store)
    assert there(store, entry)
    queue.client.delete(keys.dead_letter(queue.name, "j"), keys.dead(queue.name))  # purged
    sweep(queue, store)
    assert not there(store, entry)


@pytest.mark.parametrize("expired", [False, True])
def test_an_input_is_there_when_its_dead_letter_is_requeued(
    queue: Queue, store: RedisPayloadStore, expired: bool
) -> None:
    entry = put(store, "j")
    queue.submit_one(id="j", input_ref=entry.ref, source=entry.ref)
    error = ("e", '{"type":"transient-error","message":"m","retryable":true}')
    assert queue.settle(queue.claim_one(), state="f", extra=error, retry_us="dead") == [1]
    if expired:
        queue.client.delete(keys.job("j"))
    sweep(queue, store)
    assert queue.requeue("j") == ["queued"]
    sweep(queue, store)
    leased = queue.claim_one()
    sweep(queue, store)
    assert there(store, entry)
    assert queue.settle(leased) == [1]
    sweep(queue, store)
    assert not there(store, entry)


def test_a_result_waits_for_its_job_and_then_lives_as_its_record(
    queue: Queue, store: RedisPayloadStore
) -> None:
    queue.submit_one(id="j", ttl_s=500)
    leased = queue.claim_one()
    entry, lost = put(store, "j", "r"), put(store, "j", "r")
    sweep(queue, store)
    assert there(store, entry)
    assert queue.settle(leased, extra=(JobField.RESULT_REF, f"{entry.ref} 1000 image/png")) == [1]
    sweep(queue, store)
    assert not there(store, lost)  # another claim's, which was fenced
    key = keys.payload(entry.ref.partition(":")[2])
    assert 400 < int(queue.client.ttl(key)) <= 500
    queue.client.delete(keys.job("j"))
    sweep(queue, store)
    assert not there(store, entry)
    assert total(queue.client) == 0


def test_a_result_whose_time_is_over_is_counted_no_more(
    queue: Queue, store: RedisPayloadStore
) -> None:
    entry = put(store, "j", "r")
    queue.client.delete(keys.payload(entry.ref.partition(":")[2]))  # as its TTL does
    assert total(queue.client) == len(BODY)
    sweep(queue, store)
    assert total(queue.client) == 0


@pytest.mark.parametrize("state", ["queued", "delayed", "leased"])
def test_a_cancelled_job_has_its_input_looked_at_at_once(
    queue: Queue, store: RedisPayloadStore, state: str
) -> None:
    entry = put(store, "j")
    queue.submit_one(id="j", input_ref=entry.ref, delay_us=10**9 if state == "delayed" else 0)
    if state == "leased":
        leased = queue.claim_one()
        assert queue.cancel("j") == ["asked"]
        assert queue.settle(leased) == [3]
    else:
        assert queue.cancel("j") == ["removed"]
    assert store.index.due()[0] == 1
    assert not there(store, entry)
    assert queue.claim().jobs == []


def test_what_lies_elsewhere_is_named_and_stays_in_the_account(
    queue: Queue, store: RedisPayloadStore
) -> None:
    entry = new_entry("file", "j", "m", "i")
    index = store.index
    index.note(entry)
    make_due(queue.client)
    assert index.due() == (1, [entry])
    assert index.due() == (0, [])  # another sweep leaves it to the first
    make_due(queue.client)
    assert index.due() == (1, [entry])
    index.forget(entry)
    assert noted(queue.client) == []


def test_entries_that_nobody_made_are_removed(queue: Queue, store: RedisPayloadStore) -> None:
    for text in ("", "junk", "redis:zz a b i", "redis:00 a b", "redis:00 a b x", "\xff" * 9):
        queue.client.zadd(keys.PAYLOADS, {text: 0})
    assert store.index.due() == (6, [])
    assert noted(queue.client) == []


def test_a_sweep_is_bounded(queue: Queue, store: RedisPayloadStore) -> None:
    for n in range(150):
        store.index.note(new_entry("redis", f"job-{n}", "m", "i"))
    make_due(queue.client)
    assert [store.index.due()[0] for _ in range(3)] == [100, 50, 0]
