"""The overview and the findings: numbers and judgements as they are in Redis now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headrace.queue import findings
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.schema.overview import Finding
from tests.harness.clients.doctor import found as by_doctor
from tests.harness.clients.doctor import tell
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

pytestmark = pytest.mark.leaves_keys


@pytest.fixture
def client(redis_db: RedisServer) -> Iterator[redis.Redis]:
    with redis_db.client() as connected:
        yield connected


def overview(api: ApiServer) -> Any:
    answer = api.http.get("/api/v1/overview")
    assert answer.status_code == 200, answer.text
    return answer.json()


def codes(api: ApiServer, *wanted: str, worker: bool = True) -> Any:
    """The findings, once the overview is so new that it has exactly these."""

    def found() -> Any:
        if worker:
            with redis.Redis.from_url(api.redis_url) as client:
                tell(client, "a", models={"echo": {}, "tiny": {}})
        all_ = overview(api)["findings"]
        return ([one["code"] for one in all_] == list(wanted)) and (all_ or True)

    return wait_until(found, f"{wanted} are found")


def test_what_is_wrong_is_found_as_the_doctor_finds_it(
    api: ApiServer, client: redis.Redis, redis_db: RedisServer, tmp_path: Any
) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"}, tiny={"handler": "echo"})

    def same(check: str, finding: dict[str, Any]) -> None:
        """The doctor says it with the same words."""
        told = by_doctor(check, redis_db.url, models)
        assert (str(told.verdict), told.sentence, told.hint) == (
            finding["severity"], finding["text"], finding["hint"],
        )  # fmt: skip
        assert finding["check"] == check

    (none,) = codes(api, "no-worker", worker=False)
    assert (none["severity"], none["model"]) == ("fail", None)
    job = api.http.post("/api/v1/models/echo/jobs", json=1).json()["id"]
    same("workers", codes(api, "no-worker", "no-ready-process", worker=False)[0])
    codes(api)
    client.sadd(keys.PAUSED, "headrace.echo")
    (paused,) = codes(api, "paused")
    assert (paused["severity"], paused["model"]) == ("warn", "echo")
    same("queues", paused)
    seconds: Any = client.time()
    client.hset(keys.job(job), JobField.CREATED, (seconds[0] - 7200) * US_PER_S)
    same("backlog", codes(api, "paused", "old-jobs")[1])
    client.zadd(keys.dead("headrace.tiny"), {"x": 1})
    same("dead-letters", codes(api, "paused", "old-jobs", "dead-letters")[2])
    client.rpush(keys.BACKGROUND_TASKS, "x")
    same("background", codes(api, "no-background-worker", "paused", "old-jobs", "dead-letters")[0])
    client.set(keys.background_alive("b"), "{}", ex=60)
    client.sadd(keys.BACKGROUND_WORKERS, "b")
    codes(api, "paused", "old-jobs", "dead-letters")
    shown = {model["name"]: model for model in overview(api)["models"]}
    assert shown["echo"]["paused"]
    assert shown["echo"]["queued"] == 1
    assert shown["echo"]["oldest_age_s"] >= 7200
    assert shown["echo"]["submitted"] == 1
    assert (shown["tiny"]["dead_letters"], shown["tiny"]["last_minute"]) == (1, None)
    assert api.http.get("/api/v1/findings").json()["findings"] == overview(api)["findings"]


def test_it_is_computed_once_and_known_by_its_etag(api: ApiServer, client: redis.Redis) -> None:
    def calls() -> int:
        stats: Any = client.info("commandstats")
        return int(stats["cmdstat_evalsha"]["calls"])

    assert api.http.get("/api/v1/overview").status_code == 200
    before = calls()
    answers = [api.http.get("/api/v1/overview") for _ in range(50)]
    took_s = sum(answer.elapsed.total_seconds() for answer in answers)
    # Once a second, and the API's own call a second.
    assert calls() - before <= 4 * (took_s + 2)

    def known() -> str | None:
        etag = str(api.http.get("/api/v1/overview").headers["etag"])
        same = api.http.get("/api/v1/overview", headers={"if-none-match": f'"x", {etag}'})
        if same.status_code != 304:
            return None  # It was computed anew between the two.
        assert (same.content, same.headers["etag"]) == (b"", etag)
        return etag

    first = wait_until(known, "it is known by its etag")
    client.sadd(keys.PAUSED, "headrace.tiny")

    def changed() -> bool:
        return api.http.get("/api/v1/overview").headers["etag"] != first

    wait_until(changed, "the pause is in the overview")


def test_memory_and_disks_are_judged_by_their_numbers() -> None:
    def of(**info: int | str) -> list[str]:
        found: list[Finding] = list(findings.of_redis(info))
        return [one.code for one in found]

    gib = 1 << 30
    assert of() == of(used_memory=gib, maxmemory=2 * gib, total_system_memory=8 * gib) == []
    assert of(used_memory=2 * gib, maxmemory=2 * gib) == ["memory-full"]
    assert of(used_memory=9 * gib // 10, maxmemory=gib) == ["memory-nearly-full"]
    assert of(used_memory=7 * gib, total_system_memory=8 * gib) == ["memory-nearly-full"]
    assert of(used_memory=1, maxmemory=9 * gib, total_system_memory=gib) == ["memory-beyond-host"]
    assert of(aof_last_write_status="err") == ["writes-fail"]
