"""The trace context of a job, by W3C Trace Context. Independent of OpenTelemetry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
#: version-trace-parent-flags; later versions may add more after a dash.
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION: Final = "ff"
_FIRST_VERSION: Final = "00"
PARENT_MAX_CHARS: Final = 256
#: The specification requires that at least this much is passed on.
STATE_MAX_CHARS: Final = 512
_STATE_MAX_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Trace(NamedTuple):
    """The trace context of a submit: the headers `traceparent`, and `tracestate` or ""."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        """The id of the trace."""
        return self.parent[3:35]

    @property
    def span_id(self) -> str:
        """The id of the span in which the job was submitted."""
        return self.parent[36:52]


def read_trace(parent: object, state: object = "") -> Trace | None:
    """Read the headers; return None if they name no trace, which is no error.

    An unreadable `tracestate` alone is dropped.
    """
    if not isinstance(parent, str) or len(parent) > PARENT_MAX_CHARS:
        return None
    match = _PARENT.fullmatch(parent.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    wrong = version == _INVALID_VERSION or (version == _FIRST_VERSION and more is not None)
    if wrong or not int(trace_id, 16) or not int(span_id, 16):
        return None
    # Additions of later versions are not passed on.
    return Trace(f"{_FIRST_VERSION}-{trace_id}-{span_id}-{flags}", _state(state))


def trace_in(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Return the trace context in the headers of a request, whose names are in lower case."""
    members: dict[bytes, list[str]] = {TRACEPARENT.encode(): [], TRACESTATE.encode(): []}
    for name, value in headers:
        if name in members:
            members[name].append(value.decode("latin-1"))
    # Two traceparents make no valid one.
    parent, state = (",".join(values) for values in members.values())
    return read_trace(parent, state)


def _state(state: object) -> str:
    if not isinstance(state, str) or not state or len(state) > STATE_MAX_CHARS:
        return ""
    members = [member for item in state.split(",") if (member := item.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    good = all(_MEMBER.fullmatch(member) for member in members)
    if not good or len(members) > _STATE_MAX_MEMBERS or len(keys) < len(members):
        return ""
    return ",".join(members)
