"""The log of changes that API keys and operators make, bounded, in Redis.

Changes of models are in the log of the registry, with their author. The API lists both together.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.redis import keys
from headrace.redis.scripts import Command, fields_of

#: How many changes the log keeps, about.
LOG_MAX: Final = 5_000
DETAIL_MAX_CHARS: Final = 500
#: The author of a change by a client, if the server requires no API keys.
NO_KEY: Final = "a client without an API key"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change, as the log has it; `AuditEntry` explains the members."""

    by: str
    action: str
    target: str = ""
    detail: str = ""


def noted(note: Note) -> Command:
    """Return the command that adds a change to the log."""
    short = msgspec.structs.replace(note, detail=note.detail[:DETAIL_MAX_CHARS])
    text = msgspec.json.encode(short)
    return ("XADD", keys.AUDIT, "MAXLEN", "~", LOG_MAX, "*", "e", text)


def read_notes(before: str, count: int) -> Command:
    """Return the command that reads the newest changes before an entry; "+" for the newest."""
    return ("XREVRANGE", keys.AUDIT, before, "-", "COUNT", count)


def notes_of(reply: Any) -> list[tuple[str, Note]]:
    """Return the changes of a reply with their ids; those of another version are left out."""
    found = []
    for entry, fields in reply:
        try:
            found.append((entry.decode(), msgspec.json.decode(fields_of(fields)[b"e"], type=Note)))
        except (msgspec.MsgspecError, KeyError):
            continue
    return found
