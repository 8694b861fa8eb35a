"""TensorFlow Serving's REST and KServe V1 against a real server, with real workers.

The requests and answers of half_plus_two are those of TensorFlow Serving's own tests.
"""

from __future__ import annotations

import json
from typing import Any, Final

import openai
import pytest

from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import patient

MODELS: Final = "/v1/models"
ASYNC: Final = {"prefer": "respond-async"}


def ask(api: ApiServer, path: str, sent: Any, **headers: str) -> Any:
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    return api.http.post(f"{MODELS}/{path}", content=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "sent", "answer"),
    [
        # Python's JSON writes and reads NaN, Infinity and -Infinity as tokens.
        ("half:predict", {"instances": [1.0, 2.0, 5.0]}, '{"predictions":[2.5,3.0,4.5]}'),
        ("half:predict", {"instances": [{"x": 1}], "signature_name": "serving_default"},
         '{"predictions":[2.5]}'),
        ("half/versions/1:predict", {"inputs": {"x": [1, 2]}}, '{"outputs":[2.5,3.0]}'),
        ("half/versions/1.0:predict",
         {"inputs": [float("nan"), float("inf"), float("-inf"), -3.6, 2e7, 65.4321098, 6e30]},
         '{"outputs":[NaN,Infinity,-Infinity,0.200000048,10000002.0,34.716053,3e+30]}'),
        ("mixed:predict",
         {"instances": [{"a": [1, 2], "b": {"b64": "AP8="}}, {"a": [3, 4], "b": "ä"}]},
         '{"predictions":[{"sum":3,"b_bytes":{"b64":"AP8="},"b":{"b64":"AP8="},"yes":true},'
         '{"sum":7,"b_bytes":{"b64":"w6Q="},"b":"ä","yes":false}]}'),
        ("mixed:predict", {"inputs": {"a": [[2, 2]], "b": ["x"], "ignored": 1}},
         '{"outputs":{"sum":[4],"b_bytes":[{"b64":"eA=="}],"b":["x"],"yes":[true]}}'),
        ("identity_fp32:predict", {"instances": [[1, 2.5], [3, 4]]},
         '{"predictions":[[1.0,2.5],[3.0,4.0]]}'),
        ("identity_bytes:predict", {"inputs": [[], []]}, '{"outputs":[[],[]]}'),
        ("half:regress", {"examples": [{"x": [6.0]}, {"x": 2}]}, '{"results":[5.0,3.0]}'),
        ("scores:classify", {"context": {"p": 0.25}, "examples": [{"other": "x"}, {"p": [1]}]},
         '{"results":[[["cat",0.75],["dog",0.25]],[["cat",0.0],["dog",1.0]]]}'),
        # A model without tensors has a job for each instance.
        ("echo:predict", {"instances": [1, "a", {"k": [None]}, {"b64": "AP8="}]},
         '{"predictions":[1,"a",{"k":[null]},{"b64":"AP8="}]}'),
        ("echo:predict", {"inputs": [1, "a"]}, '{"outputs":[1,"a"]}'),
    ],
)  # fmt: skip
def test_an_answer_has_the_form_of_its_request(
    api: ApiServer, path: str, sent: Any, answer: str
) -> None:
    found = ask(api, path, sent)
    assert (found.status_code, found.text) == (200, answer)
    assert found.headers["content-type"] == "application/json"
    for job in found.headers["headrace-job"].split(", "):
        assert api.job(job)["status"] == "succeeded"


