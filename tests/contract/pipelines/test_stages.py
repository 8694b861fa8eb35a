"""pipelines/*.lua: the stages of a pipeline, and what is freed with them, for its holder alone."""

from __future__ import annotations

import json

import pytest

from headrace.payloads.index import PayloadIndex
from headrace.payloads.store import PayloadEntry, new_entry
from headrace.payloads.stores import RedisPayloadStore
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.script_calls import Leased, Queue, full_memory

NOTE = '[{"name":"a","status":"succeeded"}]'
TYPE = "application/json"


def say(queue: Queue, of: Leased, *freed: str, token: str = "") -> int:
    return int(queue.call("pipelines/save_stages", [], of.id, token or of.token, NOTE, "1", *freed))


def ended(queue: Queue, **settled: object) -> str:
    """A stage's job that has ended so."""
    queue.submit_one()
    leased = queue.claim_one()
    assert queue.settle(leased, **settled) == [1]  # type: ignore[arg-type] # as settle has them
    return leased.id


def whole(queue: Queue) -> Leased:
    """The pipeline's job, under way."""
    queue.submit_one()
    return queue.claim_one()


def stored(queue: Queue) -> tuple[str, PayloadEntry, PayloadIndex]:
    """A stage's job whose result lies in the store."""
    index = PayloadIndex(queue.client, 10_000)
    queue.submit_one()
    leased = queue.claim_one()
    entry = new_entry("redis", leased.id, "m", "r")
    RedisPayloadStore(index, queue.client).put(entry, b"x" * 1000, bounded=False)
    assert queue.settle(leased, extra=(JobField.RESULT_REF, f"{entry.ref} 1000 {TYPE}")) == [1]
    return leased.id, entry, index


def test_a_result_is_freed_with_the_note_and_its_record_stays(queue: Queue) -> None:
    short, (long, entry, index) = ended(queue), stored(queue)
    job = whole(queue)
    assert say(queue, job, short, long) == 1
    assert json.loads(queue.record(job.id)[JobField.STAGES]) == json.loads(NOTE)
    for name in (short, long):
        assert queue.meta(name) is None
        record = queue.record(name)
        assert (record[JobField.STATE], record[JobField.FREED]) == ("s", "1")
        assert JobField.RESULT_REF not in record
        assert queue.client.ttl(keys.job(name)) > 0
    # Due at once, for whoever sweeps; said again, it is the same.
    assert index.due()[0] == 1
    assert say(queue, job, short, long) == 1
    assert not queue.client.exists(keys.PAYLOADS, keys.PAYLOAD_SIZES)
    assert not queue.client.exists(keys.payload(entry.ref.partition(":")[2]))
    queue.settle_all()


def lose(queue: Queue, job: Leased, how: str) -> None:
    if how == "ended":
        assert queue.settle(job) == [1]
    elif how == "gone":
        queue.client.delete(keys.job(job.id), keys.lease(queue.name), keys.held(queue.name))
    elif how == "waits":
        assert queue.release(job) == ["queued"]


@pytest.mark.parametrize("lost", ["another's", "ended", "gone"])
def test_who_has_lost_the_job_frees_nothing(queue: Queue, lost: str) -> None:
    stage, job = ended(queue), whole(queue)
    lose(queue, job, lost)
    assert say(queue, job, stage, token="1" if lost == "another's" else "") == 0
    assert queue.meta(stage) is not None
    assert JobField.FREED not in queue.record(stage)
    assert JobField.STAGES not in queue.record(job.id)
    queue.settle_all()


def test_what_has_not_succeeded_is_left_as_it_is(queue: Queue) -> None:
    failed = ended(queue, state="f", extra=(JobField.ERROR, "{}"))
    job = whole(queue)
    waits = queue.submit_one()
    queue.client.set(keys.job("odd"), "no record", ex=60)
    before = {name: queue.record(name) for name in (failed, waits)}
    assert say(queue, job, failed, waits, "odd", "unknown") == 1
    assert {name: queue.record(name) for name in (failed, waits)} == before
    assert queue.meta(failed) is not None
    assert not queue.client.exists(keys.job("unknown"))
    queue.settle(job)
    queue.settle_all()


def test_at_maxmemory_it_makes_room(queue: Queue) -> None:
    name, entry, index = stored(queue)
    job = whole(queue)
    with full_memory(queue):
        assert say(queue, job, name) == 1
        assert index.look(entry) == []
    assert not queue.client.exists(keys.PAYLOADS)
    queue.settle_all()


@pytest.mark.leaves_keys
@pytest.mark.parametrize("lost", ["", "another's", "ended", "gone", "waits"])
def test_stages_are_cancelled_and_cleared_by_whoever_holds_the_job_alone(
    queue: Queue, lost: str
) -> None:
    over, job, waiting = ended(queue), whole(queue), queue.submit_one()
    lose(queue, job, lost)
    token = "1" if lost == "another's" else job.token
    sake = f"0 {job.id} {token}"
    said = queue.call("jobs/cancel", [], sake, waiting, over)
    assert said == (None if lost else [b"removed", b"ended"])
    assert queue.record(waiting)[JobField.STATE] == ("q" if lost else "c")
    assert queue.call("pipelines/clear", [], job.id, token, over, waiting) == (0 if lost else 1)
    for name in (over, waiting):
        assert bool(queue.client.exists(keys.job(name))) == bool(lost)
    assert (queue.meta(over) is not None) == bool(lost)
