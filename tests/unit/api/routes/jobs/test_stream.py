"""When a submit is answered with events."""

from __future__ import annotations

import pytest

from api.routes.jobs.stream import prefers_events


@pytest.mark.parametrize(
    ("accept", "events"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream ; charset=utf-8", True),
        (b"text/event-stream, application/json;q=0.9", True),
        (b"text/event-stream, */*", True),
        (b"text/html, text/event-stream;q=0.3", True),
        (b"", False),
        (b"*/*", False),
        (b"text/*", False),
        (b"application/json", False),
        (b"application/json, text/event-stream", False),
        (b"text/event-stream;q=0", False),
        (b"text/event-stream;q=0.5, application/json", False),
        (b"text/event-stream;q=0.5, application/json;q=0.4", True),
    ],
)
def test_events_are_sent_to_those_that_prefer_them_to_json(accept: bytes, events: bool) -> None:
    assert prefers_events(accept) is events
