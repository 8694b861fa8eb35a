"""queues/find_work.lua: the queues with work, among those that no worker serves."""

from __future__ import annotations

import pytest

from headrace.redis import keys
from tests.harness.clients.script_calls import Queue

pytestmark = pytest.mark.leaves_keys

ALWAYS = 2**53


def found(queue: Queue, *others: str, reap_until: int = ALWAYS) -> list[str]:
    """The queues with work among this one and others, all at once."""
    # Many empty queues make several groups.
    empty = [keys.queue_name(f"empty{n}") for n in range(40)]
    names = [*empty[:17], queue.name, *empty[17:], *others]
    now, *rest = queue.call("queues/find_work", [], reap_until, " ".join(names))
    assert int(now) > 0
    return [name.decode() for name in rest]


def test_an_empty_queue_has_no_work(queue: Queue) -> None:
    assert found(queue) == []


@pytest.mark.parametrize("step", keys.STEPS)
def test_a_job_that_waits_is_work(queue: Queue, step: int) -> None:
    queue.submit_one(step=step)
    assert found(queue) == [queue.name]
    leased = queue.claim_one()
    assert found(queue, reap_until=0) == []
    assert queue.settle(leased) == [1]
    assert found(queue) == []


def test_the_queue_of_a_version_is_work_of_its_own(queue: Queue) -> None:
    version = Queue(queue.client, queue.model)
    version.name = keys.version_queue(queue.model, "2.0")
    version.keys = keys.queue_keys(version.name)
    version.submit_one()
    assert found(queue, version.name) == [version.name]


def test_a_tombstone_is_no_work(queue: Queue) -> None:
    job_id = queue.submit_one()
    assert queue.cancel(job_id)
    assert queue.client.llen(queue.name) == 1
    assert found(queue) == []


@pytest.mark.parametrize("version", ["", "2.0"])
def test_what_waits_in_a_paused_queue_is_no_work(queue: Queue, version: str) -> None:
    name = keys.version_queue(queue.model, version) if version else queue.name
    queue.client.lpush(name, "a message")
    assert found(queue, name) in ([name], [name, name])
    queue.client.sadd(keys.PAUSED, queue.name)
    assert found(queue, name) == []


def test_a_delayed_job_is_work_when_it_is_due(queue: Queue) -> None:
    job_id = queue.submit_one(delay_us=3_600_000_000)
    assert found(queue) == []
    queue.client.zadd(keys.delayed(queue.name), {job_id: 1})
    assert found(queue) == [queue.name]


def test_an_expired_lease_is_work_if_it_may_be_reaped(queue: Queue) -> None:
    queue.submit_one()
    queue.claim_one(lease_us=0)
    assert found(queue, reap_until=0) == []
    assert found(queue) == [queue.name]


def test_a_lease_that_has_not_expired_is_no_work(queue: Queue) -> None:
    queue.submit_one()
    queue.claim_one()
    assert found(queue) == []


def test_an_end_whose_callbacks_are_due_is_work(queue: Queue) -> None:
    queue.client.zadd(keys.orphaned(queue.name), {"later": ALWAYS})
    assert found(queue) == []
    queue.client.zadd(keys.orphaned(queue.name), {"now": 1})
    assert found(queue) == [queue.name]


def test_a_key_of_the_wrong_type_hides_no_other_queue(queue: Queue) -> None:
    wrong = keys.queue_name("wrong")
    queue.client.set(wrong, "another application's")
    queue.client.set(keys.delayed(wrong), "another application's")
    queue.client.set(keys.count(wrong), "another application's")
    queue.submit_one()
    assert found(queue, wrong) == [queue.name]
