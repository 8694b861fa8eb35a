"""The lines of a batch: split from chunks, read as requests, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from extensions.openai.batches.files import FileReader, StoredFile
from extensions.openai.batches.input import (
    ERRORS_MAX,
    BadLine,
    BatchLine,
    Requests,
    ValidationResult,
    read_lines,
    validate,
)
from extensions.openai.schema.requests import CHAT, COMPLETIONS, EMBEDDINGS

MODEL = "/api/v1/models/echo/jobs"
JOBS = "/api/v1/jobs"
MODELS = {"echo": ["1.0"], "other": ["2.0"]}
LIMIT = 200


class Pieces(FileReader):
    """A file that is read in pieces of one length."""

    def __init__(self, text: bytes, length: int) -> None:
        self.file = StoredFile(
            id="file-0", bytes=len(text), created_at=0, expires_at=0, filename="f", purpose="batch"
        )
        self._text = text
        self._length = length

    def chunks(self, at: int = 0) -> Iterator[bytes]:
        for begin in range(at, len(self._text), self._length):
            yield self._text[begin : begin + self._length]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000])
def test_lines_are_cut_and_gone_on_with_anywhere(length: int) -> None:
    text = (
        b"\xef\xbb\xbfone\r\n\n  \ntwo\n" + b"x" * (LIMIT + 1) + b"\n" + b"y" * LIMIT + b"\n\nlast"
    )
    lines = list(read_lines(Pieces(text, length), LIMIT))
    assert [(line.number, line.text) for line in lines] == [
        (1, b"one\r"), (4, b"two"), (5, None), (6, b"y" * LIMIT), (8, b"last"),
    ]  # fmt: skip
    for at, line in enumerate(lines):
        rest = list(read_lines(Pieces(text, length), LIMIT, line.end, line.number))
        assert rest == lines[at + 1 :]


@pytest.mark.parametrize("text", [b"", b"\n", b" \n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_of_nothing(text: bytes) -> None:
    assert list(read_lines(Pieces(text, 1), LIMIT)) == []


def line_text(**changes: Any) -> bytes:
    line = {"custom_id": "a", "method": "POST", "url": MODEL, "body": 1, **changes}
    return json.dumps({name: value for name, value in line.items() if value != "LEFT OUT"}).encode()


def job(body: Any, **changes: Any) -> bytes:
    return line_text(**{"url": JOBS, "body": body, **changes})


@pytest.mark.parametrize(
    ("text", "code", "param", "message"),
    [
        (b"{", "invalid_json_line", None, "not JSON"),
        (b"[1]", "invalid_json_line", None, "not a JSON object"),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None, "not JSON"),
        (b"\xff\xfe{\x00", "invalid_json_line", None, "UTF-16"),
        (
            line_text(custom_id="LEFT OUT"),
            "missing_required_parameter",
            "custom_id",
            "no custom_id",
        ),
        (line_text(custom_id=7), "invalid_type", "custom_id", "custom_id must be a string"),
        (line_text(custom_id=""), "invalid_custom_id", "custom_id", "1 to 512"),
        (line_text(custom_id="x" * 513), "invalid_custom_id", "custom_id", "1 to 512"),
        (line_text(method="GET"), "invalid_method", "method", "must be 'POST', not 'GET'"),
        (line_text(method="LEFT OUT"), "missing_required_parameter", "method", "no method"),
        (line_text(url="/api/v1/models/other/jobs"), "mismatched_url", "url", MODEL),
        (line_text(url=JOBS), "mismatched_url", "url", MODEL),
        (line_text(body="LEFT OUT"), "missing_required_parameter", "body", "no body"),
        (line_text(url=MODEL + "?prio=1"), "invalid_url", "url", "prio"),
        (line_text(url=MODEL + "?priority=10"), "invalid_url", "url", "<= 9"),
        (line_text(url=MODEL + "?metadata=nope"), "invalid_url", "url", "url"),
    ],
)
def test_a_line_that_is_no_request(text: bytes, code: str, param: str | None, message: str) -> None:
    with pytest.raises(BadLine) as caught:
        Requests(MODEL, MODELS).read(text)
    error = caught.value.at(17)
    assert (error.code, error.param, error.line) == (code, param, 17)
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (job(1), "invalid_body", "object"),
        (job({"input": 1}), "invalid_body", "model"),
        (job({"model": "echo"}), "invalid_body", "either input or input_ref"),
        (job({"model": "echo", "input": 1, "input_ref": "file:/x"}), "invalid_body", "either"),
        (job({"model": "nix", "input": 1}), "model_not_found", "the models are: echo, other"),
        (job({"model": "other", "input": 1, "version": "1.0"}), "model_not_found", "version 2.0"),
        (job({"model": "echo", "input": 1, "id": "mine"}), "invalid_body", "id"),
        (job({"model": "echo", "input": 1, "options": {"priority": -1}}), "invalid_body", ">= 0"),
        (
            job({"model": "echo", "input": 1, "options": {"metadata": {"x": "y" * 5000}}}),
            "invalid_body",
            "metadata",
        ),
        (job({"model": "echo", "input": 1}, url=JOBS + "?priority=1"), "invalid_url", "options"),
    ],
)
def test_a_job_that_is_none(text: bytes, code: str, message: str) -> None:
    with pytest.raises(BadLine) as caught:
        Requests(JOBS, MODELS).read(text)
    assert caught.value.error.code == code
    assert message in caught.value.error.message


def test_a_model_that_is_gone() -> None:
    with pytest.raises(BadLine, match="no model 'echo'"):
        Requests(MODEL, {}).read(line_text())


@pytest.mark.parametrize(
    ("url", "body", "message"),
    [
        (CHAT, {"model": "echo"}, "body: messages is missing"),
        (CHAT, {"messages": [{}]}, "body: model is missing"),
        (CHAT, {"model": "nix", "messages": [{}]}, "no model 'nix'"),
        (CHAT, {"model": "echo", "messages": [{}], "n": 2}, "n is above 1"),
        (CHAT, {"model": "echo", "messages": [{}], "stream": True}, "stream is not for batches"),
        (
            CHAT,
            {"model": "echo", "messages": [{}], "tools": [{}]},
            "tools.0.: .*missing",
        ),
        (CHAT, {"model": "echo", "messages": [{}], "metadata": {"a": "b" * 5000}}, "metadata has"),
        (COMPLETIONS, {"model": "echo", "prompt": ["a", "b"]}, "prompt has 2 texts"),
        (EMBEDDINGS, {"model": "echo", "input": [[1], [2]]}, "input has 2 texts"),
        (EMBEDDINGS, [], "body: the body is no JSON object"),
    ],
)
def test_a_request_for_openais_endpoint_that_is_none(url: str, body: Any, message: str) -> None:
    with pytest.raises(BadLine, match=message):
        Requests(url, MODELS).read(line_text(url=url, body=body))
    with pytest.raises(BadLine, match="no query"):
        Requests(url, MODELS).read(line_text(url=url + "?priority=1", body=body))


def test_requests_for_openais_endpoints_become_jobs() -> None:
    body = {"model": "echo", "prompt": "a", "user": "ann", "max_tokens": 3}
    request = Requests(COMPLETIONS, MODELS).read(line_text(url=COMPLETIONS, body=body))
    assert msgspec.json.decode(request.job_line("b.0")) == {
        "model": "echo", "id": "b.0", "input": {"prompt": "a", "max_tokens": 3},
        "options": {"priority": 9, "metadata": {"user": "ann"}},
    }  # fmt: skip
    body = {"model": "echo", "input": ["a"], "encoding_format": "base64"}
    request = Requests(EMBEDDINGS, MODELS).read(line_text(url=EMBEDDINGS, body=body))
    assert request.shown == {"model": "echo", "encoding_format": "base64"}


def test_requests_become_the_lines_of_jobs() -> None:
    request = Requests(MODEL, MODELS).read(line_text(body={"a": [1.50, None]}))
    assert msgspec.json.decode(request.job_line("b.0")) == {
        "model": "echo", "id": "b.0", "input": {"a": [1.5, None]}, "options": {"priority": 9},
    }  # fmt: skip
    request = Requests(MODEL, MODELS).read(
        line_text(body=None, url=MODEL + "?priority=3&timeout=2.5")
    )
    assert msgspec.json.decode(request.job_line("b.0"))["options"] == {
        "priority": 3,
        "timeout": 2.5,
    }
    assert b'"input":null' in request.job_line("b.0")
    body = {"model": "other", "input_ref": "file:/x", "content_type": "image/png", "version": "2.0"}
    request = Requests(JOBS, MODELS).read(job({**body, "options": {"max_retries": 0}}))
    assert msgspec.json.decode(request.job_line("b.1")) == {
        **body, "id": "b.1", "options": {"priority": 9, "max_retries": 0},
    }  # fmt: skip
    # What is forgotten before its row is written would run again.
    for request in (
        Requests(MODEL, MODELS).read(line_text(url=f"{MODEL}?result_ttl=1")),
        Requests(JOBS, MODELS).read(
            job({"model": "echo", "input": 1, "options": {"result_ttl": 1}})
        ),
    ):
        sent = msgspec.json.decode(request.job_line("b.0"))
        assert sent["options"] == {"priority": 9, "result_ttl": 86_400}
    longer = Requests(MODEL, MODELS).read(line_text(url=f"{MODEL}?result_ttl=90000"))
    assert b'"result_ttl":90000' in longer.job_line("b.0")


def looked(*texts: bytes | None, max_lines: int = 10_000) -> ValidationResult:
    lines = [BatchLine(number, 0, text) for number, text in enumerate(texts, 1)]
    return validate(lines, Requests(MODEL, MODELS), max_lines=max_lines, limit_bytes=LIMIT)


def test_a_file_is_looked_at_as_a_whole() -> None:
    assert looked(line_text(), line_text(custom_id="b")) == ValidationResult(total=2)
    found = looked(line_text(), b"{", None, line_text())
    assert [(error.line, error.code) for error in found.errors] == [
        (2, "invalid_json_line"), (3, "line_too_long"), (4, "duplicate_custom_id"),
    ]  # fmt: skip
    assert [error.code for error in looked().errors] == ["empty_file"]
    found = looked(*[line_text(custom_id=str(n)) for n in range(4)], max_lines=3)
    assert [(error.line, error.code) for error in found.errors] == [(4, "too_many_lines")]
    found = looked(*[b"{"] * (ERRORS_MAX + 50))
    assert (len(found.errors), found.bad) == (ERRORS_MAX, ERRORS_MAX + 50)


def test_options_that_are_nested_too_deeply_make_a_bad_line() -> None:
    deep = '{"a":' + "[" * 3000 + "]" * 3000 + "}"
    with pytest.raises(BadLine, match="recursion") as raised:
        Requests(MODEL, MODELS).read(line_text(url=f"{MODEL}?metadata={deep}"))
    assert raised.value.error.code == "invalid_url"


def test_parameters_are_in_the_query_or_in_the_body() -> None:
    requests = Requests(MODEL, MODELS, {"top_k": None})
    request = requests.read(line_text(url=f"{MODEL}?top_k=3&priority=2"))
    sent = msgspec.json.decode(request.job_line("b.0"))
    assert (sent["parameters"], sent["options"]) == ({"top_k": "3"}, {"priority": 2})
    with pytest.raises(BadLine, match="topk"):
        requests.read(line_text(url=f"{MODEL}?topk=3"))
    # The API knows the model's parameters, and checks them.
    request = Requests(JOBS, MODELS).read(
        job({"model": "other", "input": 1, "parameters": {"a": [1]}})
    )
    assert request.job.parameters == {"a": [1]}


def test_an_endpoint_can_name_a_version() -> None:
    url = "/api/v1/models/other/versions/2.0/jobs"
    request = Requests(url, MODELS).read(line_text(url=f"{url}?priority=3"))
    assert (request.job.model, request.job.version) == ("other", "2.0")
    assert json.loads(request.job_line("b.0"))["version"] == "2.0"
    wrong = url.replace("2.0", "3.0")
    with pytest.raises(BadLine, match=r"model other has version 2.0, not '3.0'"):
        Requests(wrong, MODELS).read(line_text(url=wrong))
