"""The registry: who changed what, as a list and as events; what differs from the models file.

The id of an event is that of its entry in the log of changes. So any API process can continue the
stream of another one, as far back as the log reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from api.components.model_registry import ModelRegistry
from api.http.messages import Reply, Request, StreamingReply, json_reply
from api.routes.admin.registry import registry_of
from api.routes.event_stream import HEAD, EventWriter, StreamEvent, stream_events
from api.routes.jobs.events import last_event_id
from api.services import Services
from api.submission.decoding import read_query
from headrace.errors import BrokerError
from headrace.queue.asyncio_tasks import wait_at_most
from headrace.registry.model import HIDDEN_OPTIONS, Difference, differences
from headrace.registry.store import LoggedChange
from headrace.schema.registry import ModelDifference, ModelDifferences

CHANGES: Final = "/api/v1/registry/changes"
DIFFERENCES: Final = "/api/v1/registry/differences"
EVENTS: Final = "/api/v1/registry/events"
_LOG_MAX: Final = 1000
#: An id of this API; any other is ignored.
_ID: Final = re.compile("[0-9]{1,15}-[0-9]{1,15}")


class ChangesQuery(msgspec.Struct):
    """The query of the log of changes."""

    limit: Annotated[int, Meta(ge=1, le=_LOG_MAX)] = 100


class ModelChanges(msgspec.Struct):
    """The newest changes, the last one first."""

    changes: list[LoggedChange]


async def list_changes(services: Services, request: Request) -> Reply:
    """List the newest changes of all models, the last one first."""
    query = read_query(request, ChangesQuery)
    registry = services.registry
    found = [] if registry is None else await registry.store.log(query.limit)
    return json_reply(ModelChanges(found))


async def list_differences(services: Services, _: Request) -> Reply:
    """List where the registered models differ from the models file."""
    found = []
    if services.registry is not None:
        found = differences(await services.registry.read())
    return json_reply(ModelDifferences([_difference(one) for one in found]))


def _difference(one: Difference) -> ModelDifference:
    hidden = one.option in HIDDEN_OPTIONS
    return ModelDifference(
        model=one.model,
        version=one.version,
        option=one.option or None,
        declared=None if hidden else one.declared,
        present=None if hidden else one.present,
    )


async def get_registry_events(services: Services, request: Request) -> StreamingReply:
    """Stream the changes of all models from now, or from the last event that the client has."""
    last_id = last_event_id(request)
    registry = registry_of(services)
    last = last_id if _ID.fullmatch(last_id) else await registry.store.log_end()
    # The id alone: a client whose connection is lost before the first change misses none.
    writer = EventWriter(HEAD + b"id: %s\n\n" % last.encode())
    return stream_events(services, request, _changes(registry, last), writer)


@contextlib.contextmanager
def _changes(registry: ModelRegistry, last: str) -> Iterator[_Changes]:
    with registry.listening() as changed:
        yield _Changes(registry, changed, last)


class _Changes:
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
            for entry, change in await self._registry.store.log_after(self._last):
                events.append(StreamEvent(entry, "change", msgspec.json.encode(change)))
                self._last = entry
        return events

    async def woken(self, seconds: float) -> None:
        await wait_at_most(seconds, self._changed)
