"""The queues of versions: jobs that ask for one are found, moved, counted, paused and swept."""

from __future__ import annotations

import pytest

from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from tests.harness.clients.script_calls import MAX_CRASHES, Job, Queue, foreign

pytestmark = pytest.mark.leaves_keys


@pytest.fixture
def version(queue: Queue) -> Queue:
    """The queue of version 2.0 of the same model."""
    return of_version(queue, "2.0")


def of_version(queue: Queue, version: str) -> Queue:
    made = Queue(queue.client, queue.model)
    made.name = keys.version_queue(queue.model, version)
    made.keys = keys.queue_keys(made.name)
    made.fields = ["pv", version]
    return made


def moved(queue: Queue, *jobs: object, to: str = "2.0") -> list[str]:
    return job_scripts.read_words(queue.send(job_scripts.move(queue.name, to, jobs)))  # type: ignore[arg-type]


def sweep(queue: Queue, own: str = "") -> queue_scripts.SweepReply:
    call = queue_scripts.sweep(
        queue.name, reap_until_us=2**53, losses=str(MAX_CRASHES), orphaned_max=0, own=own
    )
    return queue_scripts.read_sweep(queue.send(call))


def test_a_claim_writes_the_version_that_runs_the_job(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.client.hset(keys.job(job_id), "v", "0.9")
    leased = queue.claim_one()
    assert queue.record(job_id)["v"] == "1.0"
    assert queue.settle(leased) == [1]


def test_a_moved_job_is_uncharged_and_at_its_place_in_the_other_queue(
    queue: Queue, version: Queue
) -> None:
    first = version.submit_one()
    ids = [queue.submit_one(), queue.submit_one(step=9)]
    leased = queue.claim().jobs
    assert moved(queue, *leased) == ["moved", "moved"]
    assert not queue.held()
    for job_id in ids:
        record = queue.record(job_id)
        assert (record["s"], record["pv"], record["a"]) == ("q", "2.0", "0")
        assert "t" not in record
    assert [version.place(job_id) for job_id in [first, *ids]] == [1, 2, 3]
    assert moved(queue, *leased) == ["fenced", "fenced"], "a repeat"
    assert version.cancel(ids[1]) == ["removed"]
    again = version.claim()
    assert again.ids == [first, ids[0]]
    assert again.jobs[1].attempts == 1
    assert version.settle(*again.jobs) == [1, 1]


def test_a_cancelled_job_is_not_moved(queue: Queue, version: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    assert queue.cancel(job_id) == ["asked"]
    assert moved(queue, leased) == ["cancelled"]
    assert queue.record(job_id)["s"] == "c"
    assert not version.listed()


def test_a_key_of_the_wrong_type_stops_a_move_before_anything_is_written(
    queue: Queue, version: Queue
) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    queue.client.set(keys.count(version.name), "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        moved(queue, leased)
    assert queue.held().keys() == {job_id}
    queue.client.delete(keys.count(version.name))
    assert moved(queue, leased) == ["moved"]
    assert version.settle(version.claim_one()) == [1]


def test_the_record_leads_to_the_queue(queue: Queue, version: Queue) -> None:
    ids = [version.submit_one(), version.submit_one()]
    late = version.submit_one(delay_us=60 * US_PER_S)
    over = version.submit_one(begin_us=1)
    assert [version.place(job_id) for job_id in ids] == [1, 2]
    assert int(version.watch(ids[1])[0][5]) == 2
    assert version.place(late) > US_PER_S
    assert queue.expire() == 1
    assert queue.record(over)["s"] == "x"
    assert version.cancel(late, ids[0]) == ["removed", "removed"]
    assert not version.parked()
    assert version.depth().waiting == 1
    assert version.purge()[0] == 1
    assert queue.record(ids[1])["s"] == "c"


def test_a_model_counts_the_jobs_of_all_its_versions(queue: Queue, version: Queue) -> None:
    queue.submit(Job(), Job(step=9))
    version.submit(Job(), Job(), Job(step=9), Job(delay_us=60 * US_PER_S))
    of_version(queue, "3.0").submit(Job())
    version.claim_one()
    total = queue.depth()
    assert (total.step0, total.step9, total.delayed, total.leased) == (3, 2, 1, 1)
    assert total.oldest == min(queue.depth().oldest, version.depth().oldest, key=int)
    assert (version.depth().step0, version.depth().delayed) == (1, 1)
    ended = version.claim().jobs
    version.settle(*ended)
    counted = queue.client.hget(keys.stats(queue.model), "ended:succeeded") or 0
    assert int(counted) >= len(ended)
    assert not queue.client.exists(keys.stats(keys.model_of(version.name)[0] + "@2.0"))


def test_an_unused_version_is_forgotten_and_one_with_jobs_is_not(
    queue: Queue, version: Queue
) -> None:
    version.submit_one()
    versions = keys.versions(queue.model)
    queue.client.zadd(versions, {"1.5": 1, "2.0": 1})
    queue.client.zadd(versions, {"1.6": 2**60})
    queue.depth()
    assert queue.client.zrange(versions, 0, -1) == [b"2.0", b"1.6"]
    assert queue.client.ttl(versions) > 0


def test_a_stock_clients_message_in_the_queue_of_a_version(queue: Queue, version: Queue) -> None:
    version.push(foreign(headers={"id": "mine"}))
    assert sweep(queue, own=version.name).used == [version.name], "no submit has noted it"
    assert sweep(queue).used == []
    sweep(version)
    assert sweep(queue).used == [version.name]
    leased = version.claim_one()
    assert queue.record("mine")["pv"] == "2.0"
    assert version.settle(leased, retry_us="60000000", state="f", extra=("e", "{}")) == [4]
    assert version.cancel("mine") == ["removed"]


def test_the_id_of_a_job_of_another_queue_is_refused(queue: Queue, version: Queue) -> None:
    job_id = queue.submit_one()
    version.push(*queue.listed())
    claimed = version.claim()
    assert (claimed.ids, claimed.refused) == ([], 1)
    assert queue.claim_one().id == job_id


def test_a_paused_model_pauses_its_versions_and_not_the_other_way_round(
    queue: Queue, version: Queue
) -> None:
    queue.submit_one()
    version.submit_one()
    queue.client.sadd(keys.PAUSED, version.name)
    assert version.claim().lefts[0] == -1
    assert sweep(version).waiting[0] == -1
    assert queue.claim(0).lefts[0] == 1
    queue.client.srem(keys.PAUSED, version.name)
    queue.client.sadd(keys.PAUSED, queue.name)
    assert version.claim().lefts[0] == -1
    assert sweep(version).waiting[0] == -1
    assert queue.claim().lefts[0] == -1
    queue.client.srem(keys.PAUSED, queue.name)
    assert version.claim_one()


def test_leases_of_a_version_are_reaped_by_whoever_sweeps(queue: Queue, version: Queue) -> None:
    job_id = version.submit_one()
    version.claim_one(lease_us=1)
    assert sweep(queue).used == [version.name]
    assert sweep(version).reaped == 1
    assert queue.record(job_id)["s"] == "q"
    assert version.claim_one().id == job_id
