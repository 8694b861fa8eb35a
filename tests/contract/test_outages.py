"""Outages: Redis at its maxmemory, keys of another type, a server without the scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from headrace.errors import BrokerUnavailable
from headrace.payloads.index import PayloadIndex
from headrace.payloads.store import PayloadMissing, new_entry
from headrace.payloads.stores import RedisPayloadStore
from headrace.redis import keys
from headrace.redis.outages import outage_code, translate
from headrace.redis.scripts import NAMES, Arg, script
from headrace.redis.scripts.jobs import EXCLUSIVE, IN_EITHER
from tests.harness.clients.script_calls import MAX_CRASHES, Job, Queue, full_memory


@pytest.mark.leaves_keys
def test_a_submit_is_refused_and_writes_nothing(queue: Queue) -> None:
    queue.submit_one()
    before = {name: queue.client.dump(name) for name in queue.client.keys("*")}
    for jobs in ([Job()], [Job(), Job(step=9), Job()], [Job(delay_us=1000)]):
        with full_memory(queue), pytest.raises(OutOfMemoryError):
            queue.submit(*jobs)
    assert {name: queue.client.dump(name) for name in queue.client.keys("*")} == before


def test_work_that_is_queued_still_runs_and_ends(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(4)]
    with full_memory(queue):
        done, failed, back, again = queue.claim().jobs
        assert queue.renew(done, failed, back, again) == [1] * 4
        assert queue.settle(done) == [1]
        assert queue.settle(failed, state="f", extra=("e", "{}")) == [1]
        assert queue.release(back) == ["queued"]
        assert queue.settle(again, state="f", extra=("e", "{}"), retry_us="1") == [4]
        assert queue.sweep()[0] == 1
        rest = queue.claim().jobs
        assert sorted(job.id for job in rest) == sorted(ids[2:])
        assert queue.settle(*rest) == [1, 1]
    assert [queue.record(job_id)["s"] for job_id in ids] == ["s", "f", "s", "s"]
    assert all(queue.meta(job_id) for job_id in ids)


def test_a_quiet_job_ends_and_is_listened_for_at_maxmemory(queue: Queue) -> None:
    ids = [queue.submit_one(waiter=keys.NO_WAITER) for _ in range(2)]
    with full_memory(queue):
        assert [queue.listen(job_id) for job_id in ids] == [1, 1]
        assert queue.settle(*queue.claim().jobs, meta="", extra=("r", "7")) == [1, 1]
    assert [queue.record(job_id)["r"] for job_id in ids] == ["7", "7"]


def test_leases_are_reaped(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.claim_one(lease_us=0)
    with full_memory(queue):
        assert queue.sweep()[1] == 1
        for _ in range(MAX_CRASHES):
            leased = queue.claim_one(owner="w", lease_us=0)
            assert queue.isolate(leased, IN_EITHER) == EXCLUSIVE
            assert queue.release_owner("w", mode="lost") == 1
        assert list(queue.dead_letters()) == [job_id]


def test_jobs_can_be_cancelled(queue: Queue) -> None:
    queued, delayed, running = (
        queue.submit_one(step=9),
        queue.submit_one(delay_us=10**9),
        queue.submit_one(),
    )
    leased = queue.claim_one()
    assert leased.id == running
    with full_memory(queue):
        for job_id, fate in ((queued, "removed"), (delayed, "removed"), (running, "asked")):
            assert queue.cancel(job_id) == [fate]
        assert queue.settle(leased) == [3]
        assert queue.claim().jobs == []
    assert queue.depth().waiting == 0


def test_dead_letters_are_written_put_back_and_purged(queue: Queue) -> None:
    kept, gone = queue.submit_one(), queue.submit_one()
    with full_memory(queue):
        failed = queue.claim().jobs
        error = ("e", '{"type":"handler-error","message":"no"}')
        assert queue.settle(*failed, state="f", extra=error, retry_us="dead") == [1, 1]
        assert sorted(queue.dead_letters()) == sorted([kept, gone])
        assert queue.requeue(kept, "nobody") == ["queued", "unknown"]
        assert queue.purge_dead_letters(gone) == 1
        assert queue.settle(queue.claim_one()) == [1]
    assert (queue.record(kept)["s"], queue.dead_letters()) == ("s", {})


def test_background_tasks_are_taken_held_and_settled(queue: Queue) -> None:
    """And their worker says that it is alive; those of a dead one are requeued."""
    client = queue.client
    client.lpush(keys.BACKGROUND_TASKS, "one", "two")
    with full_memory(queue):
        for name in (b"one", b"two"):
            assert queue.call("background/take", [], "w") == name
            assert client.lrange(keys.background_taken("w"), 0, -1) == [name]
            queue.call("background/hold", [], "w", b"tag " + name, name)
            assert not client.exists(keys.background_taken("w"))
        assert queue.call("background/take", [], "w") is None
        for name, requeue in ((b"one", 1), (b"two", 0)):
            settle: tuple[Any, ...] = ("background/settle", [], "w", b"tag " + name, requeue)
            assert [queue.call(*settle) for _ in range(2)] == [1, 0]
            assert client.lrange(keys.BACKGROUND_TASKS, 0, -1) == [b"one"]
        queue.call("background/take", [], "dead")
        assert queue.call("background/requeue_dead", [], "w", "{}", "dead") == 1
        assert client.ttl(keys.background_alive("w")) > 0
    assert client.lrange(keys.BACKGROUND_TASKS, 0, -1) == [b"one"]
    client.delete(keys.BACKGROUND_TASKS)


def test_what_waits_is_purged(queue: Queue) -> None:
    queue.submit(*(Job(step=step) for step in keys.STEPS), Job(delay_us=10**9))
    with full_memory(queue):
        assert queue.purge() == (5, 5, 0)
    assert queue.depth().waiting == 0


def test_a_revoke_of_what_nobody_knows_yet_is_remembered(queue: Queue) -> None:
    with full_memory(queue):
        assert queue.cancel("nobody", remember_s=60) == ["unknown"]
    assert queue.client.zcard(keys.REVOKED) == 1


def test_payloads_of_results_are_stored_and_what_nobody_needs_is_deleted(queue: Queue) -> None:
    store = RedisPayloadStore(PayloadIndex(queue.client, 10_000), queue.client)
    unneeded, result = (new_entry("redis", "one", "m", kind) for kind in "ir")
    store.put(unneeded, b"input")
    with full_memory(queue):
        store.put(result, b"result", bounded=False)
        assert store.get(result.ref) == b"result"
        assert PayloadIndex(queue.client).look(unneeded, result) == []
        with pytest.raises(PayloadMissing):
            store.get(unneeded.ref)
    assert queue.client.zcard(keys.PAYLOADS) == 0


def test_a_worker_goes_on_saying_that_it_lives(queue: Queue) -> None:
    stats = keys.stats("m")
    with full_memory(queue):
        for _ in range(2):
            added = (stats, "ran", "1.5", stats, "took@1", "1 2 0.25")
            queue.call("workers/report", [], "w", 2, "m", "{}", *added)
    assert queue.client.hgetall(keys.worker("w")) == {b"m": b"{}"}
    assert 0 < queue.client.ttl(keys.worker("w")) <= 15
    assert queue.client.zrange(keys.WORKERS, 0, -1) == [b"w"]
    assert queue.client.hgetall(stats) == {b"ran": b"3", b"took@1": b"2 4 0.5"}


def test_who_lives_is_told_by_the_clock_of_redis(queue: Queue) -> None:
    """However wrong a worker's own clock is, it makes nobody else look gone."""
    seconds, _ = queue.client.time()
    queue.client.zadd(keys.WORKERS, {"gone": seconds - 16, "silent": seconds - 5})
    queue.call("workers/report", [], "w", 2, ":clock", "99999999999")
    found: Any = queue.client.zrange(keys.WORKERS, 0, -1, withscores=True)
    told = dict(found)
    assert list(told) == [b"silent", b"w"]
    assert 0 <= told[b"w"] - seconds < 60


