"""Event streams: what is resumed after a lost connection."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.http.retries import Session
from headrace.client.registry import model_events
from headrace.client.sansio import (
    CloseStream,
    ConnectionFailed,
    HttpResponse,
    OpenStream,
    Pause,
    ReadStream,
    StreamOpened,
    Yield,
)
from headrace.errors import UnexpectedAnswer

OPENED = StreamOpened(HttpResponse(200, {}, b""), reader="reader")
LOST = ConnectionFailed("reset", refused=False)
CHANGE = b'data: {"model": "m", "what": "%s", "by": "b", "at": "2026-11-21T10:15:00+00:00"}\n\n'


def streamed(*chunks: bytes | ConnectionFailed) -> tuple[list[Any], str]:
    """Return what a stream yields, and the id from which it is resumed."""
    stream, items = model_events(Session("http://x", 60)), []
    action = next(stream)
    assert isinstance(action, OpenStream)
    assert "last-event-id" not in action.request.headers
    action = stream.send(OPENED)
    for chunk in chunks:
        assert isinstance(action, ReadStream)
        action = stream.send(chunk)
        while isinstance(action, Yield):
            items += action.items
            action = next(stream)
    assert isinstance(action, CloseStream)
    assert isinstance(next(stream), Pause)
    again = next(stream)
    assert isinstance(again, OpenStream)
    return items, again.request.headers.get("last-event-id", "")


def test_a_stream_that_is_lost_before_its_first_event_is_resumed_where_it_began() -> None:
    assert streamed(b"retry: 10\n\nid: 5-0\n\n", LOST) == ([], "5-0")


def test_an_event_that_has_come_in_part_is_requested_again() -> None:
    whole = b"id: 6-0\nevent: change\n" + CHANGE % b"one"
    items, resumed = streamed(b"id: 5-0\n\n" + whole[:20], whole[20:], whole[:-1], LOST)

    assert [(item.what, item.event_id) for item in items] == [("one", "6-0")]
    assert resumed == "6-0"


def test_an_event_of_a_newer_server_is_ignored() -> None:
    assert streamed(b'id: 7-0\nevent: other\ndata: {"x": 1}\n\n', b"") == ([], "7-0")


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"model": "m"}'])
def test_an_event_that_cannot_be_read_is_an_error(data: bytes) -> None:
    with pytest.raises(UnexpectedAnswer, match="event stream cannot be read"):
        streamed(b"event: change\ndata: %s\n\n" % data)
