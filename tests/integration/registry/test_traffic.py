"""Traffic: which version gets the jobs that name none, through the real submit routes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.redis import keys
from tests.harness.clients.commands import CommandsWithin
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

pytestmark = pytest.mark.leaves_keys

FILE = """
models:
  words:
    handler: echo
    parameters: {limit: {type: integer, default: 5}}
"""
TRAFFIC = "/api/v1/models/words/traffic"
JOBS = "/api/v1/models/words/jobs"
USERS = [f"user-{n}" for n in range(300)]


@pytest.fixture
def api(redis_db: RedisServer, file: Path) -> Iterator[ApiServer]:
    """An API that serves the version 1.0 of the file and 2.0."""
    with registry_server(redis_db.url, file) as server:
        add_version(server, "2.0")
        yield server


def add_version(api: ApiServer, version: str) -> None:
    options = {"handler": "echo", "parameters": {"limit": {"type": "integer", "default": 5}}}
    path = f"/api/v1/models/words/versions/{version}"
    assert api.http.put(path, json={"options": options}).is_success


def route(api: ApiServer, status: int = 200, **traffic: Any) -> Any:
    answer = api.http.put(TRAFFIC, json=traffic)
    assert answer.status_code == status, answer.text
    return answer.json()


def bulk(api: ApiServer, lines: list[dict[str, Any]], query: str = "", **headers: str) -> list[Any]:
    body = "\n".join(json.dumps({"model": "words", "input": 1, **line}) for line in lines)
    answer = api.http.post(
        f"/api/v1/jobs/bulk{query}", content=body,
        headers={"content-type": "application/x-ndjson", **headers},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def waiting(redis_db: RedisServer) -> Counter[str]:
    """Return how many jobs wait in the queue of each version; "" is the model's own."""
    found: Counter[str] = Counter()
    with redis_db.client() as client:
        for version in ("", "1.0", "2.0"):
            queue = keys.version_queue("words", version) if version else keys.queue_name("words")
            found[version] = sum(client.llen(key) for key in keys.step_keys(queue))
    return +found


def versions_of_users(api: ApiServer) -> dict[str, str]:
    answers = bulk(api, [{"options": {"metadata": {"user": user}}} for user in USERS])
    return {one["metadata"]["user"]: one["requested_version"] for one in answers}


def test_a_canary_at_ten_percent_gets_ten_percent_of_ten_thousand_jobs(
    api: ApiServer, redis_db: RedisServer
) -> None:
    route(api, weights={"1.0": 90, "2.0": 10})
    bulk(api, [{}] * 10_000, "?quiet=1&brief=1")

    counts = waiting(redis_db)
    assert sum(counts.values()) == counts["1.0"] + counts["2.0"] == 10_000
    assert 800 <= counts["2.0"] <= 1_200

    def counted(version: str) -> bool:
        name = f'headrace_version_jobs_admitted_total{{model="words",version="{version}"}}'
        return f"{name} {counts[version]}.0\n" in api.http.get("/metrics").text

    for version in ("1.0", "2.0"):
        wait_until(partial(counted, version), "its jobs are counted")


def test_a_user_stays_with_its_version_and_a_larger_canary_returns_none(api: ApiServer) -> None:
    sticky = {"metadata": "user"}
    route(api, weights={"1.0": 90, "2.0": 10}, sticky=sticky)
    first = versions_of_users(api)
    assert versions_of_users(api) == first
    assert set(first.values()) == {"1.0", "2.0"}

    route(api, weights={"1.0": 80, "2.0": 20}, sticky=sticky)
    second = versions_of_users(api)
    assert [user for user in USERS if first[user] == "2.0" and second[user] == "1.0"] == []
    assert Counter(second.values())["2.0"] > Counter(first.values())["2.0"]


