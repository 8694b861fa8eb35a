"""Refuse changes by web pages of other origins, where no API keys are required."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from api.http.messages import Request
from headrace.errors import Forbidden

#: Methods that change nothing.
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def refuse_foreign_page(request: Request, allowed: Sequence[str]) -> None:
    """Refuse a change by a web page of another origin.

    Any page can send a POST to its reader's machine, and can purge a queue without the answer. The
    browser sends the page's origin.

    Raises:
        Forbidden: the page's origin is neither this server's nor in `allowed`.
    """
    origin = request.header(b"origin").decode("latin-1")
    if request.method in _SAFE or origin in allowed:
        return
    if origin.partition("://")[2] != request.header(b"host").decode("latin-1"):
        raise Forbidden(
            f"a web page of {origin[:128]} may change nothing here",
            hint="Add its origin to cors_origins, or require API keys (auth: on).",
        )
