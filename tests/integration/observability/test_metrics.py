"""What a scrape shows, and what it asks of Redis for that."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from api.observability.metric_families import FAMILIES, SHADOW
from headrace.observability.worker_report import (
    DeviceFigures,
    Figures,
    GenerationState,
    HostFigures,
    ModelStats,
)
from headrace.redis import keys
from headrace.redis.fast_connection import TRAFFIC, FastConnection
from tests.harness.fakes.worker import publish_state, publish_stats
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

GIB = 2**30
HOST = HostFigures("h1", 8, 0.25, 32 * GIB, 8 * GIB, 100 * GIB, 40 * GIB)
GPU = DeviceFigures("0", "GPU-1", "Test", 0.5, 60 * GIB, 80 * GIB, 61, 415.25)
PART = DeviceFigures("MIG-1", "MIG-1", "Test MIG", memory_used_bytes=GIB, memory_bytes=10 * GIB)
STATUS = "/api/v1/jobs/status"

Labels = tuple[str, ...]


def samples(api: ApiServer, name: str) -> dict[Labels, float]:
    """The samples of one name, by the values of their labels in the order of their names."""
    response = api.http.get("/metrics")
    assert response.status_code == 200
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if sample.name == name
    }


def round_trips(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Writes to Redis of one scrape: the fewest of several, as a second's own may fall into one."""
    sent = 0
    send = FastConnection.send_packed_command

    async def counted(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal sent
        sent += 1
        await send(self, *arguments, **options)

    monkeypatch.setattr(FastConnection, "send_packed_command", counted)
    found = []
    for _ in range(8):
        before = sent
        assert api.http.get("/metrics").status_code == 200
        found.append(sent - before)
    monkeypatch.undo()
    return min(found)


def test_a_scrape_takes_one_round_trip_whatever_there_is(
    redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"m{n}" for n in range(30)]
    with redis_db.client() as client:
        with api_server(redis_db.url, catalog(m0={})) as api:
            alone = round_trips(api, monkeypatch)
        # Whatever another version counts there, and from the second scrape on.
        client.hset(keys.stats("m1"), mapping={"ended:later": 1, "queue_seconds@3": "1 2"})
        for owner in ("w1", "w2", "w3"):
            publish_state(client, owner, "m0", "ready", figures=Figures(HOST, [GPU]))
        with (
            api_server(redis_db.url, catalog(**{name: {} for name in names})) as api,
            api_server(redis_db.url, catalog(m0={})),
        ):
            for _ in range(3):
                api.http.post("/api/v1/models/m0/jobs?priority=x", json=1)
            many = round_trips(api, monkeypatch)
            assert samples(api, "headrace_workers") == {(): 3}
            depth = samples(api, "headrace_queue_depth")
            assert len(depth) == 4 * len(names)
            used = int(client.info()["used_memory"])
            assert samples(api, "headrace_redis_memory_used_bytes")[()] == pytest.approx(
                used, rel=0.5
            )
            assert samples(api, "headrace_redis_memory_max_bytes") == {(): 0}
    assert (alone, many) == (1, 1)


def test_every_metric_is_there_before_anything_has_run(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        api.http.get("/live")
        figures, generation = Figures(HOST, [GPU], {"echo": 5}), GenerationState()
        publish_state(client, "w1", "echo", "ready", figures=figures, generation=generation)
        text = api.http.get("/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found.keys() == {family.name for family in FAMILIES}
    without = {name for name, family in found.items() if not family.samples}
    # Of a shadow version, which no model has here.
    assert without == {SHADOW.name}
    for family in FAMILIES:
        assert found[family.name].type == family.kind
        for sample in found[family.name].samples:
            assert sample.labels.keys() - {"le"} == set(family.labels)


def test_hosts_and_devices_are_shown_once_though_workers_share_them(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        for owner in ("w1", "w2"):
            figures = Figures(HOST, [GPU, PART], {"echo": 3 * GIB})
            publish_state(client, owner, "echo", "ready", figures=figures)
        assert samples(api, "headrace_host_cpu_ratio") == {("h1",): 0.25}
        assert samples(api, "headrace_host_memory_available_bytes") == {("h1",): 8 * GIB}
        assert samples(api, "headrace_host_disk_bytes") == {("h1",): 100 * GIB}
        assert samples(api, "headrace_device_info") == {
            ("0", "h1", "Test", "GPU-1"): 1,
            ("MIG-1", "h1", "Test MIG", "MIG-1"): 1,
        }
        assert samples(api, "headrace_device_memory_used_bytes") == {
            ("0", "h1"): 60 * GIB,
            ("MIG-1", "h1"): GIB,
        }
        # What a driver does not tell of a part has no series, rather than a false zero.
        assert samples(api, "headrace_device_utilization_ratio") == {("0", "h1"): 0.5}
        assert samples(api, "headrace_device_temperature_celsius") == {("0", "h1"): 61}
        assert samples(api, "headrace_device_power_watts") == {("0", "h1"): 415.25}
        assert samples(api, "headrace_model_memory_bytes") == {
            ("echo", "w1@test"): 3 * GIB,
            ("echo", "w2@test"): 3 * GIB,
        }
        info = samples(api, "headrace_worker_info")
        assert info == {("", "w1@test"): 1, ("", "w2@test"): 1}
        # A worker that is gone takes its figures with it.
        client.delete(keys.worker("w1"), keys.worker("w2"))
        assert samples(api, "headrace_host_cpu_ratio") == {}


def test_workers_that_come_and_go_between_two_scrapes_are_shown_at_once(
    api: ApiServer, redis_db: RedisServer
) -> None:
    def memory() -> dict[Labels, float]:
        return samples(api, "headrace_model_memory_bytes")

    def publish(owner: str, taken: int) -> None:
        publish_state(client, owner, "echo", "ready", figures=Figures(HOST, [], {"echo": taken}))

    with redis_db.client() as client:
        publish("w1", 1)
        assert memory() == {("echo", "w1@test"): 1}
        assert samples(api, "headrace_workers") == {(): 1}
        # One more, then another order of who was seen last, then one less.
        publish("w2", 2)
        assert memory() == {("echo", "w1@test"): 1, ("echo", "w2@test"): 2}
        publish("w1", 3)
        assert memory() == {("echo", "w1@test"): 3, ("echo", "w2@test"): 2}
        client.zrem(keys.WORKERS, "w1")
        assert memory() == {("echo", "w2@test"): 2}
        assert samples(api, "headrace_model_ready_replicas")[("echo",)] == 1
        # Its name is there still, what it said has run out.
        client.delete(keys.worker("w2"))
        assert memory() == {}
        assert samples(api, "headrace_workers") == {(): 0}
        client.delete(keys.worker("w1"), keys.WORKERS)


def test_every_scrape_of_every_process_shows_what_redis_has_now(redis_db: RedisServer) -> None:
    stats, name = ModelStats(), "headrace_jobs_ended_total"
    models = catalog(m={}, still={})
    with (
        redis_db.client() as client,
        api_server(redis_db.url, models) as one,
        api_server(redis_db.url, models) as two,
    ):
        for n in range(1, 4):
            stats.count("ended:succeeded")
            stats.count("ended:retried")
            # One that was never there before, so that the series are others each time.
            stats.count(f"ended:of-a-later-version-{n}", 0.1)
            stats.observe("queue_seconds", [0.25])
            publish_stats(client, m=stats)
            for api in (one, two):
                ended = samples(api, name)
                assert ended["m", "succeeded"] == n
                assert ended["m", f"of-a-later-version-{n}"] == 0.1
                assert len(ended) == 8 + n
                assert ("m", "retried") not in ended
                assert samples(api, "headrace_jobs_retried_total") == {("m",): n, ("still",): 0}
                sums = samples(api, "headrace_queue_seconds_sum")
                assert sums == {("m",): 0.25 * n, ("still",): 0}
        # More than are remembered: they are asked for anew each time.
        client.hset(keys.stats("m"), mapping={f"ended:more-{n}": n for n in range(150)})
        for api in (one, two, one, two):
            ended = samples(api, name)
            assert len(ended) == 8 + 3 + 150
            assert ended["m", "more-149"] == 149
        # As after the loss of Redis: nothing of before is shown.
        client.flushall()
        for api in (one, two):
            assert samples(api, name)["m", "succeeded"] == 0
            assert len(samples(api, name)) == 8
            assert samples(api, "headrace_queue_seconds_count") == {("m",): 0, ("still",): 0}


def test_a_scrape_with_a_request_id_gets_the_same_answer(api: ApiServer) -> None:
    """Its answer is sent by ASGI's messages; and no answer is compressed."""
    plain = api.http.get("/metrics", headers={"accept-encoding": "gzip"})
    named = api.http.get("/metrics", headers={"x-request-id": "a"})
    assert named.headers.pop("x-request-id") == "a"
    for answer in (plain, named):
        assert int(answer.headers.pop("content-length")) == len(answer.content)
        del answer.headers["date"]
        assert answer.text.endswith("\n")
    assert plain.headers == named.headers == {"content-type": CONTENT_TYPE_LATEST}


def test_requests_are_counted_by_route_and_never_by_path(
    api: ApiServer, redis_db: RedisServer
) -> None:
    for verb in ("PROPFIND", "PURGE", "LOCK"):
        assert api.http.get(f"/api/v1/jobs/nobody-{verb}").status_code == 404
        assert api.http.get(f"/no/such/path-{verb}").status_code == 404
        assert api.http.request(verb, "/api/v1/jobs").status_code == 405
    assert api.http.get("/api/v1/models/tiny").status_code == 200
    assert api.http.head("/live").status_code == 200
    assert api.http.head("/metrics").status_code == 200
    assert api.http.post("/metrics").status_code == 405
    assert api.http.get("/metrics/").status_code == 404
    assert api.http.get("/docs/static/docs.css").status_code == 200
    assert api.http.get("/docs/static/nobody.css").status_code == 404
    assert api.http.post(STATUS, json={"ids": ["nobody"]}).status_code == 200
    counted = {
        (method, route, code): count
        for (code, method, route), count in samples(api, "headrace_api_requests_total").items()
    }
    expected = {
        ("GET", "/api/v1/jobs/{job_id}", "404"): 3,
        ("GET", "none", "404"): 4,
        ("HEAD", "/metrics", "200"): 1,
        ("POST", "/metrics", "405"): 1,
        ("other", "/api/v1/jobs", "405"): 3,
        ("GET", "/api/v1/models/{model}", "200"): 1,
        ("HEAD", "/live", "200"): 1,
        ("GET", "/docs/static", "200"): 1,
        ("GET", "/docs/static", "404"): 1,
        ("POST", STATUS, "200"): 1,
    }
    assert {labels: counted.get(labels) for labels in expected} == expected
    assert not any("nobody" in route or method == "PURGE" for method, route, _ in counted)
    with redis_db.client() as client:
        client.delete(keys.SHARED_STATS)


def test_traffic_with_redis_is_counted(api: ApiServer, redis_db: RedisServer) -> None:
    api.http.get("/api/v1/jobs/nobody")
    before = samples(api, "headrace_redis_round_trips_total")[("api",)]
    for _ in range(5):
        api.http.get("/api/v1/jobs/nobody")
    after = samples(api, "headrace_redis_round_trips_total")[("api",)]
    # One for each read, and those of the scrapes themselves.
    assert after - before >= 5
    errors = samples(api, "headrace_redis_errors_total")
    assert errors.keys() == {("api",), ("worker",)}
    with redis_db.client() as client:
        client.set(keys.WORKERS, "of another type", ex=60)
        assert api.http.get("/api/v1/models").status_code == 503
        client.delete(keys.WORKERS)
    more = samples(api, "headrace_redis_errors_total")
    assert more[("api",)] - errors[("api",)] == 1
    assert TRAFFIC.errors == 0, "told once"


def test_foreign_keys_in_redis_do_not_break_a_scrape(api: ApiServer, redis_db: RedisServer) -> None:
    stats = ModelStats()
    stats.left("full")
    with redis_db.client() as client:
        for key in (keys.stats("tiny"), keys.SHARED_STATS, "headrace.tiny", keys.PAUSED):
            client.set(key, "of another type", ex=60)
        publish_stats(client, echo=stats)
        assert samples(api, "headrace_batches_total")["echo", "full"] == 1
        assert samples(api, "headrace_batches_total")["tiny", "full"] == 0
        assert samples(api, "headrace_queue_depth")["tiny", "0", "2.1"] == 0
        client.flushall()


def test_a_server_that_has_forgotten_the_scripts(api: ApiServer, redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        client.script_flush()
        assert samples(api, "headrace_broker_up") == {(): 1}
        client.sadd(keys.PAUSED, "headrace.echo")
        assert samples(api, "headrace_queue_paused") == {("echo",): 1, ("tiny",): 0}
        client.delete(keys.PAUSED)


def test_a_connection_that_the_server_has_closed(api: ApiServer, redis_db: RedisServer) -> None:
    assert samples(api, "headrace_broker_up") == {(): 1}
    with redis_db.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        assert samples(api, "headrace_broker_up") == {(): 1}
        wait_until(lambda: samples(api, "headrace_broker_up") == {(): 1}, "it goes on")
