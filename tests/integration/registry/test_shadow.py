"""A shadow version: copies of jobs, and the comparison of what they return."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from api.observability.counters import CounterReporter
from api.submission.input_store import StoredInput
from api.submission.job_request import ValidatedRequest
from headrace.jobs.message import Message
from headrace.observability.worker_report import ShadowResult, shadow_field
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.script_calls import Queue
from tests.harness.fakes.worker import Answer, claim, echo, failure, settle
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

pytestmark = pytest.mark.leaves_keys

TRAFFIC = "/api/v1/models/words/traffic"
JOBS = "/api/v1/models/words/jobs"
SHADOW = keys.version_queue("words", "2.0")
NOTHING = {"equal": 0, "different": 0, "failed": 0, "dropped": 0, "unknown": 0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text("models: {words: {handler: echo}}\n")
    return path


@pytest.fixture
def api(redis_db: RedisServer, file: Path) -> Iterator[ApiServer]:
    with registry_server(redis_db.url, file, inline_limit_bytes=1024) as server:
        add_version(server)
        route(server)
        yield server


def add_version(api: ApiServer, **options: Any) -> None:
    body = {"options": {"handler": "echo", **options}}
    assert api.http.put("/api/v1/models/words/versions/2.0", json=body).is_success


def route(api: ApiServer, **traffic: Any) -> None:
    answer = api.http.put(TRAFFIC, json={"shadow": "2.0", **traffic})
    assert answer.status_code == 200, answer.text


def submit(api: ApiServer, value: Any = 1, **options: Any) -> str:
    body = {"model": "words", "input": value, "options": options}
    answer = api.http.post("/api/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def waiting(redis_db: RedisServer, queue: str = SHADOW) -> list[int]:
    """Return how many jobs wait at each step of a queue."""
    with redis_db.client() as client:
        return [client.llen(key) for key in keys.step_keys(queue)]


def run(redis_db: RedisServer, version: str, answer: Callable[[Message], Answer] = echo) -> Message:
    """Run the one job that waits for a version; "" is the model's own queue."""
    model = f"words@{version}" if version else "words"
    with redis_db.client() as client:
        claimed = wait_until(lambda: claim(client, model), f"a job of {model} waits")
        settle(client, model, claimed, [answer(message) for message, _ in claimed])
    ((message, _),) = claimed
    return message


def results(api: ApiServer) -> dict[str, int]:
    found: dict[str, int] = api.http.get(TRAFFIC).json()["shadow_results"]
    return found


def counted(api: ApiServer, **expected: int) -> None:
    wait_until(lambda: results(api) == {**NOTHING, **expected}, f"counted: {expected}", 60)


def test_a_copy_is_offline_work_that_no_list_shows(api: ApiServer, redis_db: RedisServer) -> None:
    job = submit(api, {"x": 1}, metadata={"user": "ann"}, priority=3)
    wait_until(lambda: waiting(redis_db) == [0, 0, 0, 1], "the copy waits")
    assert waiting(redis_db, keys.queue_name("words")) == [0, 1, 0, 0]

    with redis_db.client() as client:
        (raw,) = client.lrange(keys.step_key(SHADOW, keys.OFFLINE_STEP), 0, -1)
        copy = json.loads(raw)["headers"]["id"]
        record = client.hgetall(keys.job(copy))
    assert record[JobField.SHADOW_OF.encode()].decode() == job
    assert JobField.WEBHOOK.encode() not in record
    listed = api.http.get("/api/v1/jobs").json()["jobs"]
    assert [one["id"] for one in listed] == [job]


def test_results_are_compared_and_counted_and_never_returned(
    api: ApiServer, redis_db: RedisServer
) -> None:
    job = submit(api, {"a": 1, "b": 2})
    run(redis_db, "")
    copy = run(redis_db, "2.0", lambda _: Answer(result=b'{"b": 2, "a": 1}'))
    submit(api, 2)
    # In the other order: the copy ends first.
    run(redis_db, "2.0", lambda _: Answer(result=b"3"))
    run(redis_db, "")
    submit(api, 4)
    run(redis_db, "")
    run(redis_db, "2.0", lambda _: failure("handler-error", "no"))
    # What a cache had is no difference.
    usage = b'{"text": "a", "usage": {"cached_tokens": %d, "prompt_tokens": 70}}'
    submit(api, 3)
    run(redis_db, "", lambda _: Answer(result=usage % 0))
    run(redis_db, "2.0", lambda _: Answer(result=usage % 64))
    submit(api, 5)
    for version in ("", "2.0"):
        run(redis_db, version, lambda _: failure("input-error", "no"))

    counted(api, equal=3, different=1, failed=1)
    assert api.http.get(f"/api/v1/jobs/{job}").json()["result"] == {"a": 1, "b": 2}
    with redis_db.client() as client:
        assert client.zcard(keys.SHADOW) == 0
        wait_until(lambda: not client.exists(keys.job(copy.id)), "the copy is forgotten")
    metrics = wait_until(lambda: api.http.get("/metrics").text, "metrics")
    name = 'headrace_shadow_jobs_total{model="words",result="equal",version="2.0"}'
    assert f"{name} 3.0\n" in metrics


