"""What both shells share: addresses, timeouts, and httpx2's answers and errors in our words."""

from __future__ import annotations

import os
import ssl
from typing import Any, Final

import httpx2

from headrace._version import __version__
from headrace.client.retries import Session
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse
from headrace.config.paths import ENV_URL
from headrace.errors import InvalidRequest

#: The API key, where the server wants one. A variable, as arguments can be read by other users.
ENV_API_KEY: Final = "HEADRACE_API_KEY"
#: A file with the certificates of who may sign the server's, in place of the system's.
ENV_CA_FILE: Final = "HEADRACE_CA_FILE"
DEFAULT_URL: Final = "http://127.0.0.1:8080"
CONNECT_TIMEOUT_S: Final = 5.0
EVENT_STREAM: Final = "text/event-stream"
#: uvicorn closes what was idle for 5 s; a connection that is about to be closed is not to be used.
KEEPALIVE_S: Final = 4.0


class Transport:
    """What every client has.

    Args:
        url: the API's address; by default HEADRACE_URL, else http://127.0.0.1:8080.
        timeout_s: how long the server may take to answer one request, not counting what it is
            asked to wait.
        retry_s: how long a request is repeated while the server is away or full, counted from its
            first failure.
        headers: sent with every request.
        api_key: sent with every request to this server, and to no other; by default
            HEADRACE_API_KEY.
        ca_file: certificates (PEM) of who may sign the server's, in place of the system's; by
            default HEADRACE_CA_FILE.

    Raises:
        InvalidRequest: the address is none, or the key or the file cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 60.0,
        headers: dict[str, str] | None = None,
        api_key: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.session = session_for(url, retry_s)
        self._timeout_s = timeout_s
        options: dict[str, Any] = {
            "base_url": self.session.url,
            "headers": {
                "user-agent": f"headrace/{__version__}",
                **_authorization(api_key),
                **(headers or {}),
            },
            "limits": httpx2.Limits(max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S),
        }  # fmt: skip
        trusted = ca_file or os.environ.get(ENV_CA_FILE)
        if not self.session.url.startswith("https:"):
            # Trusts nobody: the system's certificates, a tenth of a second to load, are not needed.
            options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        elif trusted:
            options["verify"] = _trusting(trusted)
        self._open(options)

    def _open(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _arguments(self, request: HttpRequest) -> dict[str, Any]:
        """What httpx2's `request` is called with."""
        return {
            "method": request.method,
            "url": request.path,
            "params": request.query,
            "content": request.body,
            "headers": request.headers,
            "timeout": timeout_of(self._timeout_s, request),
        }


def _authorization(api_key: str | None) -> dict[str, str]:
    """The header for a key; none where there is no key.

    Raises:
        InvalidRequest: it cannot stand in a header. The message does not repeat it.
    """
    key = (os.environ.get(ENV_API_KEY) or "") if api_key is None else api_key
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidRequest(
            "the API key has characters that none has (a line break, perhaps)",
            hint=f"Give it as `headrace keys create` has printed it: api_key=, or {ENV_API_KEY}.",
        )
    return {"authorization": f"Bearer {key}"}


def _trusting(ca_file: str | os.PathLike[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the CA file {os.fspath(ca_file)!r} cannot be used: {error}",
            hint=f"Name a file of certificates in PEM: ca_file=, or {ENV_CA_FILE}.",
        ) from None


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


def timeout_of(timeout_s: float, request: HttpRequest) -> httpx2.Timeout:
    """A request's timeouts: what the server waits on purpose is not counted."""
    if request.within_s is not None:
        return httpx2.Timeout(request.within_s)
    return httpx2.Timeout(
        timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s + request.wait_s
    )


def answer_of(response: httpx2.Response) -> HttpResponse:
    """An answer whose body has been read."""
    return HttpResponse(response.status_code, response.headers, response.content)


def is_stream(response: httpx2.Response) -> bool:
    """Whether its body is a stream of events."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status_code == 200 and kind == EVENT_STREAM


def broken_by(error: httpx2.TransportError) -> ConnectionFailed:
    """Why no answer came."""
    refused = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
    why = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        why = f"timed out ({type(error).__name__})"
    return ConnectionFailed(why, refused)
