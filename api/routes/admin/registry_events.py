"""`GET /api/v1/registry/events`: changes of the models, as server-sent events.

The id of an event is that of its entry in the log of changes. So any API process can continue the
stream of another one, as far back as the log reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final

import msgspec

from api.components.model_registry import ModelRegistry
from api.http.messages import ClientGone, HangUp, Request, StreamingReply, Write
from api.routes.admin.registry import registry_of
from api.routes.jobs.events import (
    EVENT_STREAM,
    HEAD,
    HEARTBEAT,
    HEARTBEAT_S,
    STREAM_HEADERS,
    EventsQuery,
    frame,
    put,
)
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
    caller = request.caller
    services.stream_limit.take(caller.key_id, keyed=services.authenticator is not None)
    stream = _ChangeStream(services, registry, request, last)
    return StreamingReply(200, stream.run, EVENT_STREAM, STREAM_HEADERS)


class _ChangeStream:
    """One stream, while it is open."""

    def __init__(
        self, services: Services, registry: ModelRegistry, request: Request, last: str
    ) -> None:
        self._services = services
        self._registry = registry
        self._request = request
        self._last = last

    async def run(self, write: Write) -> None:
        """Write changes until the client is gone, or this process stops."""
        try:
            with (
                self._registry.listening() as changed,
                HangUp(self._request.receive, changed.set) as client,
            ):
                await self._send(write, changed, client)
        finally:
            self._services.stream_limit.leave(self._request.caller.key_id)

    async def _send(self, write: Write, changed: asyncio.Event, client: HangUp) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._services.settings.event_stream_max_s
        # The id alone: a client whose connection is lost before the first change misses none.
        await put(write, HEAD + b"id: %s\n\n" % self._last.encode())
        # Checked before each look: a stream with many changes has no heartbeats.
        while not self._registry.closing and await self._still_admitted():
            changed.clear()
            waits = not await self._send_new(write)
            seconds = min(HEARTBEAT_S, until - loop.time())
            if seconds <= 0:
                return
            try:
                if waits:
                    await asyncio.wait_for(changed.wait(), seconds)
            except TimeoutError:
                await put(write, HEARTBEAT)
            if client.gone:
                raise ClientGone

    async def _send_new(self, write: Write) -> bool:
        """Send the changes that the client does not have; return whether there were any."""
        found = []
        with contextlib.suppress(BrokerError):  # the next look finds them
            found = await self._registry.log_after(self._last)
        for self._last, change in found:
            await put(write, frame(self._last, "change", msgspec.json.encode(change)))
        return bool(found)

    async def _still_admitted(self) -> bool:
        authenticator = self._services.authenticator
        return authenticator is None or await authenticator.still_admits(self._request.caller)
