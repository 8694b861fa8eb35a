"""Outcomes of many jobs in short, brief answers of a bulk submit, and forgetting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.client import Client
from headrace.jobs.ids import new_id
from tests.harness.fakes.worker import Answer, claim, failure, settle
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer

BULK = "/api/v1/jobs/bulk"
OUTCOMES = "/api/v1/jobs/outcomes"
FORGET = "/api/v1/jobs/forget"
PNG = b'{"__type__":"base64","__value__":"AAE="}'
MEMBERS = ("status", "attempts", "timings", "result", "result_size", "error")


def submit(api: ApiServer, *lines: dict[str, Any], quiet: int = 0) -> list[Any]:
    """What a brief bulk submit answers to these lines."""
    body = "".join(f"{json.dumps({'model': 'echo', 'input': 1, **line})}\n" for line in lines)
    answer = api.http.post(f"{BULK}?brief=1&quiet={quiet}", content=body)
    return [json.loads(line) for line in answer.text.splitlines()]


def outcomes(api: ApiServer, ids: list[str]) -> list[Any]:
    response = api.http.post(OUTCOMES, json={"ids": ids})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    found: list[Any] = response.json()["outcomes"]
    return found


def end(server: RedisServer, *answers: Answer) -> list[str]:
    """Claim and end as many jobs as there are answers; their ids, in that order."""
    with server.client() as client:
        claimed = claim(client, "echo", len(answers))
        settle(client, "echo", claimed, list(answers))
    return [message.id for message, _ in claimed]


@pytest.mark.parametrize("quiet", [0, 1])
def test_an_outcome_is_what_the_job_object_says_of_it(
    api: ApiServer, redis_db: RedisServer, quiet: int
) -> None:
    ids = [f"run-x.{n}" for n in range(6)]
    assert submit(api, *({"id": job_id} for job_id in ids), quiet=quiet) == [{"accepted": 6}]
    error = {"type": "input-error", "message": "bäd", "retryable": False}
    end(
        redis_db,
        Answer(result=b'{"d":[1,2]}'),
        Answer(result=PNG, extra="rt", value="image/png"),
        failure("input-error", "bäd"),
        Answer(result=b"null"),
    )
    api.http.request("DELETE", f"/api/v1/jobs/{ids[4]}")
    wanted = [ids[5], "never-was", *ids[:5], "no id at all", ids[0], new_id()]
    found = outcomes(api, wanted)
    for job_id, outcome in zip(wanted, found, strict=True):
        if job_id not in ids:
            assert outcome is None
            continue
        job = api.http.get(f"/api/v1/jobs/{job_id}").json()
        if job["status"] == "queued":
            assert outcome == {"status": "queued"}
        else:
            assert outcome == {name: job[name] for name in MEMBERS if name in job}
    raw = api.http.get(f"/api/v1/jobs/{ids[0]}/result")
    assert (raw.status_code, raw.content) == (200, b'{"d":[1,2]}')
    listed = api.http.get("/api/v1/jobs?model=echo").json()["jobs"]
    assert len(listed) == (0 if quiet else 6)
    assert found[2]["result"] == {"d": [1, 2]}
    assert found[3]["result"] == {"content_type": "image/png", "base64": "AAE="}
    assert found[4]["error"] == error
    assert found[6] | {"timings": None} == {
        "status": "cancelled", "attempts": 0, "timings": None,
        "error": {"type": "cancelled", "message": "the job was cancelled", "retryable": False},
    }  # fmt: skip
    end(redis_db, Answer())


def test_brief_answers_count_what_is_there_and_tell_what_is_not(
    api: ApiServer, redis_db: RedisServer
) -> None:
    found = submit(
        api, {"id": "a"}, {"id": "b"}, {"model": "none"}, {"id": "a"}, {"id": "a", "input": 2},
        {"id": "c"}, {"id": "d"},
    )  # fmt: skip
    assert [next(iter(line)) for line in found] == [
        "accepted",
        "error",
        "accepted",
        "error",
        "accepted",
    ]
    assert [line["accepted"] for line in found if "accepted" in line] == [2, 1, 2]
    assert [(e["error"]["line"], e["error"]["status"]) for e in found if "error" in e] == [
        (3, 404), (5, 409),
    ]  # fmt: skip
    refused = api.http.post(f"{BULK}?brief=yes", content="")
    assert refused.status_code == 400
    assert "brief: 'yes' is not valid" in refused.json()["detail"]
    end(redis_db, *[Answer()] * 4)


def test_nan_in_a_record_is_null_whichever_way_it_is_read(
    api: ApiServer, redis_db: RedisServer
) -> None:
    """Celery's own backend writes it, where somebody stores a result under the id of a job."""
    submit(api, {"id": "nan"})
    end(redis_db, Answer(result=b'{"a":[NaN,-Infinity],"b":"NaN"}'))
    wanted = {"a": [None, None], "b": "NaN"}
    assert outcomes(api, ["nan"])[0]["result"] == wanted
    line = {"model": "echo", "input": 1, "id": "nan"}
    for answer in (
        api.http.get("/api/v1/jobs/nan"),
        api.http.get("/api/v1/jobs/nan?wait=5"),
        api.http.post(BULK, content=json.dumps(line)),
    ):
        assert answer.json()["result"] == wanted, answer.text
    assert api.http.get("/api/v1/jobs/nan/result").json() == wanted
    with Client(api.url) as client:
        assert client.result("nan") == wanted


