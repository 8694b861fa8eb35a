"""What a handler returned for one request, and what clients get."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from extensions.torchserve.handlers.results import Reply, result_of
from headrace.errors import HandlerError
from headrace.handler import Response
from headrace.response import ErrorResponse
from workers.model_process.outcomes import encode_result

PLAIN = Reply()


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True], "ü": "ß"}, [], {}, [[1, [2]]], (1, (2, 3)), {1: "x", None: 2}, 7],
)
def test_json_is_as_pythons_json_writes_it(value: Any) -> None:
    """TorchServe's URLs indent the stored text, which gives the text of Python's json."""
    _, text, kind = encode_result(result_of(value, PLAIN))
    assert (text, kind) == (json.dumps(value).encode(), "")
    stored: bytes = text
    assert msgspec.json.format(stored, indent=2) == json.dumps(value, indent=2).encode()


def test_text_is_a_json_string_and_bytes_are_bytes() -> None:
    assert result_of("a ü", PLAIN) == "a ü"
    assert result_of(b"\x00\xff", PLAIN) == b"\x00\xff"
    assert result_of(bytearray(b"ab"), PLAIN) == b"ab"


def test_a_tensor_is_what_torch_save_writes() -> None:
    saved = result_of(torch.arange(3), PLAIN)
    assert isinstance(saved, bytes)
    assert torch.load(io.BytesIO(saved), weights_only=True).tolist() == [0, 1, 2]


def test_nan_stays_as_pythons_json_writes_it() -> None:
    found = result_of({"x": [math.nan, math.inf]}, PLAIN)
    expected = json.dumps({"x": [math.nan, math.inf]}, indent=2).encode()
    assert found == Response(expected, "application/json")


def loop() -> list[Any]:
    own: list[Any] = []
    own.append(own)
    return own


@pytest.mark.parametrize(
    "value",
    [np.float32(1), np.zeros(2), {1, 2}, object(), "\ud800", loop()],
    ids=["scalar", "array", "set", "object", "surrogate", "loop"],
)
def test_what_json_cannot_express_is_an_error(value: Any) -> None:
    found = result_of(value, PLAIN)
    assert isinstance(found, HandlerError)
    assert "the handler's result cannot be sent" in found.message
    assert found.response is None


@pytest.mark.parametrize(
    ("value", "body", "kind"),
    [
        ("text", b"text", "text/plain; charset=utf-8"),
        (b"raw", b"raw", "application/octet-stream"),
        ({"a": 1}, b'{\n  "a": 1\n}', "application/json"),
    ],
)
def test_headers_and_a_status_go_with_the_body(value: Any, body: bytes, kind: str) -> None:
    found = result_of(value, Reply(headers={"dummy": "1"}))
    assert found == Response(body, kind, 200, {"dummy": "1"})
    assert result_of(value, Reply(201)) == Response(body, kind, 201, {})


def test_the_handlers_content_type_is_the_results() -> None:
    headers = {"Content-Type": "text/html"}
    assert result_of("<p>", Reply(headers=headers)) == Response(b"<p>", "text/html", 200, headers)


@pytest.mark.parametrize("value", ["Invalid response", b"Invalid response"], ids=["text", "bytes"])
def test_a_status_of_an_error_fails_the_job_with_the_body(value: Any) -> None:
    found = result_of(value, Reply(507, "", {"a": "b"}))
    assert isinstance(found, HandlerError)
    assert found.message == "the handler set the status 507: Invalid response"
    assert found.response == ErrorResponse(507, {"a": "b"}, b"Invalid response")


@pytest.mark.parametrize("status", [0, 1, 199, 1000, "200", None])
def test_a_status_that_http_does_not_have_is_an_error(status: Any) -> None:
    found = result_of("text", Reply(status))
    assert isinstance(found, HandlerError)
    assert "is no status of a response" in found.message


@pytest.mark.parametrize("headers", [{"a b": "1"}, {"a": "1\r\nset-cookie: x"}, {"": "1"}])
def test_a_header_that_http_forbids_is_an_error(headers: dict[str, str]) -> None:
    found = result_of("text", Reply(headers=headers))
    assert isinstance(found, HandlerError)
    assert "a header that cannot be sent" in found.message


def test_pieces_come_before_the_result() -> None:
    assert result_of("c", Reply(pieces=["a", "b"])) == "abc"
    assert result_of({"n": 1}, Reply(pieces=["a", b"b"])) == b'ab{\n  "n": 1\n}'
    found = result_of("b", Reply(pieces=["a"], headers={"x": "y"}))
    assert found.body == b"ab"