@pytest.mark.parametrize(
    ("path", "sent", "status", "error"),
    [
        ("nope:predict", {}, 404, "Servable not found for request: Latest(nope)"),
        ("half/versions/7:predict", {}, 404, "Servable not found for request: Specific(half, 7)"),
        ("half/labels/stable:predict", {}, 400, "Unrecognized servable version label: stable. "),
        ("half:nothing", {}, 400, "Malformed request: POST /v1/models/half:nothing"),
        ("half:explain", {}, 501, "explain is not supported: "),
        ("half:predict", b"{", 400, "JSON Parse error: "),
        ("half:predict", b"", 400, "JSON Parse error: "),
        ("echo:predict", b'{"instances": [{"b64": "\xff"}]}', 400, "JSON Parse error: 'utf-8'"),
        ("echo:predict", b'{"inputs": %s}' % (b"[" * 10**5), 400, "failed to parse the req"),
        ("half:predict", b"[" * 100_000, 400, "failed to parse the request JSON"),
        ("echo:predict", b'{"inputs":' + b"[" * 995 + b"]" * 995 + b"}", 400, "failed to parse"),
        ("half:predict", [1], 400, "JSON Value: [1] Is not object"),
        ("half:predict", {"a": 1}, 400, "Missing 'inputs' or 'instances' key"),
        ("half:predict", {"instances": [1], "inputs": [1]}, 400,
         'JSON Value: {"instances": [1], "inputs": [1]} Not formatted correctly expecting only one '
         "of 'inputs' or 'instances' keys to exist"),
        ("half:predict", {"instances": {}}, 400,
         "JSON Value: {\"instances\": {}} Excepting 'instances' to be an list/array"),
        ("half:predict", {"instances": []}, 400,
         "JSON Value: {\"instances\": []} No values in 'instances' array"),
        ("half:predict", {"signature_name": "other"}, 400,
         'Serving signature name: "other" not found in signature def'),
        ("half:predict", {"signature_name": "\ud800", "instances": [1]}, 400,
         'Serving signature name: "\\ud800" not found in signature def'),
        ("half:predict", {"instances": [1, "a"]}, 400,
         'JSON Value: "a" Type: String is not of expected type: float'),
        ("half:predict", {"instances": [1, [2]]}, 400,
         "Encountered list at unexpected level: 1 expected < 1"),
        ("half:predict", {"instances": [1, {"x": 2}]}, 400,
         "Expecting value/list but got object at item 1 of input list"),
        ("half:predict", {"instances": [{"x": 2}, 1]}, 400,
         "Expecting object but got list at item 1 of input list"),
        ("mixed:predict", {"instances": [1]}, 400,
         "instances is a plain list, but expecting list of objects as multiple input tensors "
         "required as per tensorinfo_map"),
        ("mixed:predict", {"instances": [{"a": [1, 2]}]}, 400,
         "Failed to process element: 0 of 'instances' list. JSON object: {\"a\": [1, 2]} keys must "
         "be equal to: a,b"),
        ("mixed:predict", {"instances": [{"c": 1}]}, 400,
         "Failed to process element: 0 of 'instances' list. JSON object: {\"c\": 1} keys must be "
         "equal to: a,b"),
        ("mixed:predict", {"inputs": {"a": [[1, 2]]}}, 400,
         "Missing named input: b in 'inputs' object."),
        ("mixed:predict", {"inputs": {"a": [[1, 2.5]], "b": ["x"]}}, 400,
         "JSON Value: 2.5 Type: Number is not of expected type: int32"),
        ("mixed:predict", {"inputs": {"a": [[1, 2**31]], "b": ["x"]}}, 400,
         "JSON Value: 2147483648 Type: Number is not of expected type: int32"),
        ("mixed:predict", {"inputs": {"a": [[1, 2], [3]], "b": ["x", "y"]}}, 400,
         "Encountered list at unexpected size: 1 at level: 1 expected size: 2"),
        ("mixed:predict", {"inputs": {"a": [[1, [2]]], "b": ["x"]}}, 400,
         "Encountered list at unexpected level: 2 expected < 2"),
        ("identity_bytes:predict", {"instances": [[{"b64": "?"}]]}, 400,
         "Unable to base64 decode"),
        ("identity_bytes:predict", {"instances": [["\ud800"]]}, 400,
         'JSON Value: "\\ud800" Type: String is not of expected type: string'),
        ("identity_bf16:predict", {"instances": [[1.5]]}, 400,
         "JSON Value: 1.5 Type: Number is not of expected type: bfloat16"),
        ("half:predict", {"instances": [1] * 9}, 400, "[request id: <id_unknown>] inference"),
        ("scores:classify", {"examples": {}}, 400, 'JSON Value: {"examples": {}} Expecting'),
        ("scores:classify", {"examples": [1]}, 400,
         "Example must be JSON object but got JSON Number"),
        ("mixed:regress", {"examples": [{"a": [1, 2], "b": "x"}]}, 400, "The model has not one"),
        ("echo:regress", {"examples": [{}]}, 400, "Model 'echo' declares no tensors"),
        ("echo:predict", {"instances": [float("nan")]}, 400, "JSON Parse error: it has NaN"),
        ("echo:predict", {"instances": [1] * 1001}, 400, "'instances' has 1001 values"),
    ],
)  # fmt: skip
def test_a_refusal_has_its_status_and_its_text(
    api: ApiServer, path: str, sent: Any, status: int, error: str
) -> None:
    found = ask(api, path, sent)
    assert found.status_code == status
    assert list(found.json()) == ["error"]
    assert found.json()["error"].startswith(error)


