"""Who may use an operation: the holders of API keys, of a surface's tokens, or everybody."""

from __future__ import annotations

from collections.abc import Sequence

from api.auth.authenticator import Needs
from api.http.messages import Request
from api.services import Services
from headrace.access.api_key import Scope
from headrace.errors import Forbidden, HeadraceError


def refuse_foreign_page(request: Request, allowed: Sequence[str]) -> None:
    """Raise Forbidden for a change by a web page whose origin is neither ours nor in `allowed`.

    Any page can send a POST to its reader's machine, and can purge a queue without the answer. The
    browser sends the page's origin.
    """
    origin = request.header(b"origin").decode("latin-1")
    if request.method in ("GET", "HEAD", "OPTIONS") or origin in allowed:
        return
    if origin.partition("://")[2] != request.header(b"host").decode("latin-1"):
        raise Forbidden(
            f"a web page of {origin[:128]} may change nothing here",
            hint="Add its origin to cors_origins, or require API keys (auth: on).",
        )


async def admit(services: Services, request: Request, needs: Needs | None) -> None:
    """Raise an error if a request may not use an operation; `needs` is None for an unknown path."""
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