def test_every_submit_route_recognises_the_user(api: ApiServer) -> None:
    route(api, weights={"1.0": 50, "2.0": 50}, sticky={"header": "X-User"})
    http = api.http
    for n, user in enumerate(USERS[:20]):
        header = {"x-user": user}
        body = {"model": "words", "input": 1}
        answers = [
            http.post(f"{JOBS}?limit=3", json=1, headers=header),
            http.put(JOBS, json=1, headers=header),
            http.post("/api/v1/jobs", json=body, headers=header),
            http.put(f"/api/v1/jobs/own-{n}", json=body, headers=header),
        ]
        found = {answer.json()["requested_version"] for answer in answers}
        found |= {one["requested_version"] for one in bulk(api, [{}] * 3, "", **header)}
        assert len(found) == 1, (user, found)


def test_the_metadata_in_a_query_recognises_the_user_too(api: ApiServer) -> None:
    route(api, weights={"1.0": 50, "2.0": 50}, sticky={"metadata": "user"})
    expected = versions_of_users(api)
    for user in USERS[:10]:
        query = {"metadata": json.dumps({"user": user})}
        answer = api.http.post(JOBS, json=1, params=query)
        assert answer.json()["requested_version"] == expected[user]
    wrong = api.http.post(JOBS, json=1, params={"metadata": "{"})
    assert (wrong.status_code, "metadata" in wrong.json()["detail"]) == (400, True)


def test_a_repeat_stays_with_the_version_of_the_first(api: ApiServer) -> None:
    key = {"Idempotency-Key": "once"}
    route(api, weights={"2.0": 1})
    job = api.http.post(JOBS, json=1, headers=key).json()
    (line,) = bulk(api, [{"id": "mine"}])
    route(api, weights={"1.0": 1})

    again = api.http.post(JOBS, json=1, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.json()["id"], again.json()["requested_version"]) == (job["id"], "2.0")
    assert bulk(api, [{"id": "mine"}])[0]["requested_version"] == "2.0" == line["requested_version"]


def test_a_job_that_names_a_version_is_not_routed(api: ApiServer, redis_db: RedisServer) -> None:
    route(api, weights={"2.0": 1})
    api.http.post("/api/v1/models/words/versions/1.0/jobs", json=1)
    bulk(api, [{"version": "1.0"}])
    assert waiting(redis_db) == {"1.0": 2}


def test_traffic_is_shown_changed_and_taken_back(api: ApiServer, redis_db: RedisServer) -> None:
    none = api.http.get(TRAFFIC).json()
    assert (none["weights"], none["sticky"], none["declared"]) == ({}, None, True)
    done = route(api, weights={"1.0": 90, "2.0": 10}, sticky={"header": "X-User"})
    assert done["generation"] > none["generation"]
    assert done["weights"] == {"1.0": 90, "2.0": 10}
    assert api.http.get("/api/v1/models/words").json()["traffic"]["weights"] == done["weights"]
    newest, *_ = api.http.get("/api/v1/registry/changes").json()["changes"]
    assert newest["what"] == "routed jobs to 1.0=90, 2.0=10, sticky by header X-User"
    late = api.http.put(TRAFFIC, json={}, headers={"If-Match": f'"{none["generation"]}"'})
    assert late.status_code == 409

    refused = api.http.delete("/api/v1/models/words/versions/2.0")
    assert (refused.status_code, "headrace models route" in refused.json()["remedy"]) == (409, True)
    assert api.http.delete(TRAFFIC).json()["weights"] == {}
    api.http.post(JOBS, json=1)
    assert waiting(redis_db) == {"": 1}
    assert api.http.delete("/api/v1/models/words/versions/2.0").is_success


