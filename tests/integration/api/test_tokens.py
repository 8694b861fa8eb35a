"""Tokens through the API: what is shown, the limit, and the deadline of a bulk request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.redis import keys
from tests.harness.clients.commands import CommandsWithin
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

PROMPT = {"prompt": "x" * 370, "max_tokens": 100}
TOKENS = 200


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    models = catalog(t={"schedule": "tokens", "max_queued_tokens": 3 * TOKENS}, echo={})
    with api_server(redis_db.url, models) as server:
        yield server
        with redis_db.client() as client:
            client.flushdb()


def shown(api: ApiServer) -> list[tuple[int | None, int | None]]:
    queues = api.http.get("/api/v1/queues").json()["queues"]
    return [(queue["tokens"], queue["max_queued_tokens"]) for queue in queues]


def test_tokens_are_shown_and_limited(api: ApiServer) -> None:
    assert shown(api) == [(0, 600), (None, None)]
    for n in range(1, 4):
        reply = api.http.post("/api/v1/models/t/jobs", json=PROMPT)
        assert reply.status_code == 202
        assert shown(api)[0] == (n * TOKENS, 600)
    refused = api.http.post("/api/v1/models/t/jobs", json=PROMPT)
    assert refused.status_code == 429
    assert refused.json()["type"] == "/problems/queue-full"
    assert "600 tokens" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    metrics = api.http.get("/metrics").text
    assert 'headrace_queue_tokens{model="t"} 600' in metrics
    assert 'headrace_queue_tokens{model="echo"} 0' in metrics
    job_id = reply.json()["id"]
    assert api.http.delete(f"/api/v1/jobs/{job_id}").status_code == 200
    assert api.http.post("/api/v1/models/t/jobs", json=PROMPT).status_code == 202


def test_the_command_shows_tokens_where_a_model_counts_them(
    api: ApiServer, redis_db: RedisServer, tmp_path: Path
) -> None:
    api.http.post("/api/v1/models/t/jobs", json=PROMPT)
    head, counted, plain = CommandsWithin(api.url, tmp_path).lines("queues")
    assert head.split()[-2:] == ["FREE", "TOKENS"]
    assert (counted.split()[0], counted.split()[-1]) == ("headrace.t", "200")
    assert plain.split()[-1] == "10,000"
    with api_server(redis_db.url, catalog(echo={})) as other:
        assert "TOKENS" not in CommandsWithin(other.url, tmp_path).lines("queues")[0]


def test_a_bulk_request_gives_its_jobs_a_deadline(api: ApiServer, redis_db: RedisServer) -> None:
    line = b'{"id": "%s", "model": "t", "input": 1, "options": {"priority": 9}}\n'
    url, head = "/api/v1/jobs/bulk", "Headrace-Deadline"
    for job_id, deadline in ((b"a", "2000000000"), (b"b", "1900000000"), (b"c", "")):
        headers = {"Content-Type": "application/x-ndjson", head: deadline}
        assert api.http.post(url, content=line % job_id, headers=headers).status_code == 200
    with redis_db.client() as client:
        entries = client.zrange(keys.order(keys.step_key(keys.queue_name("t"), 9)), 0, -1)
    usual, *deadlines = (entry.decode().split()[0] for entry in entries)
    assert deadlines == ["1900000000", "2000000000"]
    assert int(usual) % 86_400 == 0
    assert 23 * 3600 < int(usual) - time.time() <= 48 * 3600
    for wrong in ("soon", "-1", "1.5", "99999999999"):
        headers = {"Content-Type": "application/x-ndjson", head: wrong}
        reply = api.http.post(url, content=line % b"d", headers=headers)
        assert (reply.status_code, head in reply.json()["detail"]) == (400, True)