def test_the_copy_of_a_cancelled_job_is_dropped(api: ApiServer, redis_db: RedisServer) -> None:
    job = submit(api)
    wait_until(lambda: sum(waiting(redis_db)) == 1, "the copy waits")
    assert api.http.delete(f"/api/v1/jobs/{job}").status_code == 200
    counted(api, dropped=1)
    with redis_db.client() as client:
        assert claim(client, "words@2.0") == []


def test_a_full_queue_drops_copies_and_no_job(api: ApiServer, redis_db: RedisServer) -> None:
    add_version(api, max_queue_depth=1)
    for n in range(3):
        submit(api, n)
    counted(api, dropped=2)
    assert sum(waiting(redis_db)) == 1
    assert sum(waiting(redis_db, keys.queue_name("words"))) == 3


def test_copies_leave_half_of_the_queue_to_jobs(api: ApiServer, redis_db: RedisServer) -> None:
    add_version(api, max_queue_depth=4)
    for n in range(5):
        submit(api, n)
    counted(api, dropped=3)
    own = "/api/v1/models/words/versions/2.0/jobs"
    statuses = [api.http.post(own, json=n).status_code for n in range(3)]
    assert statuses == [202, 202, 429]


def test_copies_leave_half_of_the_payload_memory_to_jobs(redis_db: RedisServer, file: Path) -> None:
    with registry_server(
        redis_db.url, file, inline_limit_bytes=1024, max_payload_memory_bytes=300_000
    ) as api:
        add_version(api)
        route(api)
        for _ in range(4):
            submit(api, "x" * 30_000)
        wait_until(lambda: results(api)["dropped"] + sum(waiting(redis_db)) == 4, "4 copies")
        # All copies with their jobs would leave 60,000 bytes.
        assert results(api)["dropped"] >= 2
        submit(api, "x" * 100_000)


