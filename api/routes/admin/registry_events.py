"""`GET /api/v1/registry/events`: changes of the models, as server-sent events.

The id of an event is that of its entry in the log of changes. So any API process can continue the
stream of another one, as far back as the log reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from api.components.model_registry import ModelRegistry
from api.http.messages import Request, StreamingReply
from api.routes.admin.registry import registry_of
from api.routes.event_stream import (
    EVENT_STREAM,
    HEAD,
    STREAM_HEADERS,
    EventStream,
    EventWriter,
    StreamEvent,
    take_stream,
)
from api.routes.jobs.events import EventsQuery
from api.routes.jobs.job import write_nothing
from api.services import Services
from api.submission.decoding import read_query
from headrace.errors import BrokerError

EVENTS: Final = "/api/v1/registry/events"
#: An id of this API; any other is ignored.
_ID: Final = re.compile("[0-9]{1,15}-[0-9]{1,15}")


async def get_registry_events(services: Services, request: Request) -> StreamingReply:
    """Stream the changes of all models from now, or from the last event that the client has."""
    last_id = read_query(request, EventsQuery).last_event_id
    if not isinstance(last_id, str):
        last_id = request.header(b"last-event-id").decode("latin-1")
    registry = registry_of(services)
    last = last_id if _ID.fullmatch(last_id) else await registry.log_end()
    if request.method == "HEAD":
        return StreamingReply(200, write_nothing, EVENT_STREAM, STREAM_HEADERS)
    take_stream(services, request)
    # The id alone: a client whose connection is lost before the first change misses none.
    writer = EventWriter(HEAD + b"id: %s\n\n" % last.encode())
    return EventStream(
        services, request, _changes(registry, last), writer,
        most_s=services.settings.event_stream_max_s,
    ).reply()  # fmt: skip


@contextlib.contextmanager
def _changes(registry: ModelRegistry, last: str) -> Iterator[_Changes]:
    with registry.listening() as changed:
        yield _Changes(registry, changed, last)


class _Changes:
    """The changes after the last one that the client has."""

    def __init__(self, registry: ModelRegistry, changed: asyncio.Event, last: str) -> None:
        self._registry = registry
        self._changed = changed
        self._last = last
        self.wake = changed.set

    @property
    def over(self) -> bool:
        return self._registry.closing

    async def look(self) -> list[StreamEvent]:
        self._changed.clear()
        events = []
        with contextlib.suppress(BrokerError):  # the next look finds them
            for entry, change in await self._registry.log_after(self._last):
                events.append(StreamEvent(entry, "change", msgspec.json.encode(change)))
                self._last = entry
        return events

    async def woken(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
