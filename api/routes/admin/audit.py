"""Who changed what: `GET /api/v1/audit`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import read_cursor, read_query
from headrace.access.audit import LOG_MAX, notes_of, read_notes
from headrace.redis.clock import US_PER_S
from headrace.registry.store import AsyncRegistryStore
from headrace.schema.deployment import Audit, AuditEntry
from headrace.schema.members import time_of

PATH: Final = "/api/v1/audit"
#: The id of an entry of a stream.
CURSOR: Final = "[0-9]{1,15}-[0-9]{1,15}"
_US_PER_MS: Final = US_PER_S // 1000
#: The action of an entry that is a change of a model.
REGISTRY: Final = "registry"


class AuditQuery(msgspec.Struct):
    """The query of the log."""

    by: Annotated[str, Meta(description="Only changes by this API key.", max_length=256)] = ""
    target: Annotated[
        str, Meta(description="Only changes of this queue, model, key or worker.", max_length=256)
    ] = ""
    cursor: Annotated[
        str,
        Meta(
            description="That of the page before.", extra_json_schema={"pattern": f"^({CURSOR})?$"}
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


async def list_audit(services: Services, request: Request) -> Reply:
    """List who changed what, the newest first; changes of models are among them."""
    query = read_query(request, AuditQuery)
    # An entry of either log may be filtered out, so a filtered page reads all that is kept.
    count = LOG_MAX if query.by or query.target else query.limit + 1
    end = "+"
    if query.cursor:
        ms, sequence = read_cursor(CURSOR, query.cursor)
        # Redis refuses the end before its first id.
        end = f"({ms}-{sequence}" if ms or int(sequence) else "0-0"
    (reply,) = await services.queue.read_all([read_notes(end, count)])
    found = [
        _entry(entry, note.by, note.action, note.target, note.detail)
        for entry, note in notes_of(reply)
    ]
    changes = await AsyncRegistryStore(services.queue).log_before(end, count)
    found += [
        _entry(entry, change.by, REGISTRY, change.model, change.what) for entry, change in changes
    ]
    found = [one for one in found if query.by in ("", one.by) and query.target in ("", one.target)]
    found.sort(key=lambda one: tuple(map(int, one.id.split("-"))), reverse=True)
    page = found[: query.limit]
    return json_reply(Audit(page, page[-1].id if len(found) > query.limit else None))


def _entry(entry: str, by: str, action: str, target: str, detail: str) -> AuditEntry:
    at = time_of(int(entry.partition("-")[0]) * _US_PER_MS)
    return AuditEntry(id=entry, at=at, by=by, action=action, target=target, detail=detail)
