"""Who may use an operation: the holders of API keys, of a surface's tokens, or everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from api.auth.authenticator import Needs
from api.http.messages import Request
from api.services import Services
from headrace.access.api_key import Scope
from headrace.errors import Forbidden, HeadraceError

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


async def admit(services: Services, request: Request, needs: Needs | None) -> None:
    """Refuse a request that may not use an operation.

    Args:
        needs: what the operation requires; None for an unknown path.

    Raises:
        HeadraceError: the request has no valid API key or token, or comes from a foreign page.
    """
    if services.authenticator is not None:
        await services.authenticator.admit(request, needs)
        return
    if request.has(b"origin"):
        refuse_foreign_page(request, services.settings.cors_origins)
    if services.check_token is not None:
        services.check_token(services, request, needs)


async def may_read(services: Services, request: Request) -> bool:
    """Return whether the caller of an open operation may see what the scope `read` shows."""
    if not services.asks_who_calls:
        return True
    try:
        await admit(services, request, Scope.READ)
    except HeadraceError:
        return False
    return True
