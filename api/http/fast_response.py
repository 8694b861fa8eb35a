"""Write a whole answer at once instead of by the two messages of ASGI.

uvicorn's `send` needs two calls, two dicts and two searches of each header, which takes longer than
the rest of an answer. This sets the same fields of uvicorn's cycle as its `send` does (read from
uvicorn 0.54); `tests/unit/api/http/test_uvicorn_protocol.py` compares the two. It exists for speed
alone: without it, `send_reply` and `send_parts` send ASGI's messages.
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
    """Write a whole answer at once; return False, without any effect, if only `send` can do it.

    The client receives what uvicorn's `send` would write for the two messages.

    Args:
        send: ASGI's; wrapped, by the access log for example, it must receive the messages.
        status: of an answer with a body.
        headers: with lower-case names and the content-length, without `connection`.
        body: the body, or its first part.
        rest: the other parts.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if not cycle.keep_alive or cycle.access_log or cycle.scope["method"] == "HEAD":
        return False
    # uvicorn refuses such a header.
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
