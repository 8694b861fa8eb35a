"""A receiver of webhooks on a port of its own, which answers as its paths say.

`/200`, `/500`, … answer with this status. `/once/503` does so once for each `webhook-id`, and then
answers 204. `/gate` answers when the gate is opened. `_answer` has the other paths.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from tests.harness.wait import wait_until

HUGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Received:
    """One webhook that came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def verified(self, secret: str) -> Any:
        """What it says, once the reference library has verified it."""
        return Webhook(secret).verify(self.body, dict(self.headers))


@dataclass
class Receiver:
    """The server, and what has come."""

    port: int
    got: list[Received] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Bytes of the huge answer that its client took.
    huge_sent: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def of(self, job_id: str) -> list[Received]:
        """What came of one job, in its order."""
        return [one for one in list(self.got) if one.event["data"]["id"] == job_id]

    def wait_for(self, job_id: str, count: int = 1) -> list[Received]:
        return wait_until(
            lambda: found if len(found := self.of(job_id)) >= count else [],
            f"{count} webhooks of {job_id}", 60,
        )  # fmt: skip


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with receiver.lock:
            receiver.got.append(Received(self.path, headers, body))
            nth = sum(one.id == headers["webhook-id"] for one in receiver.got)
        try:
            self._answer(receiver, nth)
        except OSError:
            # The client has not waited for it.
            self.close_connection = True

    def do_GET(self) -> None:
        """A redirect that is followed."""
        nobody = {"webhook-id": "GET"}
        self.server.receiver.got.append(Received(self.path, nobody, b'{"data":{"id":""}}'))
        self._say(200)

    def _answer(self, receiver: Receiver, nth: int) -> None:
        match self.path.partition("?")[0].strip("/").split("/"):
            case ["once", status]:
                self._say(int(status) if nth == 1 else 204)
            case ["later", status]:
                self._say(int(status), ("Retry-After", "3600"))
            case ["later", status, "days"]:
                self._say(int(status), ("Retry-After", "259200"))
            case ["to"]:
                self._say(307, ("Location", receiver.url("/stolen")))
            case ["gate"]:
                receiver.gate.wait(60)
                self._say(204)
            case ["huge"]:
                self._huge(receiver)
            case ["half"]:
                # A head that never ends.
                self.wfile.write(b"HTTP/1.1 200 OK\r\nx-a: ")
                receiver.gate.wait(60)
            case [status]:
                self._say(int(status))

    def _say(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def _huge(self, receiver: Receiver) -> None:
        self.send_response(200)
        self.send_header("content-length", str(HUGE_BYTES))
        self.end_headers()
        for _ in range(HUGE_BYTES // 65536):
            self.wfile.write(b"x" * 65536)
            receiver.huge_sent += 65536

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


@contextmanager
def webhook_receiver(context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Receiver]:
    """Serve until the context ends; with a context of TLS over HTTPS."""
    server = _Server(("127.0.0.1", port), _Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.receiver = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.receiver
    finally:
        server.receiver.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
