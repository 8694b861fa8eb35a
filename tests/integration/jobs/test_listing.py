"""Lists of jobs: newest first, page by page, whatever else happens."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.queue import listing
from headrace.redis import keys
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.http.bulk import BULK, ndjson
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

JOBS = "/api/v1/jobs"


def submit(api: ApiServer, count: int, *models: str, **members: Any) -> list[str]:
    """Submit so many jobs to each model in turn; their ids."""
    names = models or ("echo",)
    lines = [{"model": name, "input": n, **members} for n in range(count) for name in names]
    answers = api.http.post(BULK, content=ndjson(lines)).text.splitlines()
    return [json.loads(answer)["id"] for answer in answers]


def end(server: RedisServer, *models: str, count: int = 5000) -> None:
    with server.client() as client:
        for model in models or ("echo", "tiny"):
            claimed = claim(client, model, count)
            settle(client, model, claimed, [Answer(result=b'"secret"')] * len(claimed))


def page(api: ApiServer, **query: Any) -> dict[str, Any]:
    response = api.http.get(JOBS, params=query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    found: dict[str, Any] = response.json()
    assert found.keys() == {"jobs", "cursor"}
    return found


def pages(api: ApiServer, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages up to the end."""
    found = []
    while True:
        part = page(api, **query)
        found.append(part["jobs"])
        if part["cursor"] is None:
            return found
        query["cursor"] = part["cursor"]


def ids(parts: list[list[dict[str, Any]]]) -> list[str]:
    return [job["id"] for part in parts for job in part]


def order(parts: list[list[dict[str, Any]]]) -> list[tuple[str, str]]:
    return [(job["created_at"], job["id"]) for part in parts for job in part]


def test_the_newest_come_first_as_their_objects_are(api: ApiServer, redis_db: RedisServer) -> None:
    first, second = submit(api, 1, options={"metadata": {"a": 1}}), submit(api, 1)
    end(redis_db, "echo", count=1)
    found = page(api)
    assert [job["id"] for job in found["jobs"]] == second + first
    for job in found["jobs"]:
        whole = api.http.get(job["urls"]["self"]).json()
        whole.pop("result", None)
        assert job == whole
    assert "secret" not in json.dumps(found)
    assert found["cursor"] is None
    end(redis_db)


def test_pages_of_several_models_are_one_list(api: ApiServer, redis_db: RedisServer) -> None:
    known = {*submit(api, 40, "echo", "tiny"), *submit(api, 60, "echo"), *submit(api, 30, "tiny")}
    for limit in (1000, 50, 7):
        parts = pages(api, limit=limit)
        assert all(len(part) <= limit for part in parts)
        assert set(ids(parts)) == known
        assert len(ids(parts)) == len(known)
        assert order(parts) == sorted(order(parts), reverse=True)
    assert len(page(api)["jobs"]) == 50
    only = pages(api, model="tiny", limit=13)
    assert [len(part) for part in only][:5] == [13] * 5
    assert len(ids(only)) == 70
    end(redis_db)


def test_jobs_that_come_meanwhile_shift_no_page(api: ApiServer, redis_db: RedisServer) -> None:
    known = submit(api, 30, "echo", "tiny")
    first = page(api, limit=20)
    late = submit(api, 10, "echo", "tiny")
    rest = pages(api, limit=20, cursor=first["cursor"])
    found = [job["id"] for job in first["jobs"]] + ids(rest)
    assert sorted(found) == sorted(known)
    assert set(ids(pages(api))) == {*known, *late}
    end(redis_db)


