"""What both clients share: addresses, headers, timeouts, and the conversion of httpx2's results."""

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

#: The API key. A variable, because other users can read the arguments of a process.
ENV_API_KEY: Final = "HEADRACE_API_KEY"
#: A file with trusted CA certificates; it replaces the system's.
ENV_CA_FILE: Final = "HEADRACE_CA_FILE"
DEFAULT_URL: Final = "http://127.0.0.1:8080"
CONNECT_TIMEOUT_S: Final = 5.0
EVENT_STREAM: Final = "text/event-stream"
#: uvicorn closes connections after 5 idle seconds; the client must drop them earlier.
KEEPALIVE_S: Final = 4.0


class ClientBase:
    """Base class of both clients.

    Args:
        url: the API's address; default HEADRACE_URL, else http://127.0.0.1:8080.
        timeout_s: maximum seconds for the answer to one request, in addition to the time that the
            request asks the server to wait.
        retry_s: how long a request is repeated while the server is unreachable or full, counted
            from its first failure.
        headers: headers for every request.
        api_key: API key for every request to this server, never sent to another one; default
            HEADRACE_API_KEY.
        ca_file: trusted CA certificates (PEM) that replace the system's; default HEADRACE_CA_FILE.

    Raises:
        InvalidRequest: the address, the key or the file is invalid.
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
        }
        trusted = ca_file or os.environ.get(ENV_CA_FILE)
        if not self.session.url.startswith("https:"):
            # An empty context: loading the system's certificates takes a tenth of a second.
            options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        elif trusted:
            options["verify"] = _trust(trusted)
        self._open(options)

    def _open(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _arguments(self, request: HttpRequest) -> dict[str, Any]:
        """Return the arguments for httpx2's `request`."""
        return {
            "method": request.method,
            "url": request.path,
            "params": request.query,
            "content": request.body,
            "headers": request.headers,
            "timeout": timeout_of(self._timeout_s, request),
        }


def _authorization(api_key: str | None) -> dict[str, str]:
    """Return the authorization header for a key; no header without a key.

    Raises:
        InvalidRequest: the key is not valid in a header. The message does not repeat it.
    """
    key = (os.environ.get(ENV_API_KEY) or "") if api_key is None else api_key
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidRequest(
            "the API key has invalid characters, perhaps a line break",
            hint=f"Set api_key= or {ENV_API_KEY} to the output of `headrace keys create`.",
        )
    return {"authorization": f"Bearer {key}"}


def _trust(ca_file: str | os.PathLike[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the CA file {os.fspath(ca_file)!r} cannot be used: {error}",
            hint=f"Set ca_file= or {ENV_CA_FILE} to a file of PEM certificates.",
        ) from None


def session_for(url: str | None, retry_s: float) -> Session:
    """Return the session for an address.

    Raises:
        InvalidRequest: the address is invalid.
    """
    address = url or os.environ.get(ENV_URL) or DEFAULT_URL
    try:
        parsed = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise _invalid_address(address, str(error)) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _invalid_address(address, "it must begin with http:// or https://")
    return Session(address.rstrip("/"), retry_s)


def _invalid_address(address: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{address!r} is not the address of a server: {why}",
        hint=f"Use one such as {DEFAULT_URL}.",
    )


def timeout_of(timeout_s: float, request: HttpRequest) -> httpx2.Timeout:
    """Return a request's timeouts; the time that the server waits on purpose is added."""
    if request.within_s is not None:
        return httpx2.Timeout(request.within_s)
    return httpx2.Timeout(
        timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s + request.wait_s
    )


def response_of(response: httpx2.Response) -> HttpResponse:
    """Convert an httpx2 response whose body has been read."""
    return HttpResponse(response.status_code, response.headers, response.content)


def is_stream(response: httpx2.Response) -> bool:
    """Return whether the body is an event stream."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status_code == 200 and kind == EVENT_STREAM


def connection_failed(error: httpx2.TransportError) -> ConnectionFailed:
    """Convert an httpx2 error."""
    refused = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
    why = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        why = f"timed out ({type(error).__name__})"
    return ConnectionFailed(why, refused)
