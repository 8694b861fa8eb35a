"""A whole answer in one go, in place of the two messages that ASGI has for it.

uvicorn's `send` takes a head and a body apart that we have together: two coroutines, two dicts, and
two searches of each header cost it more than the rest of an answer. What it keeps of an answer is
kept here as it does; `tests/unit/api/http/test_uvicorn_protocol.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)


def write_whole(
    send: Any,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    rest: Sequence[bytes] = (),
) -> bool:
    """Write a whole answer at once; False where that must be left to `send`, and nothing was done.

    To a client that takes it, this is what uvicorn's `send` does with both of its messages.

    Args:
        send: ASGI's. Only where it is uvicorn's own has nobody asked to see the answer.
        status: one that has a body.
        headers: with names in small letters and the body's content-length, without `connection`.
        body: all of it, or its beginning.
        rest: what follows, where it is in parts.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if not cycle.keep_alive or cycle.access_log or cycle.scope["method"] == "HEAD":
        return False
    # Where this finds something, uvicorn refuses the answer.
    if HEADER_VALUE_RE.search(b" ".join([value for _, value in headers])):
        return False
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    cycle.chunked_encoding = False
    begin = b"%b%b\r\n%b" % (STATUS_LINE[status], b"".join(lines), body)
    if rest:
        cycle.transport.writelines((begin, *rest))
    else:
        cycle.transport.write(begin)
    cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True
