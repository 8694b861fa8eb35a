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
from headrace.jobs.encoding import binary_input, decode_input

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