def test_wrong_traffic_is_refused_and_nothing_changes(api: ApiServer) -> None:
    before = api.http.get(TRAFFIC).json()
    assert "3.0" in route(api, 404, weights={"1.0": 1, "3.0": 1})["detail"]
    assert "above 0" in route(api, 400, weights={"1.0": 0})["detail"]
    assert "either header or metadata" in route(api, 400, weights={"1.0": 1}, sticky={})["detail"]
    assert "did you mean weights" in route(api, 400, wieghts={"1.0": 1})["detail"]
    assert api.http.put("/api/v1/models/wrods/traffic", json={}).status_code == 404
    assert api.http.get(TRAFFIC).json() == before


def test_a_promotion_ends_the_traffic_in_one_call(api: ApiServer, redis_db: RedisServer) -> None:
    route(api, weights={"1.0": 90, "2.0": 10})
    api.http.patch("/api/v1/models/words", json={"default_version": "2.0"})
    assert api.http.get(TRAFFIC).json()["weights"] == {}
    job = api.http.post(JOBS, json=1).json()
    assert (job["version"], waiting(redis_db)) == ("2.0", {"": 1})


def test_every_api_process_routes_as_the_first(
    api: ApiServer, redis_db: RedisServer, file: Path
) -> None:
    with registry_server(redis_db.url, file) as other:
        route(api, weights={"1.0": 50, "2.0": 50}, sticky={"metadata": "user"})
        wait_until(
            lambda: other.services.catalog.get("words").traffic is not None, "the other follows"
        )
        assert versions_of_users(other) == versions_of_users(api)


def test_the_models_file_declares_traffic(redis_db: RedisServer, file: Path) -> None:
    with registry_server(redis_db.url, file) as api:
        add_version(api, "2.0")
    traffic = '    traffic: {weights: {"1.0": 1, "2.0": 3}, sticky: {metadata: user}}\n'
    file.write_text(FILE + traffic)
    with registry_server(redis_db.url, file) as api:
        found = api.http.get(TRAFFIC).json()
        assert (found["declared"], found["weights"]) == (True, {"1.0": 1, "2.0": 3})
        assert set(versions_of_users(api).values()) == {"1.0", "2.0"}


def test_a_declared_version_that_is_not_registered_leaves_its_share(
    redis_db: RedisServer, file: Path
) -> None:
    file.write_text(FILE + '    traffic: {weights: {"1.0": 1, "2.0": 3}}\n')
    with registry_server(redis_db.url, file) as api:
        bulk(api, [{}] * 20)
        assert waiting(redis_db) == {"1.0": 20}


def test_the_sdk_routes(api: ApiServer) -> None:
    with Client(api.url) as client:
        weights = {"1.0": 90.0, "2.0": 10.0}
        done = client.route_model("words", weights, sticky={"metadata": "user"})
        assert client.model_traffic("words") == done
        assert (done.weights, done.sticky) == (weights, {"metadata": "user"})
        assert client.clear_traffic("words").weights == {}


def test_the_command_changes_what_is_given_and_keeps_the_rest(
    api: ApiServer, tmp_path: Path
) -> None:
    commands = CommandsWithin(api.url, tmp_path)

    def command(*arguments: str, rc: int = 0) -> str:
        done = commands.run("models", *arguments)
        assert done.returncode == rc, done.stderr
        return (done.stdout + done.stderr).decode()

    route = ("route", "words")
    command(*route, "1.0=90", "2.0=10", "--sticky", "header:X-User")
    shown = command(*route, "1.0=80", "2.0=20")
    assert "1.0, 80 (80%)" in shown
    assert "header X-User" in shown
    assert json.loads(command(*route, "--json"))["weights"] == {"1.0": 80, "2.0": 20}
    assert "VERSION=WEIGHT" in command(*route, "2.0", rc=2)
    assert "header:NAME" in command(*route, "--sticky", "X-User", rc=2)
    assert "2.0, 20% of the jobs" in command(*route, "--shadow", "2.0", "--shadow-percent", "20")
    assert "0 equal, 0 different, 0 failed" in command("words")
    assert "shadow" not in command(*route, "--shadow", "none")
    assert "1.0, all" in command(*route, "--clear")
