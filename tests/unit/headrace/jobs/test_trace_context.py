"""W3C Trace Context, as it comes in headers and travels in a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.message import decode_message
from headrace.jobs.trace_context import Trace, read_trace, trace_in
from tests.harness.clients.messages import write_message

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def message(trace: Trace | None) -> bytes:
    return write_message("job-1", "digits", "headrace.digits", b'{"x":1}', trace=trace)


def test_a_trace_is_read() -> None:
    trace = read_trace(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert trace == Trace(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert trace.span_id == "b7ad6b7169203331"


@pytest.mark.parametrize(
    "parent",
    [
        "", "00", PARENT[:-1], PARENT.upper(), PARENT.replace("-", "_"), f"{PARENT}-more",
        f"{PARENT}0", f"ff{PARENT[2:]}", f"0g{PARENT[2:]}", f"{PARENT},{PARENT}", f"\n{PARENT}",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        None, 7, ["00"], b"00-", PARENT + "-" * 300,
    ],
)  # fmt: skip
def test_what_is_no_trace_is_passed_over(parent: object) -> None:
    assert read_trace(parent, "a=b") is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read_trace(f"01{PARENT[2:]}") == Trace(PARENT)
    assert read_trace(f"cc{PARENT[2:]}-what-the-future-brings") == Trace(PARENT)
    assert read_trace(f"cc{PARENT[2:]}.what") is None


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("a=1 , b=2", "a=1,b=2"), ("a=1,,b=2", "a=1,b=2"), ("t@v=x", "t@v=x"), ("a=1,a=2", ""),
        ("a", ""), ("A=1", ""), ("a=\t1", ""), ("a=1=2", ""), ("", ""), (7, ""), ("a=é", ""),
        (",".join(f"a{n}=1" for n in range(32)), ",".join(f"a{n}=1" for n in range(32))),
        (",".join(f"a{n}=1" for n in range(33)), ""), ("a=" + "x" * 600, ""),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_read_is_dropped(state: object, kept: str) -> None:
    assert read_trace(PARENT, state) == Trace(PARENT, kept)


@given(st.text(max_size=600), st.text(max_size=600))
def test_nothing_breaks_the_reading(parent: str, state: str) -> None:
    for one in (parent, PARENT + parent, PARENT):
        trace = read_trace(one, state)
        assert trace is None or f"{trace.parent}{trace.state}".isprintable()


def test_it_travels_as_a_header_of_the_message() -> None:
    trace = Trace(PARENT, 'a="quoted\\"')
    raw = message(trace)
    headers = json.loads(raw)["headers"]
    assert (headers["traceparent"], headers["tracestate"]) == trace
    # jobs/claim.lua knows our own messages by their two ends.
    assert raw[:12] == message(None)[:12]
    assert raw[-80:] == message(None)[-80:]
    read = decode_message(raw)
    assert read.trace == trace
    assert read.ours
    assert json.loads(message(Trace(PARENT)))["headers"].get("tracestate") is None


def test_without_one_a_message_is_as_it_was() -> None:
    assert b"trace" not in message(None)
    assert decode_message(message(None)).trace is None


@pytest.mark.parametrize("header", [7, None, ["a"], {"a": 1}, "nonsense"])
def test_a_stock_clients_header_may_be_anything(header: object) -> None:
    document = json.loads(message(None))
    document["headers"] |= {"traceparent": header, "tracestate": header}
    assert decode_message(json.dumps(document).encode()).trace is None


def test_among_the_headers_of_a_request_a_traceparent_that_stands_twice_is_none() -> None:
    parent, state = (b"traceparent", PARENT.encode()), (b"tracestate", b"a=1")
    assert trace_in([(b"host", b"x"), parent, state, (b"tracestate", b"b=2")]) == (
        PARENT, "a=1,b=2",
    )  # fmt: skip
    assert trace_in([parent, state, parent]) is None
    assert trace_in([(b"host", b"x")]) is None
