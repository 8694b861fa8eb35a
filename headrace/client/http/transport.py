"""What both clients share: addresses, headers, timeouts, and all I/O.

The I/O is written once, as coroutines. `AsyncClient` awaits them. `Client` has an httpx2 client
that blocks: its coroutines never wait, so `finished` runs them in one step.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

import httpx2
from typing_extensions import override

from headrace._version import __version__
from headrace.client.http.proxies import proxy_for
from headrace.client.http.retries import Session
from headrace.client.sansio import (
    Action,
    CloseStream,
    ConnectionFailed,
    HttpRequest,
    HttpResponse,
    NextInput,
    OpenStream,
    Pause,
    Plan,
    ReadStream,
    Stream,
    StreamOpened,
    TakenInput,
    Yield,
    take_inputs,
)
from headrace.config.environment import ENV_URL
from headrace.config.secret_files import secret_of
from headrace.errors import ConfigError, InvalidRequest

#: The API key. A variable, because other users can read the arguments of a process.
ENV_API_KEY: Final = "HEADRACE_API_KEY"
#: A file with trusted CA certificates; it replaces the system's.
ENV_CA_FILE: Final = "HEADRACE_CA_FILE"
DEFAULT_URL: Final = "http://127.0.0.1:8080"
CONNECT_TIMEOUT_S: Final = 5.0
EVENT_STREAM: Final = "text/event-stream"
#: uvicorn closes connections after 5 idle seconds; the client must drop them earlier.
KEEPALIVE_S: Final = 4.0

T = TypeVar("T")
C = TypeVar("C", bound="ClientBase")


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

    _http_class: ClassVar[type[httpx2.Client | httpx2.AsyncClient]]

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
        proxy = proxy_for(self.session.url)
        self.session.proxy = "" if proxy is None else proxy.shown
        self._timeout_s = timeout_s
        sent = {
            "user-agent": f"headrace/{__version__}", **_authorization(api_key), **(headers or {}),
        }  # fmt: skip
        options: dict[str, Any] = {
            "base_url": self.session.url,
            # As text, these leave the key and the proxy's password out.
            "headers": httpx2.Headers(sent),
            "proxy": None if proxy is None else httpx2.URL(proxy.url),
            "trust_env": False,
            "limits": httpx2.Limits(max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S),
        }
        trusted = ca_file or os.environ.get(ENV_CA_FILE)
        if not self.session.url.startswith("https:"):
            # An empty context: loading the system's certificates takes a tenth of a second.
            options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        elif trusted:
            options["verify"] = _trust(trusted)
        else:
            options["verify"] = httpx2.create_ssl_context()  # with SSL_CERT_FILE
        self._open(options)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session.url!r})"

    def another(self, kind: type[C]) -> C:
        """Return a client of another kind for the same server, with the same key and limits."""
        other = kind.__new__(kind)
        other.session, other._timeout_s = self.session, self._timeout_s
        other._open(self._options)
        return other

    def _open(self, options: dict[str, Any]) -> None:
        self._options = options
        self._http: Any = self._http_class(**options)
        self._blocks = self._http_class is httpx2.Client

    async def _run(self, plan: Plan[T]) -> T:
        """Run a plan to its end and return its result."""
        reply: object = None
        while True:
            try:
                action = plan.send(reply)
            except StopIteration as ended:
                value: T = ended.value
                return value
            reply = await self._perform(action)

    async def _advance(self, stream: Stream[T], opened: list[EventReader]) -> list[T] | None:
        """Run a stream, noting what it has `opened`, up to its next items; None at its end."""
        reply: object = None
        while True:
            try:
                action = stream.send(reply)
            except StopIteration:
                return None
            if isinstance(action, Yield):
                return action.items
            reply = await self._perform(action)
            if isinstance(reply, StreamOpened) and reply.reader is not None:
                opened[:] = [reply.reader]

    async def _perform(self, action: Action) -> object:
        match action:
            case HttpRequest():
                return await self._send(action)
            case Pause(limit=limit) if limit:
                self.session.on_limit(action)
                await self._perform(Pause(action.seconds))
            case Pause(seconds) if self._blocks:
                time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs this
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case OpenStream(request):
                return await self._open_stream(request)
            case ReadStream(reader):
                return await reader.read()
            case CloseStream(reader):
                await reader.close()
            case NextInput():
                return await self._take_inputs(action)
        return None

    async def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        """Send a request without retries."""
        try:
            response = await _awaited(self._http.request(**self._arguments(request)))
        except httpx2.TransportError as error:
            return connection_failed(error)
        return HttpResponse(response.status_code, response.headers, response.content)

    async def _open_stream(self, request: HttpRequest) -> StreamOpened:
        try:
            built = self._http.build_request(**self._arguments(request))
            response = await _awaited(self._http.send(built, stream=True))
            reader = EventReader(response, blocks=self._blocks)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code == 200 and kind == EVENT_STREAM:
                return StreamOpened(HttpResponse(200, response.headers, b""), reader)
            try:
                body = await reader.read_all()
            finally:
                await reader.close()
        except httpx2.TransportError as error:
            return StreamOpened(connection_failed(error))
        return StreamOpened(HttpResponse(response.status_code, response.headers, body))

    async def _take_inputs(self, action: NextInput) -> TakenInput:
        if isinstance(action.source, Iterator):
            return take_inputs(action.source, action)
        if self._blocks:
            raise InvalidRequest(
                "Client cannot read an asynchronous iterator",
                hint="Use AsyncClient, or give a list or a generator.",
            )
        inputs: list[Any] = []
        deadline = time.monotonic() + action.within_s
        try:
            async for value in action.source:
                inputs.append(value)
                if len(inputs) == action.count or time.monotonic() > deadline:
                    return TakenInput(inputs, ended=False)
        except Exception as error:  # noqa: BLE001 - raised again after the results of earlier inputs
            return TakenInput(inputs, ended=True, error=error)
        return TakenInput(inputs, ended=True)

    def _arguments(self, request: HttpRequest) -> dict[str, Any]:
        timeout_s = self._timeout_s
        timeout = httpx2.Timeout(
            timeout_s,
            connect=min(timeout_s, CONNECT_TIMEOUT_S),
            # The time that the server waits on purpose is added.
            read=timeout_s + request.wait_s,
        )
        return {
            "method": request.method,
            "url": request.path,
            "params": request.query,
            "content": request.body,
            "headers": request.headers,
            "timeout": timeout if request.within_s is None else request.within_s,
        }


class EventReader:
    """Reads the body of an answer as it arrives."""

    def __init__(self, response: httpx2.Response, *, blocks: bool) -> None:
        self._next: Callable[[], Any]
        self._read_all: Callable[[], Any]
        self._close: Callable[[], Any]
        if blocks:
            self._next = partial(next, response.iter_bytes(), b"")
            self._read_all, self._close = response.read, response.close
        else:
            self._next = partial(anext, response.aiter_bytes(), b"")
            self._read_all, self._close = response.aread, response.aclose

    async def read(self) -> bytes | ConnectionFailed:
        """Return the next bytes; b"" at the end."""
        try:
            chunk: bytes = await _awaited(self._next())
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return connection_failed(error)
        return chunk

    async def read_all(self) -> bytes:
        """Return the whole body."""
        body: bytes = await _awaited(self._read_all())
        return body

    async def close(self) -> None:
        """Close the connection of the answer."""
        await _awaited(self._close())


async def _awaited(result: Any) -> Any:
    """Return a result of httpx2; await it first if it is an awaitable."""
    return await result if inspect.isawaitable(result) else result


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of `Client`, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise RuntimeError("a blocking client has waited")


def _key_of_environment() -> str:
    try:
        return secret_of(os.environ, ENV_API_KEY)
    except ConfigError as error:
        raise InvalidRequest(error.message, hint=error.hint) from error


def _authorization(api_key: str | None) -> dict[str, str]:
    """Return the authorization header for a key; no header without a key.

    Raises:
        InvalidRequest: the key is not valid in a header. The message does not repeat it.
    """
    key = _key_of_environment() if api_key is None else api_key
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
    """Return the session for an address; raise InvalidRequest if the address is invalid."""
    address = url or os.environ.get(ENV_URL) or DEFAULT_URL
    problem = "it must begin with http:// or https://"
    try:
        parsed = httpx2.URL(address)
        parsed.raw_host.decode().encode("idna")  # as for every connection
        if parsed.scheme in ("http", "https") and urlsplit(address).hostname:
            return Session(address.rstrip("/"), retry_s)
    except (httpx2.InvalidURL, ValueError) as error:
        problem = str(error)
    raise InvalidRequest(
        f"{address!r} is not the address of a server: {problem}",
        hint=f"Use one such as {DEFAULT_URL}.",
    )


def connection_failed(error: httpx2.TransportError | httpx2.StreamError) -> ConnectionFailed:
    """Convert an httpx2 error."""
    refused = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
    why = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        why = f"timed out ({type(error).__name__})"
    return ConnectionFailed(why, refused)
