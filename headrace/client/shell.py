"""What both shells share: addresses, timeouts, and httpx2's answers and errors in our words."""

from __future__ import annotations

import os
from typing import Any, Final

import httpx2

from headrace import __version__
from headrace.client.exchange import Session
from headrace.client.steps import Answer, Broken, Request
from headrace.errors import InvalidRequest

ENV_URL: Final = "HEADRACE_URL"
DEFAULT_URL: Final = "http://127.0.0.1:8080"
CONNECT_TIMEOUT_S: Final = 5.0
#: uvicorn closes what was idle for 5 s; a connection that is about to be closed is not to be used.
KEEPALIVE_S: Final = 4.0


class Shell:
    """What every client has.

    Args:
        url: the API's address; by default HEADRACE_URL, else http://127.0.0.1:8080.
        timeout_s: how long the server may take to answer one request, not counting what it is
            asked to wait.
        retry_s: how long a request is repeated while the server is away or full, counted from its
            first failure.
        headers: sent with every request.

    Raises:
        InvalidRequest: the address is none.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 60.0,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.session = session_for(url, retry_s)
        self._timeout_s = timeout_s
        self._open({
            "base_url": self.session.url,
            "headers": {"user-agent": f"headrace/{__version__}", **(headers or {})},
            "limits": httpx2.Limits(max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S),
        })  # fmt: skip

    def _open(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _arguments(self, request: Request) -> dict[str, Any]:
        """What httpx2's `request` is called with."""
        return {
            "method": request.method,
            "url": request.path,
            "params": request.query,
            "content": request.body,
            "headers": request.headers,
            "timeout": timeout_of(self._timeout_s, request),
        }


def session_for(url: str | None, retry_s: float) -> Session:
    """The server that a client is for.

    Raises:
        InvalidRequest: the address is none.
    """
    given = url or os.environ.get(ENV_URL) or DEFAULT_URL
    try:
        parsed = httpx2.URL(given)
    except httpx2.InvalidURL as error:
        raise _no_address(given, str(error)) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _no_address(given, "it begins with neither http:// nor https://")
    return Session(given.rstrip("/"), retry_s)


def _no_address(given: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{given!r} is no address of a server: {why}", hint=f"Give one such as {DEFAULT_URL}."
    )


def timeout_of(timeout_s: float, request: Request) -> httpx2.Timeout:
    """A request's timeouts: what the server waits on purpose is not counted."""
    if request.within_s is not None:
        return httpx2.Timeout(request.within_s)
    return httpx2.Timeout(
        timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s + request.wait_s
    )


def answer_of(response: httpx2.Response) -> Answer:
    """An answer whose body has been read."""
    return Answer(response.status_code, response.headers, response.content)


def broken_by(error: httpx2.TransportError) -> Broken:
    """Why no answer came."""
    refused = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
    why = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        why = f"timed out ({type(error).__name__})"
    return Broken(why, refused)