def test_only_what_has_ended_is_forgotten_and_its_id_is_free_again(
    api: ApiServer, redis_db: RedisServer
) -> None:
    submit(api, {"id": "x.1"}, {"id": "x.2"}, {"id": "x.3"})
    assert end(redis_db, Answer(result=b"1"), Answer(result=b"2")) == ["x.1", "x.2"]
    answer = api.http.post(FORGET, json={"ids": ["x.1", "x.3", "x.9", "no id", "x.1"]})
    assert (answer.status_code, answer.json()) == (200, {"forgotten": 1})
    gone, kept, waiting = outcomes(api, ["x.1", "x.2", "x.3"])
    assert gone is None
    assert (kept["result"], waiting) == (2, {"status": "queued"})
    with redis_db.client() as client:
        assert client.keys("*x.1") == []
    assert submit(api, {"id": "x.1", "input": "another"}) == [{"accepted": 1}]
    end(redis_db, *[Answer(result=b"3")] * 2)


def test_a_dead_letter_is_not_forgotten(api: ApiServer, redis_db: RedisServer) -> None:
    submit(api, {"id": "dead"})
    end(redis_db, failure("input-error", "bad"))
    with redis_db.client() as client:
        client.hset("hr:job:dead", "dl", "1")
    assert api.http.post(FORGET, json={"ids": ["dead"]}).json() == {"forgotten": 0}


def test_of_a_quiet_job_the_record_alone_is_read_and_a_key_of_another_kind_is_no_job(
    api: ApiServer, redis_db: RedisServer
) -> None:
    submit(api, {"id": "q.1"}, {"id": "q.2"}, quiet=1)
    end(redis_db, Answer(result=b"", extra="r", value='{"a":[1]}'), failure("input-error", "bad"))
    with redis_db.client() as client:
        client.set("hr:job:q.3", "no record")
        try:
            first, second, third, fourth = outcomes(api, ["q.1", "q.2", "q.3", "q.4"])
        finally:
            client.delete("hr:job:q.3")
    assert (first["status"], first["result"], first["attempts"]) == ("succeeded", {"a": [1]}, 1)
    assert set(first["timings"]) >= {"queued", "total"}
    assert (second["status"], second["error"]["type"]) == ("failed", "input-error")
    assert (third, fourth) == (None, None)
