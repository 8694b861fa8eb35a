"""The input that a handler of TorchServe gets for each kind of body."""

from __future__ import annotations

from typing import Any

import pytest

from api.http.bodies import Payload
from api.http.messages import Message, Request
from extensions.torchserve.api.predictions.inputs import Given, read_input
from headrace.errors import InvalidRequest, UnsupportedMedia
from headrace.jobs.values.encoding import decode_input, decode_nested, decode_payload

LIMIT = 10_000
BINARY = "application/octet-stream"


async def nothing() -> Message:
    raise AssertionError("the body is given")


def request(kind: str = "", query: str = "", **headers: str) -> Request:
    found = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    if kind:
        found.append((b"content-type", kind.encode()))
    scope: dict[str, Any] = {
        "method": "POST", "path": "/predictions/m", "query_string": query.encode(),
        "headers": found,
    }  # fmt: skip
    return Request(scope, nothing)


def given(body: bytes, kind: str = "", query: str = "", *, decode: bool = True) -> Given:
    with_query = bool(query)
    return read_input(request(kind, query), body, LIMIT, decode=decode, with_query=with_query)


def value(body: bytes, kind: str = "", *, decode: bool = True) -> tuple[Any, str]:
    """The value of a body, and its type, as a model process decodes them."""
    found = given(body, kind, decode=decode)
    assert not found.nested
    if isinstance(found.input, Payload):
        return decode_payload(found.input.body, found.input.kind)
    return decode_input(found.input)


def fields(body: bytes, kind: str = "", query: str = "") -> dict[str, tuple[Any, str]]:
    """The values of a form by name, and their types."""
    found = given(body, kind, query)
    assert found.nested
    assert isinstance(found.input, bytes)
    values, types = decode_nested(decode_input(found.input)[0])
    assert len(values) == len(types)
    return {
        name: (one, types[name if name.isidentifier() else f'["{name}"]'])
        for name, one in values.items()
    }


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=latin1"])
def test_json_is_parsed(kind: str) -> None:
    assert value(b' {"a": [1, 2.50]}\n', kind) == ({"a": [1, 2.5]}, "application/json")


def test_json_with_nan_is_parsed_as_python_does() -> None:
    assert str(value(b'{"a": NaN}', "application/json")[0]) == "{'a': nan}"


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": "\xff"}', b"[" * 100_000])
def test_json_that_cannot_be_parsed_is_bytes(body: bytes) -> None:
    assert value(body, "application/json") == (body, BINARY)


@pytest.mark.parametrize(
    "body",
    [
        b'{"content_type": "image/png", "base64": "aGk="}',
        b'{"base64": "aGk=", "content_type": "x"}',
        b'{"content_type": "x", "base\\u00364": 5}',
        b'{"__type__": "bytes", "__value__": "hi"}',
    ],
)
@pytest.mark.parametrize("size", [0, LIMIT])
def test_json_that_is_like_a_binary_input_stays_json(body: bytes, size: int) -> None:
    body += b" " * size
    found, kind = value(body, "application/json")
    assert kind == "application/json"
    assert isinstance(found, dict)
    assert len(found) == 2


def test_other_json_with_these_words_stays_json() -> None:
    body = b'{"content_type": "x", "base64": "aGk=", "more": 1}'
    assert value(body, "application/json")[0]["more"] == 1


def test_text_is_text() -> None:
    assert value("é".encode(), "text/csv; charset=utf-8") == ("é", "text/csv")


def test_text_that_is_not_utf8_is_bytes() -> None:
    assert value(b"\xe9", "text/plain") == (b"\xe9", BINARY)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "image/jpeg",
        "application/vnd.api+json",
        "Application/JSON",
        "nonsense",
        "multipart/mixed",
    ],
)
def test_all_else_is_bytes(kind: str) -> None:
    assert value(b'{"a": 1}', kind) == (b'{"a": 1}', BINARY)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_nothing_is_decoded_where_that_is_off(kind: str) -> None:
    assert value(b"{}", kind, decode=False) == (b"{}", BINARY)


def test_a_long_body_is_a_payload() -> None:
    found = given(b"x" * (LIMIT + 1), "image/jpeg").input
    assert found == Payload(b"x" * (LIMIT + 1), BINARY)
    assert isinstance(given(b"[%b]" % (b" " * LIMIT), "application/json").input, Payload)


MULTIPART = (
    b'--x\r\nContent-Disposition: form-data; name="data"; filename="a.jpg"\r\n'
    b"Content-Type: image/jpeg\r\n\r\n\xff\xd8\r\n"
    b'--x\r\nContent-Disposition: form-data; name="doc"; filename="a.json"\r\n'
    b'Content-Type: application/json\r\n\r\n{"a": 1}\r\n'
    b'--x\r\nContent-Disposition: form-data; name="note"; filename="a.txt"\r\n'
    b"Content-Type: text/plain; charset=utf-8\r\n\r\nhello\r\n"
    b'--x\r\nContent-Disposition: form-data; name="plain"\r\n'
    b"Content-Type: application/json\r\n\r\n[1]\r\n"
    b'--x\r\nContent-Disposition: form-data; name="two words"\r\n\r\nfirst\r\n'
    b'--x\r\nContent-Disposition: form-data; name="plain"\r\n\r\n[2]\r\n'
    b"--x--\r\n"
)


def test_files_of_a_form_keep_their_type_and_other_fields_are_bytes() -> None:
    assert fields(MULTIPART, "multipart/form-data; boundary=x") == {
        "data": (b"\xff\xd8", BINARY),
        "doc": ({"a": 1}, "application/json"),
        "note": ("hello", "text/plain"),
        "plain": (b"[2]", BINARY),
        "two words": (b"first", BINARY),
    }


def test_a_form_of_one_part_is_an_object_too() -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\nhi\r\n--x--\r\n'
    assert fields(body, "multipart/form-data; boundary=x") == {"data": (b"hi", BINARY)}


def test_an_urlencoded_form_has_bytes() -> None:
    found = fields(b"a=1&b=%C3%A9+x&a=2&c", "application/x-www-form-urlencoded")
    assert found == {
        "a": (b"2", BINARY),
        "b": ("é x".encode(), BINARY),
        "c": (b"", BINARY),
    }


def test_bytes_that_a_client_calls_a_form_are_the_body() -> None:
    assert value(b"\xff\xd8\x00", "application/x-www-form-urlencoded") == (b"\xff\xd8\x00", BINARY)


def test_parameters_of_the_query_are_fields_beside_the_body() -> None:
    found = fields(b'{"a": 1}', "application/json", "model_name=m&data=x%20y")
    assert found == {
        "model_name": (b"m", BINARY),
        "data": (b"x y", BINARY),
        "body": ({"a": 1}, "application/json"),
    }


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"content_type=a&base64=b", "read as one input"), (b"=1", "no name")],
)
def test_a_form_that_cannot_be_an_object_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        given(body, "application/x-www-form-urlencoded")


def test_a_form_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="boundary"):
        given(b"x", "multipart/form-data")


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(UnsupportedMedia):
        read_input(request("application/json", content_encoding="gzip"), b"{}", LIMIT)