def test_the_inputs_of_copies_are_stored_one_after_the_other(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = api.services.input_store
    keep, now, most = store.keep, 0, 0

    async def counting(request: ValidatedRequest, **options: Any) -> StoredInput:
        nonlocal now, most
        if request.model.version != "2.0":
            return await keep(request, **options)
        now += 1
        most = max(now, most)
        try:
            return await keep(request, **options)
        finally:
            now -= 1

    monkeypatch.setattr(store, "keep", counting)
    line = json.dumps({"model": "words", "input": "x" * 5000})
    headers = {"content-type": "application/x-ndjson"}
    api.http.post("/api/v1/jobs/bulk", content="\n".join([line] * 20), headers=headers)
    wait_until(lambda: sum(waiting(redis_db)) == 20, "the copies wait")
    assert most == 1


def test_a_pair_that_cannot_be_read_is_removed(
    api: ApiServer, redis_db: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    newer = '["a","b","words","2.0",1.0,"","","new"]'
    with redis_db.client() as client:
        client.zadd(keys.SHADOW, {newer: 1, b"\xff": 1})
    submit(api)
    run(redis_db, "")
    run(redis_db, "2.0")
    counted(api, equal=1)
    with redis_db.client() as client:
        assert client.zcard(keys.SHADOW) == 0
    assert caplog.text.count("its pair cannot be read") == 2


def test_what_has_ended_while_no_api_ran_is_compared_by_the_next_one(
    redis_db: RedisServer, file: Path
) -> None:
    with registry_server(redis_db.url, file, inline_limit_bytes=1024) as api:
        add_version(api)
        route(api)
        submit(api)
        wait_until(lambda: sum(waiting(redis_db)) == 1, "the copy waits")
    run(redis_db, "")
    run(redis_db, "2.0")
    with registry_server(redis_db.url, file, inline_limit_bytes=1024) as api:
        counted(api, equal=1)


def test_several_api_processes_count_a_copy_once(
    api: ApiServer, redis_db: RedisServer, file: Path
) -> None:
    with registry_server(redis_db.url, file, inline_limit_bytes=1024) as other:
        for n in range(5):
            submit(api, n)
            run(redis_db, "")
            run(redis_db, "2.0")
        counted(api, equal=5)
        counted(other, equal=5)


def test_a_result_counts_although_its_process_never_reports(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process has not reported what it counted in its last second."""
    monkeypatch.setattr(CounterReporter, "report", AsyncMock(return_value=[]))
    for n in range(3):
        submit(api, n)
        run(redis_db, "")
        run(redis_db, "2.0")
    with redis_db.client() as client:
        field = shadow_field("2.0", ShadowResult.EQUAL)
        wait_until(lambda: client.hget(keys.stats("words"), field) == b"3", "all are counted")
        assert client.zcard(keys.SHADOW) == 0


def test_a_pair_is_ended_or_replaced_once(redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        queue = Queue(client, "words")

        def end(*arguments: Any) -> int:
            return int(queue.call("registry/end_pair", [], *arguments))

        client.zadd(keys.SHADOW, {"pair": 1})
        assert [end("pair", "", "more", 7) for _ in range(2)] == [1, 0]
        assert client.zrange(keys.SHADOW, 0, -1, withscores=True) == [(b"more", 7.0)]
        assert [end("more", "words", "shadow:equal 2.0") for _ in range(2)] == [1, 0]
        assert client.zcard(keys.SHADOW) == 0
        assert client.hgetall(keys.stats("words")) == {b"shadow:equal 2.0": b"1"}


def test_a_copy_of_a_stored_input_has_its_own(api: ApiServer, redis_db: RedisServer) -> None:
    text = "x" * 5000
    submit(api, text)
    first = run(redis_db, "", lambda _: Answer(result=b"1"))
    copy = run(redis_db, "2.0", lambda _: Answer(result=b"1"))
    assert first.source is not None
    assert copy.source is not None
    assert first.source.ref != copy.source.ref
    counted(api, equal=1)


def test_a_result_that_was_forgotten_is_unknown(api: ApiServer, redis_db: RedisServer) -> None:
    job = submit(api)
    wait_until(lambda: sum(waiting(redis_db)) == 1, "the copy waits")
    with redis_db.client() as client:
        client.delete(keys.job(job))
    run(redis_db, "2.0")
    counted(api, unknown=1)


def test_some_percent_of_the_jobs_are_copied(api: ApiServer, redis_db: RedisServer) -> None:
    route(api, shadow_percent=10)
    line = json.dumps({"model": "words", "input": 1})
    body = "\n".join([line] * 2000)
    headers = {"content-type": "application/x-ndjson"}
    api.http.post("/api/v1/jobs/bulk?quiet=1&brief=1", content=body, headers=headers)

    def settled() -> bool:
        with redis_db.client() as client:
            pairs = client.zcard(keys.SHADOW)
        return bool(pairs == sum(waiting(redis_db)) and pairs >= 120)

    wait_until(settled, "the copies wait")
    assert sum(waiting(redis_db)) <= 280


def test_a_job_that_names_a_version_or_has_the_shadow_version_is_not_copied(
    api: ApiServer, redis_db: RedisServer
) -> None:
    route(api, weights={"2.0": 1})
    submit(api)
    api.http.post("/api/v1/models/words/versions/1.0/jobs", json=1)
    route(api)
    submit(api)
    wait_until(lambda: waiting(redis_db) == [1, 0, 0, 1], "one copy, and the job for 2.0")


def test_a_repeat_makes_no_second_copy(api: ApiServer, redis_db: RedisServer) -> None:
    key = {"Idempotency-Key": "once"}
    for _ in range(3):
        api.http.post(JOBS, json=1, headers=key)
    submit(api)
    wait_until(lambda: sum(waiting(redis_db)) == 2, "two copies wait")


def test_a_promotion_of_the_shadow_version_ends_the_copies(
    api: ApiServer, redis_db: RedisServer
) -> None:
    refused = api.http.delete("/api/v1/models/words/versions/2.0")
    assert refused.status_code == 409
    api.http.patch("/api/v1/models/words", json={"default_version": "2.0"})
    assert api.http.get(TRAFFIC).json()["shadow"] is None


def test_without_a_shadow_version_and_without_pairs_a_process_looks_less_often(
    api: ApiServer, redis_db: RedisServer
) -> None:
    copies = api.services.shadow_copies
    submit(api)
    with redis_db.client() as client:
        wait_until(lambda: waiting(redis_db) == [0, 0, 0, 1], "the job is copied")
        assert api.http.put(TRAFFIC, json={}).is_success
        assert not copies.idle
        run(redis_db, "")
        assert not copies.idle
        run(redis_db, "2.0")
        wait_until(lambda: copies.idle, "it looks less often", 60)
        assert client.zcard(keys.SHADOW) == 0
    route(api)
    assert results(api)["equal"] == 1
    submit(api, 2)
    run(redis_db, "")
    run(redis_db, "2.0")
    counted(api, equal=2)
