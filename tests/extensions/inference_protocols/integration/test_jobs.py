"""A request of v2 is a job: it can be left behind, has a priority, and ends with its client."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest

from extensions.inference_protocols.tensors.envelope import read_outputs
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import patient

ONE: Final = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["1"]}
ASYNC: Final = {"prefer": "respond-async"}


def body(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [ONE], "parameters": parameters}


def jobs_of(api: ApiServer, model: str, status: str) -> list[str]:
    found = api.http.get("/api/v1/jobs", params={"model": model, "status": status}).json()
    return [job["id"] for job in found["jobs"]]


def test_a_client_can_leave_its_job_behind(api: ApiServer) -> None:
    inputs = [
        {"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [n + 1] * 16}
        for n in range(2)
    ]
    answer = api.http.post("/v2/models/simple/infer", json={"inputs": inputs}, headers=ASYNC)
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    path = answer.headers["location"]
    assert path == f"/api/v1/jobs/{answer.headers['headrace-job']}"
    assert api.ended(answer.json()["id"])["status"] == "succeeded"
    result = api.http.get(f"{path}/result")
    first, _ = read_outputs(result.content, result.headers["content-type"])
    assert (first.name, bytes(first.data)) == ("OUTPUT0", b"\3\0\0\0" * 16)


def test_every_answer_has_the_id_of_its_job(api: ApiServer) -> None:
    answer = api.http.post("/v2/models/echo/infer", json=body())
    assert api.job(answer.headers["headrace-job"])["result"] == 1
    answered = api.http.post("/v2/models/echo/infer", json=body(timeout=10**400))
    assert answered.status_code == 200, "it may wait for as long as a job can"
    late = api.http.post("/v2/models/waiting/infer", json=body(timeout=1000))
    assert late.status_code == 503
    assert late.json()["error"].startswith("Request timeout expired")
    assert api.job(late.headers["headrace-job"])["status"] == "expired"


@pytest.mark.parametrize(
    ("headers", "ttl"), [({}, b"60"), (ASYNC, None), ({"idempotency-key": "again"}, None)]
)
def test_the_job_of_an_answered_request_is_kept_for_a_minute(
    api: ApiServer, headers: dict[str, str], ttl: bytes | None
) -> None:
    answer = api.http.post("/v2/models/echo/infer", json=body(), headers=headers)
    with patient(api.redis_url) as redis:
        assert redis.hget(keys.job(answer.headers["headrace-job"]), JobField.TTL) == ttl


@pytest.mark.parametrize(("priority", "step"), [(0, b"0"), (1, b"0"), (5, b"3"), (200, b"9")])
def test_the_priority_of_the_protocol_is_that_of_the_job(
    api: ApiServer, priority: int, step: bytes
) -> None:
    answer = api.http.post("/v2/models/echo/infer", json=body(priority=priority), headers=ASYNC)
    with patient(api.redis_url) as redis:
        assert redis.hget(keys.job(answer.json()["id"]), JobField.STEP) == step


def test_a_client_that_hangs_up_cancels_its_job(api: ApiServer) -> None:
    text = json.dumps(body()).encode()
    connection = api.connect()
    connection.sendall(
        b"POST /v2/models/waiting/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
        % (len(text), text)
    )
    wait_until(lambda: jobs_of(api, "waiting", "queued"), "the job waits")
    (job,) = jobs_of(api, "waiting", "queued")
    connection.close()
    wait_until(lambda: api.job(job)["status"] == "cancelled", "the job is cancelled")


def test_a_job_that_takes_too_long_is_cancelled(api: ApiServer) -> None:
    catalog = api.services.catalog
    with api_server(api.redis_url, catalog, max_wait_s=0.1) as hasty:
        answer = hasty.http.post("/v2/models/waiting/infer", json=body())
    assert answer.status_code == 504
    assert "did not end within max_wait_s" in answer.json()["error"]
    assert api.job(answer.headers["headrace-job"])["status"] == "cancelled"


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "error"),
    [
        ("GET", "simple/versions/7", None, 404,
         "Request for unknown model: 'simple' version 7 is not found"),
        ("POST", "simple/infer", b"{", 400,
         "failed to parse the request JSON buffer: Input data was truncated"),
        ("POST", "echo/infer", msgspec.json.encode(body(sequence_id=7)), 501,
         "[request id: <id_unknown>] sequence_id is not supported: each request may run in another "
         "process"),
        ("POST", "echo/infer", msgspec.json.encode(body(priority=-1)), 400,
         "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as "
         "unsigned-integer"),
    ],
)  # fmt: skip
def test_a_refusal_has_its_status_and_its_text(
    api: ApiServer, method: str, path: str, sent: bytes | None, status: int, error: str
) -> None:
    answer = api.http.request(method, f"/v2/models/{path}", content=sent)
    assert (answer.status_code, answer.json()) == (status, {"error": error})
