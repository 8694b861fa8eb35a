"""Models that declare inputs, outputs and parameters, on every way that an input comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace import Client
from headrace.errors import FieldError, InputError, InvalidInput
from tests.extensions.openai.harness.batches import batches_at, job_line, line
from tests.harness.clients.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import RunningUp, headrace, running_up
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
MODELS = """
models:
  free: {handler: echo}
  search:
    handler: echo
    inputs:
      fields:
        text: string
        top_k: integer?
        boxes: [number]
      example: {text: water finds its way, top_k: 3, boxes: [1.5]}
    outputs:
      fields: {text: string, top_k: "any?", boxes: any}
      example: {text: water finds its way, top_k: 3, boxes: [1.5]}
  tree:
    handler: echo
    inputs: {schema: tree.json, example: {value: 1, children: [{value: 2}]}}
  picture:
    handler: echo
    inputs: {content_types: [image/png, image/jpeg]}
  asked:
    handler: echo
    inputs: {fields: {image: bytes, question: string}}
    parameters: {top_k: {type: integer, default: 3}}
  words:
    handler: echo
    inputs: {schema: {type: string, minLength: 3}}
  strict:
    handler: echo
    outputs: {schema: {type: integer}, content_types: [application/octet-stream], enforce: true}
  asking:
    handler: %s:Asking
    inputs: {schema: {type: object}, content_types: [image/png]}
    parameters:
      top_k: {type: integer, required: true, maximum: 10, description: how many}
      language: {type: string, default: en, enum: [en, de]}
    headers: [x-tenant]
pipelines:
  row:
    stages:
      search: {}
      tree: {}
  own:
    inputs: {fields: {a: integer}}
    outputs: {schema: {type: object}}
    stages: {free: {}}
