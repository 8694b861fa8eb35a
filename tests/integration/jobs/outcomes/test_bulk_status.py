"""Status and cancel of many jobs by their ids."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.jobs.ids import new_id
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer

STATUS = "/api/v1/jobs/status"
CANCEL = "/api/v1/jobs/cancel"
MANY = 300


def submit(api: ApiServer, *values: Any) -> list[str]:
    body = "".join(f'{{"model":"echo","input":{value}}}\n' for value in values)
    answers = api.http.post("/api/v1/jobs/bulk", content=body).text.splitlines()
    assert len(answers) == len(values)
    return [answer.partition('"id":"')[2].partition('"')[0] for answer in answers]


def end(server: RedisServer, count: int = 1000) -> list[str]:
    """Claim and end so many; their ids."""
    with server.client() as client:
        claimed = claim(client, "echo", count)
        settle(client, "echo", claimed, [Answer(result=b'"done"')] * len(claimed))
    return [message.id for message, _ in claimed]


def asked(api: ApiServer, path: str, ids: list[str]) -> list[Any]:
    response = api.http.post(path, json={"ids": ids})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    jobs: list[Any] = response.json()["jobs"]
    return jobs


def test_states_come_in_the_order_of_the_ids(api: ApiServer, redis_db: RedisServer) -> None:
    ids = submit(api, *range(MANY))
    ended = end(redis_db, 2)
    wanted = [ids[-1], "never-was", ids[0], "no id at all", ids[-1], *ids[1:-1], new_id()]
    jobs = asked(api, STATUS, wanted)
    assert [job and job["id"] for job in jobs] == [i if i in ids else None for i in wanted]
    for job in jobs[:6]:
        assert job is None or job == api.http.get(f"/api/v1/jobs/{job['id']}").json()
    assert {job["id"] for job in jobs if job and job["status"] == "succeeded"} == set(ended)
    assert jobs[2]["result"] == "done"
    end(redis_db)


def test_results_can_be_left_out(api: ApiServer, redis_db: RedisServer) -> None:
    (job_id,) = submit(api, 1)
    end(redis_db)
    for query, found in (("?results=0", False), ("?results=1", True), ("", True)):
        response = api.http.post(STATUS + query, json={"ids": [job_id]})
        (job,) = response.json()["jobs"]
        assert job["status"] == "succeeded"
        assert ("result" in job) == found
    assert api.http.post(f"{STATUS}?results=x", json={"ids": []}).status_code == 400


def test_each_is_told_what_its_cancel_did(api: ApiServer, redis_db: RedisServer) -> None:
    ended, running, *waiting = submit(api, *range(MANY))
    end(redis_db, 1)
    with redis_db.client() as client:
        claimed = claim(client, "echo", 1)
        ids = [running, *waiting, "never-was", ended, waiting[0]]
        fates = asked(api, CANCEL, ids)
        assert fates[0] == {"id": running, "outcome": "asked", "status": "running"}
        removed = [{"id": i, "outcome": "removed", "status": "cancelled"} for i in waiting]
        assert fates[1:-3] == removed
        assert fates[-3] is None
        assert fates[-2] == {"id": ended, "outcome": "ended", "status": "succeeded"}
        assert fates[-1] == removed[0]
        # A second time, the truth is that they had ended.
        assert {fate["outcome"] for fate in asked(api, CANCEL, waiting)} == {"ended"}
        settle(client, "echo", claimed, [Answer()])
    assert end(redis_db) == []


@pytest.mark.parametrize("path", [STATUS, CANCEL])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"ids":["a"', "JSON"),
        (b"", "empty"),
        (b"[]", "object"),
        (b"{}", "ids"),
        (b'{"ids":"a"}', "ids"),
        (b'{"ids":[1]}', "ids[0]"),
        (b'{"ids":[],"results":0}', "results"),
        (b'{"ids":[%s]}' % b",".join([b'"a"'] * 1001), "length <= 1000"),
    ],
)
def test_a_request_that_does_not_fit(
    api: ApiServer, redis_db: RedisServer, path: str, body: bytes, says: str
) -> None:
    response = api.http.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["type"] == "/problems/invalid-request"
    assert says in response.json()["detail"]
    assert api.http.post(path, content=body, headers={"Content-Type": "a/b"}).status_code == 415
    assert api.http.post(f"{path}?wiat=1", json={"ids": []}).status_code == 400
    assert asked(api, path, []) == []
    assert asked(api, path, ["x"] * 1000) == [None] * 1000