def test_status_and_time_select(api: ApiServer, redis_db: RedisServer) -> None:
    old = submit(api, 5)
    end(redis_db)
    since = api.http.get(f"{JOBS}/{old[-1]}").json()["created_at"]
    new = submit(api, 3)
    later = submit(api, 1, options={"countdown": 600})
    api.http.delete(f"{JOBS}/{new[0]}")
    assert set(ids(pages(api, status="succeeded"))) == set(old)
    assert set(ids(pages(api, status="queued,scheduled"))) == {*new[1:], *later}
    assert ids(pages(api, status="cancelled", model="echo")) == new[:1]
    assert ids(pages(api, status="running")) == []
    assert set(ids(pages(api, since=since))) == {*old, *new, *later}
    created = api.http.get(f"{JOBS}/{new[0]}").json()["created_at"]
    seconds = datetime.fromisoformat(created).timestamp()
    utc = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    for text in (created, f"{seconds:.6f}", f"{utc}Z", utc):
        assert set(ids(pages(api, since=text))) == {*new, *later}, text
    assert api.http.get(f"{JOBS}?since={created}").json()["jobs"], "a + that is not escaped"
    assert ids(pages(api, since="9999-01-01")) == []
    assert ids(pages(api, since="1852-05-09T13:37:44+02:28")) == ids(pages(api))
    api.http.delete(f"{JOBS}/{later[0]}")
    end(redis_db)


def test_a_page_is_bounded_in_what_it_looks_at(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "CALL_JOBS", 10)
    monkeypatch.setattr(listing, "PAGE_JOBS", 40)
    names = submit(api, 90, "echo", "tiny")
    wanted = {names[0], names[1], names[-1]}
    for job_id in wanted:
        api.http.delete(f"{JOBS}/{job_id}")
    parts = pages(api, status="cancelled", limit=2)
    assert set(ids(parts)) == wanted
    assert len(parts) >= 4
    assert [] in parts, "a page may be empty and have a cursor"
    assert order(parts) == sorted(order(parts), reverse=True)
    end(redis_db)


def test_only_so_many_are_kept_and_nothing_where_lists_are_off(redis_db: RedisServer) -> None:
    models = catalog(echo={}, tiny={})
    with api_server(redis_db.url, models, job_index_max=10) as api:
        names = submit(api, 15)
        assert set(ids(pages(api))) < set(names)
        assert len(ids(pages(api))) == 10
    with redis_db.client() as client, api_server(redis_db.url, models, job_index_max=0) as api:
        client.delete(keys.job_index("echo"))
        (name,) = submit(api, 1)
        response = api.http.get(JOBS)
        assert response.status_code == 404
        assert response.json()["type"] == "/problems/lists-off"
        assert "job_index_max" in response.json()["detail"]
        assert not client.exists(keys.job_index("echo"))
        assert api.http.get(f"{JOBS}/{name}").status_code == 202
    end(redis_db)


def test_jobs_that_have_run_out_are_passed_over(api: ApiServer, redis_db: RedisServer) -> None:
    names = submit(api, 10)
    end(redis_db)
    with redis_db.client() as client:
        client.delete(*(keys.job(name) for name in names[::2]))
        assert set(ids(pages(api, limit=3))) == set(names[1::2])
        assert client.zcard(keys.job_index("echo")) == 5


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("status=done", "status"),
        ("status=", "status"),
        ("status=queud", "did you mean queued?"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=+1", "limit"),
        ("since=soon", "since"),
        ("since=-1", "since"),
        ("since=nan", "since"),
        ("since=1e300", "since"),
        ("cursor=", "cursor"),
        ("cursor=x", "cursor"),
        ("cursor=1-", "cursor"),
        ("cursor=-a", "cursor"),
        ("modle=echo", "did you mean model?"),
    ],
)
def test_a_parameter_that_does_not_fit(api: ApiServer, query: str, says: str) -> None:
    response = api.http.get(f"{JOBS}?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["type"] == "/problems/invalid-request"
    assert says in response.json()["detail"]


def test_a_model_that_is_not_registered(api: ApiServer) -> None:
    response = api.http.get(JOBS, params={"model": "ecko"})
    assert (response.status_code, response.json()["type"]) == (404, "/problems/model-not-found")