def test_one_object_serves_the_clients_of_openai_kserve_and_tensorflow(api: ApiServer) -> None:
    available = {
        "version": "1.0",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    found = api.http.get(f"{MODELS}/half").json()
    assert (found["name"], found["ready"]) == ("half", True)
    assert found["model_version_status"] == [available]
    one = api.http.get(f"{MODELS}/half/versions/1").json()
    assert one == {"model_version_status": [available]}
    waiting = api.http.get(f"{MODELS}/waiting").json()
    assert waiting["ready"] is False
    assert waiting["model_version_status"][0]["state"] == "START"
    assert "half" in api.http.get(MODELS).json()["models"]
    client = openai.OpenAI(base_url=f"{api.url}/v1", api_key="none")
    assert "half" in [model.id for model in client.models.list()]
    assert client.models.retrieve("half").owned_by == "headrace"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("nope")
    assert refused.value.code == "model_not_found"
    client.close()


def test_the_metadata_of_a_model_is_its_only_signature(api: ApiServer) -> None:
    found = api.http.get(f"{MODELS}/mixed/versions/1.0/metadata").json()
    assert found["model_spec"] == {"name": "mixed", "signature_name": "", "version": "1.0"}
    (signature,) = found["metadata"]["signature_def"]["signature_def"].values()
    assert {name: one["dtype"] for name, one in signature["inputs"].items()} == {
        "a": "DT_INT32", "b": "DT_STRING",
    }  # fmt: skip
    sizes = [dim["size"] for dim in signature["inputs"]["a"]["tensor_shape"]["dim"]]
    assert sizes == ["-1", "2"]
    missing = api.http.get(f"{MODELS}/nope/metadata")
    text = "Servable not found for request: Latest(nope)"
    assert (missing.status_code, missing.json()) == (404, {"error": text})


def test_a_client_can_leave_its_jobs_behind(api: ApiServer) -> None:
    one = ask(api, "half:predict", {"instances": [1.0, 2.0]}, **ASYNC)
    assert (one.status_code, one.headers["preference-applied"]) == (202, "respond-async")
    assert one.headers["location"] == f"/api/v1/jobs/{one.headers['headrace-job']}"
    assert api.ended(one.json()["id"])["status"] == "succeeded"
    answered = ask(api, "half:predict", {"instances": [1.0]})
    with patient(api.redis_url) as redis:
        kept = [
            redis.hget(keys.job(of.headers["headrace-job"]), JobField.TTL) for of in (one, answered)
        ]
    assert kept == [None, b"60"], "a job that was left behind is kept as any other"
    several = ask(
        api, "echo:predict", {"instances": ["a", "b"]}, **ASYNC, **{"idempotency-key": "k"}
    )
    jobs = [job["id"] for job in several.json()["jobs"]]
    assert several.headers["headrace-job"] == ", ".join(jobs)
    assert [api.ended(job)["result"] for job in jobs] == ["a", "b"]
    assert not any("replayed" in job for job in several.json()["jobs"])
    repeated = ask(
        api, "echo:predict", {"instances": ["a", "b"]}, **ASYNC, **{"idempotency-key": "k"}
    )
    assert [(job["id"], job["replayed"]) for job in repeated.json()["jobs"]] == [
        (job, True) for job in jobs
    ]
    again = ask(api, "echo:predict", {"instances": ["a", "b"]}, **{"idempotency-key": "k"})
    assert again.json() == {"predictions": ["a", "b"]}
    assert again.headers["headrace-job"] == ", ".join(jobs)


def jobs_of(api: ApiServer, status: str) -> set[str]:
    found = api.http.get("/api/v1/jobs", params={"model": "waiting", "status": status}).json()
    return {job["id"] for job in found["jobs"]}


@pytest.mark.parametrize("instances", [[1], [1, 2, 3]])
def test_a_client_that_hangs_up_cancels_all_its_jobs(api: ApiServer, instances: list[int]) -> None:
    before = jobs_of(api, "cancelled")
    text = json.dumps({"instances": instances}).encode()
    connection = api.connect()
    connection.sendall(
        b"POST /v1/models/waiting:predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
        % (len(text), text)
    )
    wait_until(lambda: len(jobs_of(api, "queued")) == len(instances), "the jobs wait")
    queued = jobs_of(api, "queued")
    connection.close()
    wait_until(lambda: jobs_of(api, "cancelled") == before | queued, "the jobs are cancelled")


def test_a_job_that_fails_or_takes_too_long_ends_the_others(api: ApiServer) -> None:
    failed = ask(api, "half:predict", {"instances": [-1.0]})
    assert (failed.status_code, failed.json()) == (500, {"error": "ValueError: below 0"})
    with api_server(api.redis_url, api.services.catalog, max_wait_s=0.1) as hasty:
        late = ask(hasty, "waiting:predict", {"instances": [1, 2]})
    assert late.status_code == 504
    for job in late.headers["headrace-job"].split(", "):
        assert api.job(job)["status"] == "cancelled"


@pytest.mark.parametrize("headers", [{}, ASYNC])
def test_a_request_of_several_jobs_finds_room_for_all_or_for_none(
    api: ApiServer, headers: dict[str, str]
) -> None:
    full = ask(api, "narrow:predict", {"instances": [1, 2, 3]}, **headers)
    assert (full.status_code, list(full.json())) == (429, ["error"])
    assert int(full.headers["retry-after"]) > 0
    queued = {"model": "narrow", "status": "queued"}
    assert api.http.get("/api/v1/jobs", params=queued).json()["jobs"] == []
