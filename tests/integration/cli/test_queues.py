"""Pause, resume and purge over HTTP, with a real worker behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace import errors
from headrace.redis import keys
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.bulk import BULK, ndjson
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

QUEUE = "/api/v1/queues/headrace.echo"
JOBS = "/api/v1/models/echo/jobs"


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("control")
    with shared_deployment.site(
        folder, {"echo": {"handler": "echo"}, "other": {"handler": "echo"}}
    ) as found:
        yield found


@pytest.fixture
def api(site: Site) -> Iterator[ApiServer]:
    yield site.api
    site.api.http.post(f"{QUEUE}/resume").raise_for_status()
    site.api.http.post(f"{QUEUE}/purge").raise_for_status()


@pytest.fixture
def server(site: Site) -> RedisServer:
    return site.redis


def claims(server: RedisServer) -> int:
    """How many scripts Redis has run."""
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_paused_queue_takes_jobs_and_runs_none_until_it_is_resumed(
    api: ApiServer, server: RedisServer
) -> None:
    assert api.http.post(f"{QUEUE}/pause").json() == {"name": "headrace.echo", "paused": True}
    ids = [api.http.post(JOBS, json=number).json()["id"] for number in range(3)]
    # The other queue of the same worker is served meanwhile, twice, so that it has looked at both.
    for _ in range(2):
        reply = api.http.post("/api/v1/models/other/jobs?wait=20", json=1)
        assert reply.json()["status"] == "succeeded"
    queues = {queue["name"]: queue for queue in api.http.get("/api/v1/queues").json()["queues"]}
    assert (queues["headrace.echo"]["paused"], queues["headrace.other"]["paused"]) == (True, False)
    assert queues["headrace.echo"]["depth"]["0"] == 3
    assert api.http.get(f"/api/v1/jobs/{ids[0]}").json()["status"] == "queued"
    assert api.http.post(f"{QUEUE}/resume").json() == {"name": "headrace.echo", "paused": False}
    for job_id in ids:
        assert api.http.get(f"/api/v1/jobs/{job_id}?wait=20").json()["status"] == "succeeded"


def test_a_paused_queue_is_not_asked_again_and_again(api: ApiServer, server: RedisServer) -> None:
    api.http.post(f"{QUEUE}/pause").raise_for_status()
    api.http.post(JOBS, json=1).raise_for_status()
    before = claims(server)
    with server.client() as client:
        # Two sweeps of either model: what the worker says of itself is refreshed with each.
        seen = client.zrange(keys.WORKERS, 0, -1, withscores=True)

        def swept_s() -> float:
            now = client.zrange(keys.WORKERS, 0, -1, withscores=True)
            return float(now[0][1] - seen[0][1])

        took_s = wait_until(
            lambda: (took_s := swept_s()) > 2 and took_s, "the worker has swept twice"
        )
    assert claims(server) - before < 15 * (took_s + 1)


def test_purge_cancels_what_waits_and_tells_who_waits_for_it(api: ApiServer) -> None:
    api.http.post(f"{QUEUE}/pause").raise_for_status()
    lines = ndjson({"model": "echo", "input": number} for number in range(1200))
    ids = [json.loads(line)["id"] for line in api.http.post(BULK, content=lines).text.splitlines()]
    ids.append(api.http.post(f"{JOBS}?countdown=600", json=1).json()["id"])
    assert api.http.post(f"{QUEUE}/purge").json() == {"name": "headrace.echo", "cancelled": 1201}
    for job_id in (ids[0], ids[-1]):
        assert api.http.get(f"/api/v1/jobs/{job_id}?wait=20").json()["status"] == "cancelled"
    assert api.http.post(f"{QUEUE}/purge").json()["cancelled"] == 0


@pytest.mark.parametrize("verb", ["pause", "resume", "purge"])
def test_a_queue_that_is_none_of_ours(api: ApiServer, verb: str) -> None:
    response = api.http.post(f"/api/v1/queues/headrace.ecko/{verb}")
    assert (response.status_code, response.json()["type"]) == (404, "/problems/queue-not-found")
    assert "did you mean headrace.echo?" in response.json()["detail"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_client_pauses_resumes_and_purges(api: ApiServer, shell: str) -> None:
    with client_of(shell, api.url) as client:
        client.pause_queue("echo")
        queue, other = client.queues()
        assert (queue.name, queue.paused, other.paused) == ("headrace.echo", True, False)
        jobs = [client.submit("echo", 1), client.submit("echo", 1, countdown=600)]
        assert client.purge_queue(queue) == 2
        assert [client.wait(job).status for job in jobs] == ["cancelled", "cancelled"]
        assert client.purge_queue("echo") == 0
        later = client.submit("echo", 2)
        client.resume_queue(queue)
        assert not client.queues()[0].paused
        assert client.result(later) == 2
        for call in (client.pause_queue, client.resume_queue, client.purge_queue):
            with pytest.raises(errors.QueueNotFound, match=r"did you mean headrace\.echo"):
                call("ecko")
