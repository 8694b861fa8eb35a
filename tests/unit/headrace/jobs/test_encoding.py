"""Long inputs in our binary form are decoded in one pass, to what the slow way gives."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import msgspec
import pytest

from headrace.errors import InvalidRequest
from headrace.jobs import encoding
from headrace.jobs.encoding import binary_input, decode_input, decode_nested

BODY = bytes(range(256)) * 8
TEXT = base64.b64encode(BODY).decode()


def found(raw: bytes) -> tuple[Any, ...]:
    try:
        return decode_input(raw)
    except InvalidRequest as error:
        return ("refused", error.message)


def said(base64_text: str = TEXT, kind: str = "image/jpeg", **more: str) -> bytes:
    return json.dumps({"content_type": kind, "base64": base64_text, **more}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        binary_input(BODY, "image/jpeg"),
        said(),
        said(kind="image/jpeg; q=1"),
        said(kind="text/plain"),
        said(base64.b64encode("é".encode() * 999).decode(), "text/plain; charset=utf-8"),
        said(base64.b64encode(json.dumps([BODY.hex()]).encode()).decode(), "application/json"),
        said(kind="application/json"),
        said(TEXT[:-1]),
        said(TEXT + "="),
        said(TEXT[:1000] + "\n" + TEXT[1000:]),
        said(TEXT[:1000] + "-" + TEXT[1001:]),
        said(TEXT[:1000] + "é" + TEXT[1000:]),
        said(more="x"),
        said(kind="image/é"),
        b'{"base64":"%b","content_type":"image/png"}' % TEXT.encode(),
        b'{"content_type":"a/b","base64":"%b","base64":"QQ=="}' % TEXT.encode(),
        b'{"content_type":7,"base64":"%b"}' % TEXT.encode(),
        b'{"content_type":"a/b","base64":["%b"]}' % TEXT.encode(),
        b'{"content_type":"a/b","base64":"%b"} x' % TEXT.encode(),
        b'{"content_type":"a/b","base64":"%b"' % TEXT.encode(),
        b'{ "content_type" : "a\\/b", "base64" : "%b" }' % TEXT.replace("/", "\\/").encode(),
        b'{"__type__":"base64","__value__":"%b"}' % TEXT.encode(),
        b'{"__type__":"bytes","__value__":"%b"}' % TEXT.encode(),
    ],
)
def test_it_is_what_the_slow_way_gives(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(raw) > encoding._ONE_PASS_BYTES
    quick = found(raw)
    monkeypatch.setattr(encoding, "_ONE_PASS_BYTES", sys.maxsize)
    assert found(raw) == quick


def test_it_reads_what_stands_within_other_json() -> None:
    raw = msgspec.json.decode(b'{"input":%b}' % said(), type=dict[str, msgspec.Raw])["input"]
    assert decode_input(raw) == (BODY, "image/jpeg")


def test_bytes_inside_json_are_decoded_in_both_forms() -> None:
    value = {
        "ours": {"content_type": "application/json", "base64": "WzFd"},
        "kombu": [{"__type__": "base64", "__value__": "AP8="}],
        "more": {"content_type": "a/b", "base64": "AA==", "x": 1},
        "neither": {"__type__": "uuid", "__value__": "x"},
        "numbers": [1, 2],
    }
    found, types = decode_nested(value)
    assert found == {
        **value, "ours": [1], "kombu": [b"\0\xff"],
    }  # fmt: skip
    assert types == {"ours": "application/json", "kombu[0]": "application/octet-stream"}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"content_type": "a/b", "base64": "!"}, "the input's base64 cannot be read"),
        ({"content_type": "a/b", "base64": 3}, "the input's base64 cannot be read"),
        ({"content_type": "text/plain", "base64": "/w=="}, "is not UTF-8"),
        ({"content_type": "application/json", "base64": "ew=="}, "is not JSON"),
    ],
)
def test_a_part_that_cannot_be_decoded_is_named_by_its_place(
    part: dict[str, Any], says: str
) -> None:
    for value, place in (
        ({"a": part}, "a"),
        ([0, part], "[1]"),
        ({"a": [{"b-c": part}]}, "a[0].b-c"),
        ({"a.b": {'"': part}}, '["a.b"]["\\""]'),
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode_nested(value)
        assert caught.value.message.startswith(f"{place}: ")
        assert says in caught.value.message
