"""The lenient parameters of management requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.http.messages import Request
from extensions.torchserve.api.management.parameters import Parameters, read_parameters
from extensions.torchserve.api.replies import TorchServeError
from extensions.torchserve.config.settings import is_allowed


def request(body: bytes = b"", query: bytes = b"", kind: bytes = b"application/json") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {
        "method": "POST", "path": "/models", "query_string": query,
        "headers": [(b"content-type", kind)],
    }  # fmt: skip
    return Request(scope, receive)


def read(*args: bytes) -> Parameters:
    return asyncio.run(read_parameters(request(*args)))


@pytest.mark.parametrize(
    "body",
    [
        b'{"url": "a.mar", "batch_size": 4, "synchronous": true, "x": {"y": 1}}',
        b'{"url": "a.mar", "batch_size": "4", "synchronous": "TRUE"}',
        b"{'url': 'a.mar', 'batch_size': '4', 'synchronous': 'true'}",
        b"{url: a.mar, batch_size: 4.0, synchronous: true}",
    ],
)
def test_a_json_body_may_have_texts_for_numbers_and_single_quotes(body: bytes) -> None:
    found = read(body)
    assert found.text("url") == "a.mar"
    assert found.number("batch_size") == 4
    assert found.flag("synchronous", False)
    assert found.text("x") is None


def test_other_bodies_leave_the_query() -> None:
    for kind in (b"text/plain", b"", b"application/x-www-form-urlencoded"):
        assert read(b'{"url": "b"}', b"url=a%2Fb&url=c", kind).text("url") == "a/b"
    assert read(b" ", b"url=a").text("url") == "a"
    assert read(b'{"url": "b"}', b"url=a", b"Application/JSON; charset=utf-8").text("url") == "b"


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b"[" * 50_000, b"!!int ''", b"a: *b"])
def test_what_is_no_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(TorchServeError) as caught:
        read(body)
    assert caught.value.kind.value == (400, "BadRequestException")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1), ("-1", -1), ("+2", 2), (" 3 ", 3), ("", None), ("x", None), ("1.5", None),
        ("2147483647", 2147483647), ("2147483648", None), ("-", None), ("1_0", None),
        ("\u0661", None), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_read_is_not_given(text: str, number: int | None) -> None:
    assert Parameters({"n": text}).number("n") == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("257", "n is 257: 256 is the largest number that is accepted here. Send another one"),
        ("+0300", "n is +0300: 256 is the largest"),
        ("9" * 5000, f"n is {'9' * 40}: 256 is the largest"),
        ("-99999999999", "n is -99999999999: the least is -2,147,483,647 that is accepted here"),
    ],
)
def test_a_number_above_a_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(TorchServeError) as caught:
        Parameters({"n": text}).limited("n", 256)
    assert caught.value.kind.value == (400, "BadRequestException")
    assert caught.value.message.startswith(message)


def test_a_number_within_its_limit_is_read_and_other_texts_are_not_given() -> None:
    for text, number in (("256", 256), ("-5", -5), ("000000000000007", 7), ("x", None), ("", None)):
        assert Parameters({"n": text}).limited("n", 256) == number
    assert Parameters({}).limited("n") is None


@pytest.mark.parametrize(("text", "flag"), [("true", True), ("TRUE", True), ("nan", False)])
def test_a_flag_is_the_text_true(text: str, flag: bool) -> None:
    assert Parameters({"f": text}).flag("f", True) is flag
    assert Parameters({}).flag("f", True)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://a/x.mar", True), ("HTTP://a/x.mar", True), ("file:///x.mar", True),
        ("https:", False), ("xhttps://a", False),
    ],
)  # fmt: skip
def test_an_expression_matches_a_whole_url(url: str, allowed: bool) -> None:
    assert is_allowed(url, "(, file://.*|http(s)?://.*") is allowed
    assert not is_allowed(url, "")