"""
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
        }
    },
}
GOOD = {"text": "a", "boxes": [1]}
BAD = {"text": 5, "topk": 3, "boxes": []}
ERRORS = [
    FieldError("/text", 'the value is not of type "string"', "type: string"),
    FieldError("/topk", "the field is unknown", "one of text, top_k, boxes"),
]
#: An inline limit below which inputs go to the payload store.
INLINE_BYTES = 1000


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture(scope="module")
def up(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "tree.json").write_text(json.dumps(TREE))
    (folder / "models.yaml").write_text(MODELS % (HANDLERS / "generation/asking.py"))
    with running_up(
        folder,
        models=folder / "models.yaml",
        background=True,
        runner=True,
        HEADRACE_REDIS_URL=redis_url,
        HEADRACE_INLINE_LIMIT_BYTES=str(INLINE_BYTES),
        HEADRACE_INPUT_ROOTS=str(folder),
    ) as running:
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 90)
        yield running


def post(up: RunningUp, model: str, body: bytes, kind: str = "application/json") -> Any:
    """The job, or the problem, of an input that is the body."""
    path = f"/api/v1/models/{model}/jobs?wait=60"
    return up.request("POST", path, body, **{"Content-Type": kind})


def refused(answer: tuple[int, Any]) -> list[tuple[str, str]]:
    """The places and messages of a refusal."""
    status, problem = answer
    assert (status, problem["type"]) == (422, "/problems/invalid-input"), problem
    return [(one["path"], one["message"]) for one in problem["errors"]]


def succeeded(answer: tuple[int, Any]) -> Any:
    """The result in a job, or the size of a large one."""
    status, job = answer
    assert (status, job.get("status")) == (200, "succeeded"), job
    return job.get("result_size", job["result"])


def test_the_input_in_the_body(up: RunningUp) -> None:
    assert succeeded(post(up, "search", json.dumps(GOOD).encode())) == GOOD
    status, problem = post(up, "search", json.dumps(BAD).encode())
    assert status == 422
    assert problem["title"] == "Invalid input"
    assert problem["detail"].startswith("the input does not fit model search: /text: ")
    assert problem["errors"] == [
        {"path": one.path, "message": one.message, "expected": one.expected} for one in ERRORS
    ]
    assert up.request("GET", problem["type"])[0] == 200


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/v1/jobs"), ("PUT", "/api/v1/jobs/p1")])
def test_the_input_in_json(up: RunningUp, method: str, path: str) -> None:
    def sent(value: Any) -> tuple[int, Any]:
        body = json.dumps({"model": "search", "input": value}).encode()
        return up.request(method, f"{path}?wait=60", body, **{"Content-Type": "application/json"})

    assert [where for where, _ in refused(sent(BAD))] == ["/text", "/topk"]
    # The id of a refused job is free.
    assert succeeded(sent(GOOD)) == GOOD


def test_each_line_of_a_bulk_request_has_its_own_answer(up: RunningUp) -> None:
    rows = [("search", GOOD), ("search", BAD), ("free", BAD), ("search", {}), ("search", GOOD)]
    with Client(f"http://127.0.0.1:{up.port}") as client:
        found = [next(iter(client.submit_many(model, [value]))) for model, value in rows]
        assert [isinstance(one, InvalidInput) for one in found] == [False, True, False, True, False]
        together = list(client.submit_many("search", [GOOD, BAD, GOOD]))
    assert [isinstance(one, InvalidInput) for one in together] == [False, True, False]
    assert isinstance(together[1], InvalidInput)
    assert together[1].errors == ERRORS


@pytest.mark.parametrize("shell", SHELLS)
def test_the_sdk_raises_a_typed_error(up: RunningUp, shell: str) -> None:
    with client_of(shell, f"http://127.0.0.1:{up.port}") as client:
        with pytest.raises(InvalidInput) as caught:
            client.submit("search", BAD)
        assert caught.value.errors == ERRORS
        assert (caught.value.status, caught.value.retryable) == (422, False)
        model = client.model("search")
        assert model.inputs["schema"]["required"] == ["text", "boxes"]
        assert model.inputs["example"]["text"] == "water finds its way"
        assert model.outputs["enforce"] is False
        assert client.model("free").inputs is None
        results = list(client.map("search", [GOOD, BAD], return_errors=True))
        assert [type(one.error) for one in results] == [type(None), InvalidInput]


def test_content_types(up: RunningUp) -> None:
    assert succeeded(post(up, "picture", PNG, "image/png"))
    # Without a type, the server looks at the first bytes, as curl's form type is for anything.
    assert succeeded(post(up, "picture", PNG, "application/x-www-form-urlencoded"))
    wrong = [("", "the value is audio/wav, not image/png or image/jpeg")]
    assert refused(post(up, "picture", b"RIFF", "audio/wav")) == wrong
    assert refused(post(up, "picture", b"RIFF" * INLINE_BYTES, "audio/wav")) == wrong
    assert refused(post(up, "picture", b'{"a": 1}')) == [
        ("", "the value is JSON, not image/png or image/jpeg")
    ]
    assert refused(post(up, "search", PNG, "image/png")) == [
        ("", "the value is image/png, not JSON")
    ]


def test_a_form_of_several_parts(up: RunningUp) -> None:
    def form(**parts: tuple[str, bytes]) -> Any:
        lines = [
            b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
            % (name.encode(), kind.encode(), body)
            for name, (kind, body) in parts.items()
        ]
        body = b"".join([*lines, b"--b--\r\n"])
        return post(up, "asked", body, "multipart/form-data; boundary=b")

    png = ('; filename="a.png"\r\nContent-Type: image/png', PNG)
    what = ("", b"What is it?")
    assert succeeded(form(image=png, question=what, top_k=("", b"5")))["question"] == "What is it?"
    assert refused(form(image=png, qestion=what)) == [
        ("/question", "the field is missing"), ("/qestion", "the field is unknown"),
    ]  # fmt: skip
    assert refused(form(image=what, question=what))[0][0] == "/image"


def test_large_inputs_are_checked_before_they_are_stored(up: RunningUp) -> None:
    large = {"text": "x" * 2 * INLINE_BYTES, "boxes": [1]}
    assert succeeded(post(up, "search", json.dumps(large).encode()))
    assert refused(post(up, "search", json.dumps({**large, "boxes": 1}).encode())) == [
        ("/boxes", 'the value is not of type "array"')
    ]
    long = b"word " * INLINE_BYTES
    assert succeeded(post(up, "words", long, "text/plain"))
    assert refused(post(up, "words", b"ab", "text/plain")) != []


def test_references_of_a_schema_to_itself(up: RunningUp) -> None:
    value = {"value": 1, "children": [{"value": 2, "children": []}]}
    assert succeeded(post(up, "tree", json.dumps(value).encode())) == value
    value["children"][0]["value"] = "2"  # type: ignore[index]
    assert refused(post(up, "tree", json.dumps(value).encode())) == [
        ("/children/0/value", 'the value is not of type "integer"')
    ]


def test_a_file_that_is_named_is_checked_where_it_is_read(up: RunningUp) -> None:
    def named(model: str, name: str, content: bytes) -> tuple[int, Any]:
        (up.folder / name).write_bytes(content)
        body = json.dumps({"model": model, "input_ref": f"file:{up.folder / name}"}).encode()
        return up.request("POST", "/api/v1/jobs?wait=60", body)

    assert succeeded(named("search", "good.json", json.dumps(GOOD).encode())) == GOOD
    assert refused(named("picture", "a.json", b"{}")) == [
        ("", "the value is JSON, not image/png or image/jpeg")
    ]
    status, job = named("search", "bad.json", json.dumps(BAD).encode())
    assert (status, job["status"], job["error"]["type"]) == (200, "failed", "input-error")
    assert "the input does not fit the model: /text" in job["error"]["message"]


def test_a_celery_clients_message_is_checked_by_the_worker(up: RunningUp, redis_url: str) -> None:
    with stock_client(redis_url) as app:
        assert send(app, "search", GOOD).get(timeout=GET_TIMEOUT_S) == GOOD
        with pytest.raises(Exception, match="/topk: the field is unknown") as caught:
            send(app, "search", BAD).get(timeout=GET_TIMEOUT_S)
        assert "InputError" in type(caught.value).__name__ or isinstance(caught.value, InputError)
        deep: Any = 1
        for _ in range(300):
            deep = {"value": 1, "children": [deep]}
        with pytest.raises(Exception, match="nested more than 100 levels"):
            send(app, "tree", deep).get(timeout=GET_TIMEOUT_S)


def test_pipelines(up: RunningUp) -> None:
    # The first stage's inputs, where it gets the whole input; later stages check for themselves.
    assert [where for where, _ in refused(post(up, "row", json.dumps(BAD).encode()))] == [
        "/text", "/topk",
    ]  # fmt: skip
    status, job = post(up, "row", json.dumps(GOOD).encode())
    assert (status, job["status"], job["error"]["type"]) == (200, "failed", "input-error")
    assert "stage tree: the input does not fit the model: /value" in job["error"]["message"]
    assert refused(post(up, "own", b"{}")) == [("/a", "the field is missing")]
    assert succeeded(post(up, "own", b'{"a": 1}')) == {"a": 1}


def test_enforced_outputs(up: RunningUp) -> None:
    assert succeeded(post(up, "strict", b"7")) == 7
    assert succeeded(post(up, "strict", PNG, "image/png"))  # which echo returns as bytes
    status, job = post(up, "strict", b'"x"')
    assert (status, job["error"]["type"]) == (200, "handler-error")
    assert job["error"]["message"] == (
        'the result does not fit the outputs: the value is not of type "integer"'
    )
    assert post(up, "strict", b"text", "text/plain")[1]["status"] == "failed"


def test_batches_over_http(up: RunningUp) -> None:
    with batches_at(f"http://127.0.0.1:{up.port}") as batches:
        path = "/api/v1/models/search/jobs"
        lines = [line("good", "search", GOOD), line("bad", "search", BAD)]
        good, bad = batches.both(batches.ended(batches.create(lines, path)))
        assert good.keys() == {"good"}
        assert bad["bad"]["error"]["code"] == "invalid-input"
        assert "/topk: the field is unknown" in bad["bad"]["error"]["message"]
        lines = [job_line("good", model="search", input=GOOD)]
        good, _ = batches.both(batches.ended(batches.create(lines, "/api/v1/jobs")))
        assert good.keys() == {"good"}


def test_runs_and_commands(up: RunningUp) -> None:
    url = f"http://127.0.0.1:{up.port}"

    def run(*arguments: str) -> tuple[int, str]:
        done = headrace(*arguments, "--url", url, cwd=up.folder)
        return done.returncode, done.stdout + done.stderr

    (up.folder / "in.jsonl").write_text(f"{json.dumps(GOOD)}\n{json.dumps(BAD)}\n")
    code, said = run("run", "search", "in.jsonl", "-o", "out.jsonl")
    rows = [json.loads(row) for row in (up.folder / "out.jsonl").read_text().splitlines()]
    assert code == 1, said
    assert {row["status"]: row.get("error", {}).get("type") for row in rows} == {
        "succeeded": None, "rejected": "invalid-input",
    }  # fmt: skip
    code, said = run("submit", "search", "--json-input", json.dumps(BAD))
    assert code != 0
    assert "/topk: the field is unknown" in said
    code, said = run("models", "search")
    assert code == 0
    assert '"required":["text","boxes"]' in said
    assert 'example             {"text":"water finds its way"' in said
    code, said = run("models", "picture")
    assert "inputs              image/png, image/jpeg" in said


def seen(result: dict[str, Any]) -> Any:
    """The parameters that the handler has seen."""
    return result["seen"][0]["parameters"]


@pytest.mark.slow
def test_parameters_of_runs_and_commands(up: RunningUp) -> None:
    url = f"http://127.0.0.1:{up.port}"

    def run(*arguments: str) -> tuple[int, str]:
        done = headrace(*arguments, "--url", url, cwd=up.folder)
        return done.returncode, done.stdout + done.stderr

    ask = ("submit", "asking", "--json-input", "{}", "--wait")
    code, said = run(*ask, "--param", "top_k=3", "--param", "language=de")
    assert code == 0, said
    assert seen(json.loads(said)) == {"top_k": 3, "language": "de"}
    code, said = run(*ask, "--param", "topk=3")
    assert code != 0
    assert "unknown parameter 'topk'; did you mean top_k?" in said
    assert "parameter top_k is missing: expected an integer of at most 10" in said
    assert run(*ask, "--param", "top_k")[1].count("expected NAME=VALUE") == 1
    assert "given twice" in run(*ask, "--param", "top_k=1", "--param", "top_k=2")[1]
    (up.folder / "asked.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    many = ("run", "asking", "asked.jsonl", "-o", "answers.jsonl")
    code, said = run(*many, "--param", "top_k=4")
    assert code == 0, said
    rows = [json.loads(row) for row in (up.folder / "answers.jsonl").read_text().splitlines()]
    assert [seen(row["result"]) for row in rows] == [{"top_k": 4, "language": "en"}] * 2
    # A run is resumed by the same command only.
    code, said = run(*many, "--param", "top_k=5")
    assert code != 0
    assert "parameters" in said
    code, said = run("models", "asking")
    assert 'parameter top_k     {"type":"integer","maximum":10,"required":true' in said
    assert "headers             x-tenant" in said


def test_parameters_of_batches_over_http(up: RunningUp) -> None:
    with batches_at(f"http://127.0.0.1:{up.port}") as batches:
        path = "/api/v1/models/asking/jobs"
        lines = [
            {**line("good", "asking", {}), "url": f"{path}?top_k=3&priority=9"},
            {**line("bad", "asking", {}), "url": f"{path}?top_k=11"},
        ]
        good, bad = batches.both(batches.ended(batches.create(lines, path)))
        assert seen(good["good"]["response"]["body"]["result"]) == {"top_k": 3, "language": "en"}
        assert "expected an integer of at most 10, got '11'" in bad["bad"]["error"]["message"]
        lines = [job_line("good", model="asking", input={}, parameters={"top_k": 4})]
        good, _ = batches.both(batches.ended(batches.create(lines, "/api/v1/jobs")))
        assert seen(good["good"]["response"]["body"]["result"])["top_k"] == 4


def test_a_form_is_checked_as_the_json_that_it_becomes(up: RunningUp) -> None:
    path = f"http://127.0.0.1:{up.port}/api/v1/models/asking/jobs?wait=60&top_k=1"
    files: Any = {"a": ("a.png", PNG, "image/png"), "b": (None, "text")}
    result = httpx2.post(path, files=files, timeout=90).json()["result"]
    assert result["input"].keys() == {"a", "b"}
    assert result["seen"][0]["parts"] == {"a": "image/png"}
    path = f"http://127.0.0.1:{up.port}/api/v1/models/tree/jobs"
    assert httpx2.post(path, files=files, timeout=90).status_code == 422


def test_the_description_of_this_server_has_the_models(up: RunningUp) -> None:
    status, described = up.request("GET", "/openapi.json")
    assert status == 200
    paths = described["paths"]
    search = paths["/api/v1/models/search/jobs"]["post"]
    body = search["requestBody"]["content"]["application/json"]
    assert body["example"]["text"] == "water finds its way"
    assert body["schema"] == {"$ref": "#/components/schemas/search.input"}
    assert described["components"]["schemas"]["search.input"]["required"] == ["text", "boxes"]
    assert search["responses"]["200"]["content"]["application/json"]["example"]["result"]
    picture = paths["/api/v1/models/picture/jobs"]["post"]["requestBody"]["content"]
    assert list(picture) == ["image/png", "image/jpeg"]
    asking = paths["/api/v1/models/asking/jobs"]["post"]["parameters"]
    shown = {one["name"]: one for one in asking}
    assert shown["top_k"] == {
        "name": "top_k", "in": "query", "schema": {"type": "integer", "maximum": 10},
        "description": "how many. Required, here or in a form.",
    }  # fmt: skip
    assert shown["language"]["schema"] == {"type": "string", "default": "en", "enum": ["en", "de"]}
    assert (shown["x-tenant"]["in"], "priority" in shown) == ("header", False)
    assert "/api/v1/models/free/jobs" not in paths
    assert "/api/v1/models/row/jobs" in paths


@pytest.mark.slow
def test_try_takes_parameters(up: RunningUp) -> None:
    def tried(*arguments: str, target: str = "asking") -> Any:
        models = str(Path(up.folder) / "models.yaml")
        return headrace("try", target, *arguments, "--models", models, cwd=up.folder)

    done = tried("--json-input", "{}", "--param", "top_k=3")
    assert done.returncode == 0, done.stderr
    assert seen(json.loads(done.stdout)) == {"top_k": 3, "language": "en"}
    done = tried("--json-input", "{}", "--param", "top_k=x")
    assert done.returncode != 0
    assert "parameter top_k: expected an integer of at most 10, got 'x'" in done.stderr
    # A handler without a section takes any.
    ask = ("--json-input", "{}", "--param", "a=[1]", "--param", "b=x y")
    done = tried(*ask, target=f"{HANDLERS / 'generation/asking.py'}:Asking")
    assert seen(json.loads(done.stdout)) == {"a": [1], "b": "x y"}


def test_try_checks_too(up: RunningUp) -> None:
    models = str(Path(up.folder) / "models.yaml")
    value = json.dumps(BAD)
    done = headrace("try", "search", "--json-input", value, "--models", models, cwd=up.folder)
    assert done.returncode == 2, done.stderr
    assert "the API refuses this input: /text" in done.stderr
