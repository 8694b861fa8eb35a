"""Parameters, headers, metadata and the parts of forms: from each kind of client to the handler."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from celery import Celery
from PIL import Image

from headrace import AsyncClient, Client
from headrace.config.model.catalog import load_catalog
from headrace.errors import InputError, InvalidRequest
from tests.harness.clients.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import HANDLERS, celery_worker

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(32))
NESTED = {"content_type": "image/png", "base64": base64.b64encode(PNG).decode()}
VQA = "/api/v1/models/vqa/jobs"
#: Long enough for a machine that stands still for a while.
WAIT_S = 60
DEFAULTS = {"question": "why", "top_k": None, "threshold": 0.5, "flag": False}


def asking(kind: str = "Asking", **more: Any) -> dict[str, Any]:
    return {"handler": f"{HANDLERS / 'generation/asking.py'}:{kind}", **more}


def declared() -> dict[str, Any]:
    return {
        "question": {"type": "string", "default": "why"},
        "top_k": {"type": "integer", "minimum": 1, "maximum": 10},
        "threshold": {"type": "number", "default": 0.5, "maximum": 1},
        "flag": {"type": "boolean", "default": False},
    }


@dataclass
class Site:
    """One worker and one API over the same models file."""

    api: ApiServer
    url: str
    client: Client
    app: Celery

    def post(self, path: str = VQA, **request: Any) -> dict[str, Any]:
        """The result of a request that must succeed."""
        response = self.api.http.post(path, timeout=WAIT_S, **request)
        assert response.status_code in (200, 202), response.text
        result: dict[str, Any] = self.client.result(response.json()["id"], timeout_s=WAIT_S)
        return result

    def refused(self, path: str = VQA, status: int = 400, **request: Any) -> str:
        """What is wrong with a request, and what to do."""
        response = self.api.http.post(path, timeout=WAIT_S, **request)
        assert response.status_code == status, response.text
        problem = response.json()
        return f"{problem['detail']} | {problem.get('remedy', '')}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("parameters")
    path = folder / "models.yaml"
    models = {
        "vqa": asking(parameters=declared(), headers=["accept-language", "x-tenant"]),
        "free": asking(),
        "nested": asking(
            "Nested",
            parameters={
                "question": {"type": "string", "required": True, "enum": ["why", "who"]},
                "top_k": {"type": "integer", "required": True},
            },
        ),
        "overlapping": asking(
            "Overlapping", parameters=declared(), preprocess_processes=2, max_batch_delay_ms=200
        ),
        "second": asking(parameters={"top_k": {"type": "integer", "minimum": 1, "maximum": 10},
                                     "language": {"type": "string"}}),
    }  # fmt: skip
    pipelines = {"both": {"stages": {"vqa": None, "second": {"from": "input"}},
                          "result": ["vqa", "second"]}}  # fmt: skip
    path.write_text(yaml.safe_dump({"models": models, "pipelines": pipelines}, sort_keys=False))
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder) as worker,
        celery_worker(
            server.url,
            path,
            folder,
            node="background@test",
            app="workers.background.app",
            arguments=(),
        ),
        api_server(server.url, load_catalog(path)) as api,
        Client(api.url) as client,
        stock_client(server.url) as app,
    ):
        worker.wait_ready(*models)
        yield Site(api, server.url, client, app)


def given(result: dict[str, Any], what: str = "parameters") -> Any:
    """What all verbs have seen."""
    first, *others = result["seen"]
    assert len(others) == 2
    assert others == [first, first]
    return first[what]


@pytest.mark.parametrize("way", ["query", "form", "json", "put", "text in json"])
def test_an_image_with_a_question_and_a_threshold(site: Site, way: str) -> None:
    values = {"question": "what is it? é", "top_k": 3, "threshold": 0.25, "flag": True}
    text = {name: json.dumps(one).strip('"') for name, one in values.items()}
    text["question"] = str(values["question"])
    png = {"content-type": "image/png"}
    body = {"model": "vqa", "input": NESTED, "parameters": values}
    if way == "query":
        result = site.post(params=text, content=PNG, headers=png)
    elif way == "form":
        result = site.post(files={"image": ("x.png", PNG, "image/png")}, data=text)
    elif way == "json":
        result = site.post("/api/v1/jobs", json=body)
    elif way == "text in json":
        result = site.post("/api/v1/jobs", json={**body, "parameters": text})
    else:
        response = site.api.http.put("/api/v1/jobs/put-with-parameters", json=body)
        assert response.status_code == 202, response.text
        result = site.client.result("put-with-parameters", timeout_s=WAIT_S)
    assert result["input"] == f"bytes:{NESTED['base64']}"
    assert given(result) == values
    assert type(given(result)["top_k"]) is int


def test_what_is_not_sent_has_its_default(site: Site) -> None:
    assert given(site.post(json=1)) == DEFAULTS
    body = {"model": "vqa", "input": 1, "parameters": {"top_k": None, "threshold": 1}}
    assert given(site.post("/api/v1/jobs", json=body)) == {**DEFAULTS, "threshold": 1}


def test_a_model_without_parameters_gives_its_handler_empty_ones(site: Site) -> None:
    result = site.post("/api/v1/models/free/jobs", json=1)
    for what in ("parameters", "headers", "metadata", "parts"):
        assert given(result, what) == {}


def test_chosen_headers_and_metadata_reach_the_handler(site: Site) -> None:
    sent = {"Accept-Language": "de, en", "X-Tenant": "blue", "X-Other": "no"}
    body = {"model": "vqa", "input": 1, "options": {"metadata": {"batch": [7, "é"]}}}
    result = site.post("/api/v1/jobs", json=body, headers=sent)
    assert given(result, "headers") == {"accept-language": "de, en", "x-tenant": "blue"}
    assert given(result, "metadata") == {"batch": [7, "é"]}
    result = site.post("/api/v1/models/free/jobs?metadata=%7B%22a%22%3A1%7D", json=1, headers=sent)
    assert (given(result, "headers"), given(result, "metadata")) == ({}, {"a": 1})
    answer = site.refused(json=1, headers={"X-Tenant": "x" * 1025})
    assert "the header x-tenant has 1025 bytes, more than 1024" in answer


def test_a_bulk_request_has_parameters_on_each_line_and_its_own_headers(site: Site) -> None:
    lines = [{"model": "vqa", "input": n, "parameters": {"top_k": n}} for n in (1, 2, 99)]
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    headers = {"content-type": "application/x-ndjson", "x-tenant": "blue"}
    answers = site.api.http.post("/api/v1/jobs/bulk?quiet=1", content=body, headers=headers)
    *good, bad = [json.loads(line) for line in answers.text.splitlines()]
    assert "top_k: expected an integer from 1 to 10, got 99" in bad["error"]["detail"]
    for n, job in enumerate(good, 1):
        result = site.client.result(job["id"], timeout_s=WAIT_S)
        assert given(result) == {**DEFAULTS, "top_k": n}
        assert given(result, "headers")["x-tenant"] == "blue"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("topk=3", "'topk'; did you mean top_k?"),
        ("zzz=3", "known here: "),
        ("top_k=x", "top_k: expected an integer from 1 to 10, got 'x'"),
        ("top_k=3.5", "top_k: expected an integer from 1 to 10, got '3.5'"),
        ("threshold=nan", "threshold: expected a number of at most 1, got 'nan'"),
        ("threshold=2", "threshold: expected a number of at most 1, got '2'"),
        ("flag=perhaps", "flag: expected a boolean, got 'perhaps'"),
        ("top_k=0&flag=maybe", "got '0'; parameter flag: expected a boolean"),
        ("top_k=1&top_k=2", "top_k is given twice"),
    ],
)
def test_each_wrong_parameter_of_a_query_is_named(site: Site, query: str, says: str) -> None:
    assert says in site.refused(f"{VQA}?{query}", json=1)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"topk": 3}, "unknown parameter 'topk'; did you mean top_k? | Model vqa takes: "),
        ({"topk": 3, "flag": 1}, "parameter flag: expected a boolean, got 1"),
        ({"question": 3}, "parameter question: expected a string, got 3"),
        ({"top_k": True}, "top_k: expected an integer from 1 to 10, got True"),
        ({"top_k": 10**30}, "top_k: expected an integer from 1 to 10"),
        ({"question": "x" * 17_000}, "bytes as JSON, more than 16384"),
    ],
)
def test_each_wrong_parameter_in_json_is_named(
    site: Site, parameters: dict[str, Any], says: str
) -> None:
    body = {"model": "vqa", "input": 1, "parameters": parameters}
    assert says in site.refused("/api/v1/jobs", json=body)


def test_a_missing_parameter_and_a_model_without_any(site: Site) -> None:
    body = {"model": "nested", "input": 1, "parameters": {"top_k": 1}}
    answer = site.refused("/api/v1/jobs", json=body)
    assert "parameter question is missing: expected one of why, who" in answer
    body = {"model": "free", "input": 1, "parameters": {"top_k": 1}}
    answer = site.refused("/api/v1/jobs", json=body)
    assert answer == "unknown parameter 'top_k' | Model free takes no parameters."


def test_a_repeat_with_other_parameters_is_a_conflict(site: Site) -> None:
    body = {"model": "vqa", "input": 1, "id": "once", "parameters": {"top_k": 3}}
    assert site.api.http.post("/api/v1/jobs", json=body).status_code == 202
    same = {**body, "parameters": {"top_k": "3"}}
    again = site.api.http.post("/api/v1/jobs", json=same, headers={"x-tenant": "other"})
    assert again.headers["idempotency-replayed"] == "true"
    site.refused("/api/v1/jobs", 409, json={**body, "parameters": {"top_k": 4}})


def test_several_parts_of_a_form_arrive_as_a_mapping(site: Site) -> None:
    result = site.post(
        "/api/v1/models/free/jobs",
        files={
            "image": ("x.png", PNG, "image/png"),
            "data": ("x.bin", b"\x00\xff", "application/octet-stream"),
            "table": ("x.csv", b"a,b", "text/csv"),
            "boxes": ("boxes", b' {"x": [1]} ', "application/json"),
            "question": (None, "what? é"),
        },
    )
    assert result["input"] == {
        "image": f"bytes:{NESTED['base64']}", "data": "bytes:AP8=", "table": "a,b",
        "boxes": {"x": [1]}, "question": "what? é",
    }  # fmt: skip
    assert given(result, "parts") == {
        "image": "image/png", "data": "application/octet-stream", "table": "text/csv",
    }  # fmt: skip


def test_a_part_with_a_type_may_have_a_name_like_that_of_a_parameter(site: Site) -> None:
    files = {"a": (None, b"x"), "topk": (None, b"y", "text/plain")}
    assert site.post(files=files)["input"] == {"a": "x", "topk": "y"}


def test_parts_of_one_name_are_a_list(site: Site) -> None:
    files = [("images", ("x.png", PNG, "image/png"))] * 2
    result = site.post("/api/v1/models/free/jobs", files=files)
    assert result["input"] == {"images": [f"bytes:{NESTED['base64']}"] * 2}
    assert given(result, "parts") == {"images[0]": "image/png", "images[1]": "image/png"}


def test_a_form_that_is_too_long_for_a_message_arrives_too(site: Site) -> None:
    large = PNG * 4000
    files = {"image": ("x.png", large, "image/png"), "other": (None, "x")}
    result = site.post(params={"top_k": 2}, files=files)
    assert result["input"]["image"] == f"bytes:{base64.b64encode(large).decode()}"
    assert given(result) == {**DEFAULTS, "top_k": 2}


def test_a_form_with_one_part_is_that_input(site: Site) -> None:
    files = {"data": ("x.png", PNG, "image/png")}
    result = site.post("/api/v1/models/free/jobs", files=files)
    assert result["input"] == f"bytes:{NESTED['base64']}"
    assert given(result, "type") == "image/png"


def form(*parts: tuple[str, bytes]) -> dict[str, Any]:
    """A request with a form that httpx would not write."""
    body = b"".join(
        b"--b\r\nContent-Disposition: form-data%b\r\n\r\n%b\r\n" % (head.encode(), text)
        for head, text in parts
    )
    return {
        "content": body + b"--b--\r\n",
        "headers": {"content-type": "multipart/form-data; boundary=b"},
    }


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (form(("; name=top_k", b"1"), ("; name=top_k", b"2")), "has the parameter top_k twice"),
        (form(("; name=a", b"1"), ("", b"2")), "a part of the form has no name"),
        (form(("; name=top_k", b"1")), "the form has no input"),
        (form(("; name=a", b"1"), ("; name=topk", b"2")), "'topk'; did you mean top_k? | Give"),
        (form(("; name=a", b"\xff"), ("; name=b", b"2")), "part 'a' of the form is not text"),
        (form(("; name=a", b"1"), ("; name=top_k", b"\xff")), "part 'top_k' of the form is not"),
        (form(("; name=a", b"1"), ("; name=top_k", b"11")), "expected an integer from 1 to 10"),
        (
            form(("; name=a", b"1"), ("; name=b\r\nContent-Type: application/json", b"{")),
            "part 'b' of the form: the body is not JSON",
        ),
        (
            form(("; name=content_type", b"a/b"), ("; name=base64", b"AA==")),
            "would be read as one input",
        ),
    ],
)
def test_what_cannot_be_used_of_a_form_is_named(
    site: Site, request_: dict[str, Any], says: str
) -> None:
    assert says in site.refused(**request_)


def test_a_parameter_in_query_and_form_is_refused(site: Site) -> None:
    files = {"data": ("x.png", PNG, "image/png")}
    answer = site.refused(f"{VQA}?top_k=1", files=files, data={"top_k": "1"})
    assert "in the query and in the form: parameter top_k" in answer


def test_bytes_inside_json_are_decoded_for_a_handler_that_accepts_them(site: Site) -> None:
    value: dict[str, Any] = {
        "image": NESTED,
        "more": [{"note.x": {"content_type": "text/plain", "base64": "aGk="}}],
    }
    parameters = {"question": "who", "top_k": 1}
    body = {"model": "nested", "input": value, "parameters": parameters}
    result = site.post("/api/v1/jobs", json=body)
    png = f"bytes:{NESTED['base64']}"
    assert result["input"] == {"image": png, "more": [{"note.x": "hi"}]}
    assert given(result, "parts") == {"image": "image/png", 'more[0]["note.x"]': "text/plain"}
    assert site.post("/api/v1/models/free/jobs", json=value)["input"] == value
    value["more"] = [0, {"content_type": "image/png", "base64": "!"}]
    with pytest.raises(InputError, match=r"^more\[1\]: the input's base64 cannot be read"):
        site.post("/api/v1/jobs", json={**body, "input": value})


@pytest.mark.parametrize("model", ["vqa", "overlapping"])
def test_each_item_keeps_its_own_in_a_batch_that_is_split(site: Site, model: str) -> None:
    values: list[Any] = [{"n": n} for n in range(12)]
    values[3] = "bad"
    values[7] = {"raise": True}
    lines = [
        json.dumps(
            {"model": model, "input": value, "parameters": {"top_k": n % 10 + 1},
             "options": {"metadata": {"n": n}} if n % 2 else {}}
        )
        for n, value in enumerate(values)
    ]  # fmt: skip
    body = "\n".join(lines).encode()
    headers = {"content-type": "application/x-ndjson"}
    answers = site.api.http.post("/api/v1/jobs/bulk", content=body, headers=headers)
    for n, line in enumerate(answers.text.splitlines()):
        job = site.client.wait(json.loads(line)["id"], timeout_s=WAIT_S)
        if n in (3, 7):
            assert job.status == "failed"
            continue
        result = site.client.result(job)
        assert given(result, "id") == job.id
        assert given(result) == {**DEFAULTS, "top_k": n % 10 + 1}
        assert given(result, "metadata") == ({"n": n} if n % 2 else {})


def test_a_celery_client_sends_parameters_by_name(site: Site) -> None:
    def ask(parameters: Any) -> Any:
        kwargs = {"model": "vqa", "input": 1, "parameters": parameters}
        return site.app.send_task("headrace.predict", kwargs=kwargs, queue="headrace.vqa")

    assert given(send(site.app, "vqa", 1).get(timeout=GET_TIMEOUT_S)) == DEFAULTS
    assert given(ask(None).get(timeout=GET_TIMEOUT_S)) == DEFAULTS
    result = ask({"top_k": 2, "question": "who"}).get(timeout=GET_TIMEOUT_S)
    assert given(result) == {**DEFAULTS, "top_k": 2, "question": "who"}
    for wrong, says in (
        ({"topk": 2}, "unknown parameter 'topk'; did you mean top_k"),
        ({"top_k": 11}, "expected an integer from 1 to 10, got 11"),
        ([1], "parameters: expected `object | null`, got `array`"),
    ):
        with pytest.raises(InvalidRequest, match=says.replace("|", r"\|")):
            ask(wrong).get(timeout=GET_TIMEOUT_S)
    missing = send(site.app, "nested", 1)
    with pytest.raises(InvalidRequest, match="parameter question is missing"):
        missing.get(timeout=GET_TIMEOUT_S)


def test_each_stage_of_a_pipeline_gets_what_its_model_declares(site: Site) -> None:
    parameters = {"top_k": 4, "question": "who", "language": "en"}
    body = {"model": "both", "input": 1, "parameters": parameters,
            "options": {"metadata": {"a": 1}}}  # fmt: skip
    result = site.post("/api/v1/jobs", json=body, headers={"x-tenant": "blue"})
    assert given(result["vqa"]) == {**DEFAULTS, "top_k": 4, "question": "who"}
    assert given(result["second"]) == {"top_k": 4, "language": "en"}
    assert given(result["vqa"], "headers")["x-tenant"] == "blue"
    assert given(result["second"], "headers") == {}
    assert given(result["second"], "metadata") == {"a": 1}
    body["parameters"] = {"topk": 4}
    assert "did you mean top_k?" in site.refused("/api/v1/jobs", json=body)
    files = {"image": ("x.png", PNG, "image/png"), "other": (None, "x")}
    result = site.post("/api/v1/models/both/jobs?language=fr", files=files)
    for stage in ("vqa", "second"):
        assert result[stage]["input"] == {"image": f"bytes:{NESTED['base64']}", "other": "x"}
    kwargs = {"model": "both", "input": 1, "parameters": {"topk": 1}}
    task = site.app.send_task("headrace.predict", kwargs=kwargs, queue="headrace.both")
    with pytest.raises(InvalidRequest, match="did you mean top_k"):
        task.get(timeout=GET_TIMEOUT_S)


def test_the_model_shows_its_parameters(site: Site) -> None:
    model = site.client.model("vqa")
    assert model.parameters == declared()
    assert model.headers == ["accept-language", "x-tenant"]
    both = site.client.model("both").parameters
    assert both is not None
    assert list(both) == ["question", "top_k", "threshold", "flag", "language"]


def test_the_client_sends_parameters_and_images_inside_mappings(site: Site) -> None:
    image = Image.new("RGB", (2, 2))
    parameters = {"question": "who", "top_k": 3}
    job = site.client.submit("nested", {"images": [image, PNG], "n": 1}, parameters=parameters)
    result = site.client.result(job, timeout_s=WAIT_S)
    assert given(result) == parameters
    assert given(result, "parts") == {"images[0]": "image/png", "images[1]": "image/png"}
    assert result["input"]["images"][1] == f"bytes:{NESTED['base64']}"
    assert base64.b64decode(result["input"]["images"][0][6:])[:4] == b"\x89PNG"
    mapped = list(site.client.map("vqa", [1, 2], parameters={"top_k": 5}))
    assert [given(one.value) for one in mapped] == [{**DEFAULTS, "top_k": 5}] * 2
    [sent] = site.client.submit_many("vqa", [1], parameters={"flag": True})
    assert not isinstance(sent, Exception)
    assert given(site.client.result(sent, timeout_s=WAIT_S))["flag"] is True
    with pytest.raises(InvalidRequest, match="did you mean top_k"):
        site.client.submit("vqa", 1, parameters={"topk": 1})


def test_the_asyncio_client_sends_parameters_too(site: Site) -> None:
    async def asked() -> Any:
        async with AsyncClient(site.api.url) as client:
            job = await client.submit("vqa", 1, parameters={"top_k": 6})
            return await client.result(job, timeout_s=WAIT_S)

    assert given(asyncio.run(asked()))["top_k"] == 6
