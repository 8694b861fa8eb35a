"""Downloads a model over HTTPS, from the URLs that the operator allows.

Each redirect is checked like the first URL. A host's name is looked up once, and the connection
goes to an address that was checked. So a later change of the name has no effect. An allowed host
may be in a private network. Link-local, multicast and reserved addresses are refused, and so are
those where clouds serve credentials.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import urljoin

from headrace._version import __version__
from headrace.config.allowed_urls import WebUrl, read_url
from headrace.errors import ConfigError
from headrace.webhooks.allowed_addresses import Address, may_reach, read_address

#: How long a connection may take, and how long the server may send nothing.
IDLE_TIMEOUT_S: Final = 30.0
REDIRECTS_MAX: Final = 5
_CHUNK_BYTES: Final = 1024 * 1024
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_NOT_MODIFIED: Final = 304
#: What an operator's own host may be in, besides the public addresses.
_PRIVATE: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8",
        "fc00::/7", "::1/128",
    )
)  # fmt: skip

Resolve = Callable[[str, int], Sequence[str]]


def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Unreachable(ConfigError):
    """The server does not answer now; what was fetched before may still be used."""


class Download(NamedTuple):
    """An answer with a body; `etag` is that of the body, "" without one."""

    etag: str
    chunks: Iterator[bytes]


class Downloader:
    """Fetches files over HTTP.

    Args:
        permits: returns whether a URL is allowed.
        limit_bytes: the largest file.
        timeout_s: how long one file may take.
        context: how certificates are checked; None for the system's way.
    """

    def __init__(
        self,
        permits: Callable[[str], bool],
        limit_bytes: int,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        resolve: Resolve = look_up,
    ) -> None:
        self._permits = permits
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._context = context
        self._resolve = resolve

    @contextmanager
    def fetch(self, text: str, etag: str = "") -> Iterator[Download | None]:
        """Yield the file at a URL; None if it still has this ETag.

        Raises:
            ConfigError: the URL or a redirect is not allowed, or the answer is no such file.
            Unreachable: no answer, or it has ended early.
        """
        deadline = time.monotonic() + self._timeout_s
        shown = text.partition("?")[0]
        for _ in range(REDIRECTS_MAX + 1):
            url = self._checked(text)
            with self._answered(url, etag, deadline, shown) as answer:
                location = answer.getheader("Location")
                if answer.status in _REDIRECTS and location:
                    text = urljoin(text, location)
                    if url.scheme == "https" and text.startswith("http:"):
                        raise ConfigError(f"{shown}: it redirects from https to http")
                    continue
                if answer.status == _NOT_MODIFIED and etag:
                    yield None
                    return
                self._check_answer(answer, shown)
                chunks = self._chunks(answer, deadline, shown)
                yield Download(answer.getheader("ETag") or "", chunks)
                return
        raise ConfigError(f"{shown}: more than {REDIRECTS_MAX} redirects")

    def _checked(self, text: str) -> WebUrl:
        try:
            url = read_url(text)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if not self._permits(text):
            raise ConfigError(
                f"{url.scheme}://{url.host}{url.path}: this URL is not allowed",
                hint="add its beginning to allowed_urls (HEADRACE_ALLOWED_URLS)",
            )
        return url

    @contextmanager
    def _answered(
        self, url: WebUrl, etag: str, deadline: float, shown: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request; all that fails until it is read is `Unreachable`."""
        headers = {"Accept-Encoding": "identity", "User-Agent": f"headrace/{__version__}"}
        if etag:
            headers["If-None-Match"] = etag
        with contextlib.ExitStack() as cleanup:
            try:
                connection = self._connection(url)
                cleanup.callback(connection.close)
                # A server that sends a byte now and then meets no timeout of the socket.
                left_s = max(0.0, deadline - time.monotonic())
                timer = threading.Timer(left_s, _abort, [connection.sock])
                timer.daemon = True
                cleanup.callback(timer.cancel)
                timer.start()
                connection.request("GET", url.target, headers=headers)
                yield cleanup.enter_context(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                what = str(error) or type(error).__name__
                if time.monotonic() > deadline:
                    what = "it took longer than model_fetch_timeout_s"
                raise Unreachable(f"{shown}: {what}") from error

    def _connection(self, url: WebUrl) -> http.client.HTTPConnection:
        """Return a connection to an address that was checked, under the URL's host."""
        opened = _connect(self._addresses(url), url.port)
        if url.scheme == "http":
            connection = http.client.HTTPConnection(url.host, url.port)
            connection.sock = opened
            return connection
        context = self._context or ssl.create_default_context()
        secure = http.client.HTTPSConnection(url.host, url.port, context=context)
        secure.sock = context.wrap_socket(opened, server_hostname=url.host)
        return secure

    def _addresses(self, url: WebUrl) -> list[Address]:
        try:
            found = [read_address(text) for text in self._resolve(url.host, url.port)]
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{url.host}: the name cannot be looked up: {error}") from None
        good = [address for address in found if may_reach(address, _PRIVATE)]
        if not good:
            raise ConfigError(
                f"{url.host}: its address is link-local, multicast, reserved, or one where a "
                "cloud serves credentials"
            )
        return good

    def _check_answer(self, answer: http.client.HTTPResponse, shown: str) -> None:
        if answer.status >= 500 or answer.status in (408, 429):
            raise Unreachable(f"{shown}: the server answers {answer.status} {answer.reason}")
        if answer.status != 200:
            raise ConfigError(f"{shown}: the server answers {answer.status} {answer.reason}")
        if answer.getheader("Content-Encoding", "identity") != "identity":
            raise ConfigError(f"{shown}: the server sends an encoding that was not asked for")
        if answer.length is not None and answer.length > self._limit_bytes:
            raise self._too_large(shown)

    def _chunks(
        self, answer: http.client.HTTPResponse, deadline: float, shown: str
    ) -> Iterator[bytes]:
        received, length = 0, answer.length
        while True:
            chunk = answer.read1(_CHUNK_BYTES)
            # An aborted connection looks like the end of the file.
            if time.monotonic() > deadline:
                raise TimeoutError
            if not chunk:
                break
            received += len(chunk)
            if received > self._limit_bytes:
                raise self._too_large(shown)
            yield chunk
        if length is not None and received != length:
            raise Unreachable(f"{shown}: the answer has ended early")

    def _too_large(self, shown: str) -> ConfigError:
        return ConfigError(
            f"{shown}: it is larger than {self._limit_bytes:,} bytes",
            hint="raise model_limit_bytes (HEADRACE_MODEL_LIMIT_BYTES)",
        )


def _abort(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _connect(addresses: Sequence[Address], port: int) -> socket.socket:
    for address in addresses[:-1]:
        try:
            return socket.create_connection((str(address), port), IDLE_TIMEOUT_S)
        except OSError:
            continue
    return socket.create_connection((str(addresses[-1]), port), IDLE_TIMEOUT_S)
