"""What clients read: Celery's results, publications, lifetimes, views of jobs, depths of queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from headrace.errors import InvalidRequest, ReplicaLost
from headrace.queue.following.waiters import EndedJob
from headrace.redis import keys
from headrace.redis.scripts import script
from headrace.redis.scripts.jobs import IN_EITHER
from tests.harness.clients.script_calls import MAX_CRASHES, SUCCESS, TTL_S, Job, Queue
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until


@pytest.fixture
def app(any_redis: RedisServer) -> Iterator[Celery]:
    """A stock Celery client that has nothing of ours but the address of the results."""
    with Celery(backend=any_redis.url) as app:
        yield app


def _read(app: Celery, job_id: str) -> tuple[str, Any]:
    result: AsyncResult[Any] = AsyncResult(job_id, app=app)
    assert result.ready()
    return result.status, result.result


def _crash_to_death(queue: Queue, job_id: str) -> None:
    for _ in range(MAX_CRASHES):
        leased = queue.claim_one()
        assert leased.id == job_id
        queue.isolate(leased, IN_EITHER)
        queue.release_owner("w1", mode="lost")


@pytest.mark.parametrize("how", ["queued", "delayed", "running", "released"])
def test_a_cancelled_job_is_revoked_to_celery(queue: Queue, app: Celery, how: str) -> None:
    job_id = queue.submit_one(delay_us=10**9 if how == "delayed" else 0)
    leased = queue.claim_one() if how in ("running", "released") else None
    queue.cancel(job_id)
    if leased is not None:
        (queue.settle if how == "running" else queue.release)(leased)
    queue.claim()
    status, error = _read(app, job_id)
    assert status == "REVOKED"
    assert isinstance(error, TaskRevokedError)
    with pytest.raises(TaskRevokedError, match="cancelled"):
        AsyncResult(job_id, app=app).get(timeout=30)


def test_a_dead_letter_is_a_failure_to_celery(queue: Queue, app: Celery) -> None:
    job_id = queue.submit_one()
    _crash_to_death(queue, job_id)
    status, error = _read(app, job_id)
    assert status == "FAILURE"
    assert isinstance(error, ReplicaLost)
    assert str(MAX_CRASHES) in str(error)


def test_a_refused_message_is_a_failure_to_celery(queue: Queue, app: Celery) -> None:
    app.send_task("no.such.task", task_id="odd", queue=queue.name, connection=_broker(app, queue))
    assert queue.claim().refused == 1
    status, error = _read(app, "odd")
    assert status == "FAILURE"
    assert isinstance(error, InvalidRequest)
    assert "headrace.predict" in str(error)


def _broker(app: Celery, queue: Queue) -> Any:
    port = queue.client.get_connection_kwargs()["port"]
    return app.connection_for_write(f"redis://127.0.0.1:{port}/0")


def test_a_stock_clients_message_is_claimed_and_its_result_read(queue: Queue, app: Celery) -> None:
    with _broker(app, queue) as connection:
        sent = app.send_task(
            keys.TASK_NAME, kwargs={"model": "m", "input": []}, queue=queue.name, priority=5,
            connection=connection,
        )  # fmt: skip
    assert queue.depth().step3 == 1
    leased = queue.claim_one()
    assert leased.id == sent.id
    meta: dict[str, Any] = {
        "status": "SUCCESS",
        "result": {"a": []},
        "traceback": None,
        "task_id": sent.id,
    }
    queue.settle(leased, meta=json.dumps({**meta, "children": []}))
    assert sent.get(timeout=30) == {"a": []}


def test_results_say_when_they_were_done(queue: Queue) -> None:
    queue.cancel(queue.submit_one(id="a"))
    queue.claim()
    seconds, microseconds = queue.client.time()
    meta = json.loads(queue.meta("a") or b"")
    done = datetime.fromisoformat(meta["date_done"])
    now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
    assert timedelta(0) <= now - done < timedelta(seconds=30)
    assert meta["task_id"] == "a"


DATES = ("1970-01-01", "1999-12-31", "2000-02-29", "2026-11-21", "2100-02-28", "2100-03-01")


@pytest.mark.parametrize("date", DATES)
def test_the_scripts_calendar_is_pythons(queue: Queue, date: str) -> None:
    when = datetime.fromisoformat(f"{date}T23:59:58+00:00")
    library = script("queues/purge").source.partition("local limit, cancelled")[0]
    library = library.replace("call('TIME')", f"{{'{int(when.timestamp())}', '42'}}")
    said = queue.client.eval(library + "return iso_now()", 0)
    assert said == (when + timedelta(microseconds=42)).isoformat().encode()


def test_nothing_expires_before_it_is_final_and_everything_after(queue: Queue) -> None:
    client = queue.client

    def lasting() -> set[str]:
        stored: Any = client.keys("*")
        return {name.decode() for name in stored if client.ttl(name) == -1}

    job_id = queue.submit_one(ttl_s=1, delay_us=1)
    record = keys.job(job_id)
    assert record in lasting()
    queue.sweep()
    assert record in lasting()
    queue.release(queue.claim_one())
    assert record in lasting()
    queue.settle(queue.claim_one(), state="f", extra=("e", "{}"), retry_us="1")
    assert record in lasting()
    queue.sweep()
    leased = queue.claim_one()
    assert record in lasting()
    queue.settle(leased)
    assert lasting() <= {keys.TOKEN, keys.count(queue.name), keys.stats(queue.model)}
    wait_until(lambda: not client.exists(record, keys.meta(job_id)), "record and result expired")


@pytest.mark.parametrize("ttl_s", [3600, 770])
def test_record_and_result_live_equally_long(queue: Queue, ttl_s: int) -> None:
    job_id = queue.submit_one(ttl_s=ttl_s)
    queue.settle(queue.claim_one())
    assert queue.kept_s(job_id) == pytest.approx(ttl_s, abs=30)


def test_a_result_that_is_to_be_ignored_is_not_kept(queue: Queue) -> None:
    job_id = queue.submit_one()
    queue.settle(queue.claim_one(), meta="")
    assert queue.meta(job_id) is None
    assert queue.record(job_id)["s"] == "s"


def test_the_end_of_a_job_is_published_to_its_waiter_and_on_its_result(queue: Queue) -> None:
    ids = [queue.submit_one(waiter=waiter) for waiter in ("api-1", "api-2", "api-1", "")]
    heard: list[tuple[str, bytes]] = []
    client: Any = queue.client
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        channels = [keys.done_channel("api-1"), keys.done_channel("api-2"), keys.meta(ids[3])]
        pubsub.subscribe(*channels)

        def listen() -> bool:
            message = pubsub.get_message(timeout=0.1)
            if message is not None:
                heard.append((message["channel"].decode(), message["data"]))
            return len(heard) == len(channels)

        wait_until(lambda: len(client.pubsub_channels()) == len(channels), "it listens")
        leased = queue.claim().jobs
        queue.settle(*leased, extra=("rt", "image/png"))
        wait_until(listen, "all three channels were heard")
        queue.cancel(queue.submit_one(waiter="api-2"))
        wait_until(lambda: listen() or len(heard) == 4, "a script's own end was heard")
    queue.claim()
    published = dict(heard[:3])
    assert published[channels[2]] == SUCCESS.encode()
    rows = msgspec.msgpack.decode(published[channels[0]])
    assert [row[0] for row in rows] == [ids[0], ids[2]], "one publication a batch"
    (
        _,
        state,
        started,
        ended,
        attempts,
        batch,
        timings,
        field,
        value,
        meta,
        dead,
        waited,
        ran,
        worker,
        _,
    ) = rows[0]
    record = queue.record(ids[0])
    assert (state, started, ended, attempts) == ("s", record["st"], record["en"], "1")
    assert (batch, timings, waited) == ("4", "1.0,2.0,3.0,4.0,5.0", "6.0")
    assert (field, value, meta, dead) == ("rt", "image/png", SUCCESS, "")
    assert (ran, worker) == (record["v"], record["o"]) == ("1.0", "w1")
    assert len(msgspec.msgpack.decode(heard[3][1])[0]) == 1, "look at the record"


def test_a_view_gives_record_result_and_place(queue: Queue) -> None:
    job_id = queue.submit_one()
    ((flat, meta, place), unknown) = queue.view(job_id, "nobody")
    assert unknown == 0
    record = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (record[b"s"], meta, place) == (b"q", b"", 1)
    queue.settle(queue.claim_one())
    ((_, meta, place),) = queue.view(job_id)
    assert (meta, place) == (SUCCESS.encode(), 0)
    ((_, meta, _),) = queue.view(job_id, results=False)
    assert meta == b""


def test_the_message_of_a_job_is_found_wherever_it_waits(queue: Queue) -> None:
    ids = [queue.submit_one(step=step) for step in (0, 0, 0, 3)]
    later = queue.submit_one(delay_us=10**9)

    def found(job_id: str) -> bool:
        raw = queue.call("records/message", [], job_id)
        return bool(raw) and f'"id":"{job_id}"' in raw.decode()

    assert all(map(found, [*ids, later]))
    first, second, third = queue.claim(3).jobs
    assert all(map(found, ids)), "some are leased"
    # Those that return first are behind their tickets now.
    queue.release(second)
    queue.release(first)
    queue.cancel(third.id)
    assert all(map(found, [first.id, second.id, third.id, ids[3]]))
    queue.settle(third)
    queue.cancel(later)
    assert [found(job_id) for job_id in (third.id, later, "nobody")] == [False] * 3
    queue.settle_all()
    assert not any(map(found, ids))


def test_a_place_counts_down_as_the_queue_moves(queue: Queue) -> None:
    ids = [queue.submit_one(step=3) for _ in range(5)]
    assert [queue.place(job_id) for job_id in ids] == [1, 2, 3, 4, 5]
    better = queue.submit_one()
    assert [queue.place(job_id) for job_id in ids] == [2, 3, 4, 5, 6]
    first = queue.claim(3)
    assert first.ids == [better, *ids[:2]]
    assert [queue.place(job_id) for job_id in ids] == [0, 0, 1, 2, 3]
    queue.release(*first.jobs)
    assert [queue.place(job_id) for job_id in ids[2:]] == [4, 5, 6]
    queue.settle_all()


@pytest.mark.leaves_keys
def test_a_depth_tells_what_waits_where(queue: Queue) -> None:
    first = queue.submit_one(step=9)
    queue.submit(*(Job(step=step) for step in (0, 3, 3, 6)), Job(delay_us=10**9))
    queue.push(b"junk")
    leased = queue.claim(1)
    assert leased.jobs, "the junk lies behind the first job of its list"
    queue.claim(1)
    depth = queue.depth()
    assert (depth.step0, depth.step3, depth.step6, depth.step9) == (0, 1, 1, 1)
    assert (depth.delayed, depth.leased, depth.dead) == (1, 2, 1)
    assert (depth.oldest0, depth.oldest9) == ("", queue.record(first)["c"])
    assert int(depth.oldest9) < int(depth.oldest3) <= int(depth.oldest6)


def test_the_oldest_is_neither_cancelled_nor_leased_nor_counted_while_delayed(queue: Queue) -> None:
    gone, leased, delayed, oldest = (
        queue.submit_one(),
        queue.submit_one(),
        queue.submit_one(delay_us=1),
        queue.submit_one(),
    )
    queue.release(queue.claim_one())
    queue.cancel(gone)
    assert queue.depth().oldest == queue.record(leased)["c"]
    assert queue.claim(1).ids == [leased]
    assert queue.depth().oldest == queue.record(oldest)["c"]
    assert queue.sweep()[0] == 1
    assert queue.claim(1).ids == [oldest]
    joined = int(queue.depth().oldest)
    assert joined > int(queue.record(oldest)["c"]) > int(queue.record(delayed)["c"])
    queue.settle_all()
    assert queue.depth().oldest == ""


@pytest.mark.leaves_keys
def test_one_odd_key_blinds_nobody_to_the_depth_of_other_queues(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    other.submit_one()
    for name in queue.keys:
        queue.client.set(name, "another application's")
    _, odd, good = queue.call("queues/depth", [], queue.name, other.name)
    assert [int(n) for n in odd[:7]] == [0] * 7
    assert [int(n) for n in good[:7]] == [1, 0, 0, 0, 0, 0, 0]


def _heard(listener: Any) -> list[tuple[str, bytes]]:
    """What has been published on the channels that a pubsub listens to, up to now."""
    listener.ping()
    heard: list[tuple[str, bytes]] = []
    while (message := listener.get_message(timeout=10)) is not None:
        if message["type"] == "pong":
            break
        if message["type"] == "message":
            heard.append((message["channel"].decode(), message["data"]))
    return heard


def test_of_a_quiet_job_nobody_is_told_until_somebody_listens(queue: Queue) -> None:
    queue.index_max = 100
    ids = [queue.submit_one(waiter=keys.NO_WAITER) for _ in range(3)]
    loud = queue.submit_one()
    assert queue.client.zrange(keys.job_index(queue.model), 0, -1) == [loud.encode()]
    assert [queue.listen(job_id) for job_id in (ids[1], ids[1], loud, "none")] == [1, 0, 0, 0]
    client: Any = queue.client
    with client.pubsub() as listener:
        listener.subscribe(*map(keys.meta, ids), *map(keys.ended, ids), keys.done_channel("-"))
        wait_until(lambda: len(queue.client.pubsub_channels()) == 7, "it listens")
        quiet = [job for job in queue.claim().jobs if job.id != loud]
        assert queue.settle(*quiet[:2], meta="", extra=("r", '{"a":[1]}')) == [1, 1]
        queue.cancel(ids[2])
        assert queue.settle(quiet[2], meta="", extra=("r", "1")) == [3]
        (status, ignored), (ended, said), (cancelled, _) = _heard(listener)
    assert (status, json.loads(ignored)["status"]) == (keys.meta(ids[1]), "IGNORED")
    assert ended == keys.ended(ids[1])
    (row,) = msgspec.msgpack.decode(said, type=list[EndedJob])
    assert row.job("m", 0).result_json == b'{"a":[1]}'
    assert cancelled == keys.meta(ids[2])
    for job_id in ids[:2]:
        assert queue.meta(job_id) is None
        assert 0 < queue.client.ttl(keys.job(job_id)) <= TTL_S
    queue.settle_all()
    queue.client.delete(keys.job_index(queue.model))


def test_a_quiet_jobs_result_is_read_from_its_record(queue: Queue) -> None:
    job_id = queue.submit_one(waiter=keys.NO_WAITER)
    assert queue.settle(queue.claim_one(), meta="", extra=("r", '{"a":[1]}')) == [1]
    for results in (True, False):
        ((flat, meta, _),) = queue.view(job_id, results=results)
        record = dict(zip(flat[::2], flat[1::2], strict=True))
        assert (record.get(b"r"), meta) == (b'{"a":[1]}' if results else None, b"")
    ((state, *_, result),) = queue.outcomes(job_id)
    assert (state, result) == (b"s", b'{"a":[1]}')
    assert queue.call("records/delete", [], "", job_id, job_id) == [1]
    assert queue.client.exists(keys.job(job_id)) == 0
