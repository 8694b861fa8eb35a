"""Long inputs in our binary form are decoded in one pass, to what the slow way gives."""

from __future__ import annotations

import base64
import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest

from headrace.errors import InvalidRequest
from headrace.jobs.values import encoding
from headrace.jobs.values.encoding import binary_input, decode_input, decode_nested

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


RAW = bytes(range(256)) * 8 + b"\xfb\xff\xfe\x01"
PLAIN = base64.b64encode(RAW).decode()
WRAPPED = base64.encodebytes(RAW).decode()


@pytest.mark.parametrize(
    "text",
    [
        f"data:image/png;base64,{PLAIN}",
        f"data:image/png;name=a;BASE64,{PLAIN}",
        f"data:;base64,{PLAIN.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
        base64.urlsafe_b64encode(RAW).decode(),
        base64.urlsafe_b64encode(RAW).decode().rstrip("="),
        PLAIN.rstrip("="),
        WRAPPED,
        WRAPPED.replace("\n", "\r\n"),
        f"  {PLAIN}\n",
    ],
)
def test_base64_that_means_one_thing_alone_is_read(text: str) -> None:
    raw = said(text, "a/b")
    assert decode_input(raw) == (RAW, "a/b")
    assert decode_nested({"x": json.loads(raw)})[0] == {"x": RAW}
    head = encoding.binary_head(raw, 400)
    assert head is not None
    assert head[0] == "a/b"
    assert RAW.startswith(head[1])
    escaped = b'{"content_type":"a/b","base64":"%b"}' % PLAIN.replace("/", "\\/").encode()
    assert decode_input(escaped) == (RAW, "a/b")
    assert encoding.binary_head(escaped, 400) == ("a/b", RAW[:300])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("QUJD!", "has the character '!'"),
        ("QQ==QQ==", "has the character '='"),
        ("é", "has the character"),
        ("QUJDR", "was cut off"),
        ("data:text/plain,hello", "has the character ':'"),
    ],
)
def test_other_base64_is_refused_with_the_cause(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"base64 cannot be read: it {problem}"):
        decode_input(said(text))


def test_wrapped_base64_takes_no_memory_for_each_line() -> None:
    text = b"QUJD " * 200_000
    tracemalloc.start()
    try:
        assert len(encoding.unbase64(text)) == 600_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5 * len(text)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (rb'{"a":"b\ud83d"}', r"half of a surrogate pair, \ud83d,"),
        (rb'{"a":"\ud83dx"}', r"half of a surrogate pair, \ud83d,"),
        (rb'{"a":"\ud83d\u0041"}', r"half of a surrogate pair, \ud83d,"),
        (rb'{"a":"\uDE00"}', r"half of a surrogate pair, \uDE00,"),
        (rb'{"a":"\ud83d\ude00\ude00"}', r"half of a surrogate pair, \ude00,"),
        (rb'{"a":"\\\ud83d"}', r"half of a surrogate pair, \ud83d,"),
        (rb'{"a":"\ud83d\ude00\n\ud83d\"', r"half of a surrogate pair, \ud83d,"),
        (rb'{"a":"\\ud83d"', "Input data was truncated"),
        (rb'{"a":"\ud83d\ude00"', "Input data was truncated"),
        (b'{"a":NaN}', "it has NaN, which JSON does not have; send null"),
        (b"NaN", "it has NaN"),
        (b"[1.5, Infinity]", "it has Infinity"),
        (b'{"a": -Infinity}', "it has -Infinity"),
        (b'{"a":Nope}', "invalid character"),
        ('{"a":1}'.encode("utf-16"), "it is in UTF-16"),
        ('{"a":1}'.encode("utf-16-le"), "it is in UTF-16"),
        ('{"a":1}'.encode("utf-32-be"), "it is in UTF-16 or UTF-32"),
    ],
)
def test_why_it_is_not_json(body: bytes, problem: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    assert problem in encoding.why_not_json(caught.value, body)


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