def test_what_is_no_job_is_buried(queue: Queue) -> None:
    queue.push(b"junk")
    with full_memory(queue):
        assert queue.claim().refused == 1
    assert [letter["raw"] for letter in queue.dead_letters().values()] == [b"junk"]


def test_progress_is_written(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    with full_memory(queue):
        assert queue.progress(leased, '1 {"fraction":0.5}') == 1
    assert queue.record(leased.id)["pg"] == leased.token + ' 1 {"fraction":0.5}'
    queue.settle(leased)


def test_reading_passes(queue: Queue) -> None:
    job_id = queue.submit_one()
    with full_memory(queue):
        assert queue.place(job_id) == 1
        assert queue.depth().waiting == 1
    queue.settle_all()


def _calls(queue: Queue) -> dict[str, Callable[[], object]]:
    leased = queue.claim_one(lease_us=0)
    return {
        "settle": lambda: queue.settle(leased),
        "retry": lambda: queue.settle(leased, state="f", extra=("e", "{}"), retry_us="1"),
        "dead": lambda: queue.settle(leased, state="f", extra=("e", "{}"), retry_us="dead"),
        "renew": lambda: queue.renew(leased),
        "release": lambda: queue.release(leased),
        "release_owner": lambda: queue.release_owner("w1"),
        "sweep": lambda: queue.sweep(),
    }


#: The keys (places in queue_keys) that a call writes; one of another type must stop it at once.
WRITTEN: dict[str, Sequence[int]] = {
    "settle": (4, 5),
    "retry": (4, 5, 7, 8),
    "dead": (4, 5, 7, 8, 9),
    "renew": (4,),
    "release": range(11),
    "release_owner": range(11),
    "sweep": range(11),
}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("name", WRITTEN)
def test_a_key_of_the_wrong_type_errs_before_anything_is_written(queue: Queue, name: str) -> None:
    queue.submit(*(Job(step=step) for step in keys.STEPS), Job(delay_us=1))
    call = _calls(queue)[name]
    for place in WRITTEN[name]:
        wrong = queue.keys[place]
        kept = queue.client.dump(wrong)
        queue.client.set(wrong, "another application's")
        before = {key: queue.client.dump(key) for key in queue.client.keys("*")}
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            call()
        assert {key: queue.client.dump(key) for key in queue.client.keys("*")} == before
        queue.client.delete(wrong)
        if kept is not None:
            queue.client.restore(wrong, 0, kept)
    call()


def test_a_record_of_the_wrong_type_hinders_no_neighbour(queue: Queue) -> None:
    odd = queue.submit_one(id="odd", ttl_s=5)
    due = queue.submit_one(id="due", delay_us=1)
    good = queue.submit_one()
    leased = {job.id: job for job in queue.claim(lease_us=0).jobs}
    for job_id in (odd, due):
        queue.client.delete(keys.job(job_id))
        queue.client.set(keys.job(job_id), "no record", ex=60)
    both = (leased[odd], leased[good])
    assert queue.renew(*both, lease_us=0) == [0, 1]
    assert queue.cancel(odd) == ["unknown"]
    assert queue.view(odd) == [0]
    assert queue.sweep() == (1, 2, -1, 3)
    claimed = queue.claim()
    assert (claimed.ids, claimed.refused) == ([good], 2)
    assert queue.release(leased[odd], claimed.jobs[0]) == ["fenced", "queued"]
    assert queue.settle(leased[odd], queue.claim_one()) == [0, 1]


def test_what_a_replica_refuses_is_an_outage_and_may_be_said_again(queue: Queue) -> None:
    queue.submit_one()
    leased = queue.claim_one()
    queue.client.replicaof("127.0.0.1", "1")  # nobody is there, so that it keeps its data
    try:
        with pytest.raises(ResponseError) as refused:
            queue.settle(leased)
        assert outage_code(refused.value) == "READONLY"
        assert isinstance(translate(refused.value), BrokerUnavailable)
    finally:
        queue.client.replicaof("NO", "ONE")
    assert queue.settle(leased) == [1]
    with pytest.raises(ResponseError) as wrong:
        queue.execute("LPUSH", keys.job(leased.id), "x")
    assert outage_code(wrong.value) == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_knows_no_script_is_told(queue: Queue, name: str) -> None:
    known = script(name)
    queue.client.script_flush()
    arguments: dict[str, list[Arg]] = {
        "jobs/submit": [0], "queues/list_jobs": ["m", "", "", 0, "", 1, 1],
        "queues/arrange": [queue.name, 1, 1, 1, 1],
        "records/view": [1], "jobs/cancel": [0], "queues/depth":
        [], "jobs/claim": [queue.name, "m", "1", 1, 1, 1, "w", "t", 1], "queues/sweep": [queue.name,
        1, 3, 10], "jobs/settle": [queue.name, "1"], "jobs/move": [queue.name, "1"],
        "jobs/renew": [1], "jobs/release": [queue.name, "free", 3, "", ""],
        "jobs/release_owner": [queue.name, "free", 3, "w"],
        "queues/requeue_dead_letters": [queue.name, "x"], "queues/purge_dead_letters": [queue.name,
        "x"], "queues/purge": [queue.name, 10], "payloads/sweep": [1], "payloads/put": ["e",
        "redis:r", 1, 0, 17, "", "", "more than nothing"], "jobs/canvas_begin": ["x", 1],
        "workers/report": ["w", 2, "m", "{}"],
        "access/take_tokens": ["k", "1", 1, 1], "jobs/expire":
        [1, "expired", "JobExpired", "late"],
        "records/outcomes": [""], "records/delete": [""], "records/listen": ["x"],
        "runs/save_status": ["r", "{}", "", 60, 10, "-"],
        "background/requeue_dead": ["", ""],
        "background/settle": ["w", "t", 1], "background/take": ["w"],
        "background/hold": ["w", "t", "x"],
        "pipelines/save_stages": ["x", 1, "{}", 1, "y"], "pipelines/hand_over": ["e", "e2", "x"],
        "pipelines/clear": ["x", 1],
        "webhooks/save": ["x", "msg_1", "another", "{}", 60, "", "", "", "", "",
        keys.RECENT_DELIVERIES, keys.FAILING_DELIVERIES],
        "webhooks/due": [10], "records/progress": ["x", 1, "1 {}"], "records/watch": [],
        "records/message": ["x"],
        "pieces/append_pieces": ["m", "x", 1, 1, 1, 1, "[1]", ""],
        "pieces/read_pieces": [10, 10, "x", 0, ""],
        "jobs/start": ["x", 1, 1],
        "jobs/isolate": ["x", 1, "either", "here"],
        "profiles/request": ["p", "{}", "m@1", 1, 60, 8], "profiles/take": ["p", "w", 1],
        "profiles/save": ["p", "", "", "", 60, 8],
        "registry/end_pair": ["pair", "", "new pair", 1],
        "registry/change": ["", 10, "id", "m", "0", "", "{}"],
        "queues/retry_failures": [queue.name], "queues/discard_failures": [queue.name],
        "queues/follow_failures": ["m", 0, 0, 1],
        "workers/lease_replicas": ["w", 1, 0, 1, 0], "queues/find_work": [0, queue.name],
        "workers/save_series": [10],
    }  # fmt: skip
    command = known.call(queue.keys, *arguments[name])
    with pytest.raises(NoScriptError):
        queue.execute(*command)
    assert queue.execute(*known.load_command()).decode() == known.sha
    queue.execute(*command)
    queue.client.delete(
        keys.WORKERS, keys.worker("w"), keys.rate("k"), keys.RUNS, keys.runs_of("-"), keys.run("r"),
        keys.PAYLOADS,
        keys.background_held("w"), keys.profile("p"), keys.PROFILES, keys.REGISTRY,
    )  # fmt: skip
    assert queue.client.dbsize() == 0
