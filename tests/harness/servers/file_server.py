"""An HTTP server of files, with ETags, redirects, and ways to misbehave."""

from __future__ import annotations

import hashlib
import http.server
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FileServer:
    """Serves bytes by their path.

    Attributes:
        redirects: paths that lead elsewhere.
        status: of every answer that is no redirect, if it is not 200.
        cut: whether an answer ends in the middle of its body.
        stalled: answers wait in the middle of their body until this is set.
        stalls_ended: how many of them have ended.
        sent: how many answers had a body.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    status: int = 200
    cut: bool = False
    stalled: threading.Event | None = None
    stalls_ended: int = 0
    sent: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    files: FileServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.files.redirects:
            self._head(302, {"Location": self.files.redirects[path], "Content-Length": "0"})
        elif self.files.status != 200 or path not in self.files.files:
            self._head(404 if self.files.status == 200 else self.files.status, {})
        else:
            self._send(self.files.files[path])

    def _send(self, body: bytes) -> None:
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        if self.headers["If-None-Match"] == etag:
            self._head(304, {})
            return
        self._head(200, {"ETag": etag, "Content-Length": str(len(body))})
        self.files.sent += 1
        whole = not self.files.cut and self.files.stalled is None
        self.wfile.write(body if whole else body[: len(body) // 2])
        if self.files.stalled is not None:
            self.files.stalled.wait(120)
            self.files.stalls_ended += 1

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def file_server(context: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    """A running server; with a context it speaks TLS."""
    found = FileServer()
    handler = type("Handler", (_Handler,), {"files": found})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        if found.stalled is not None:
            found.stalled.set()
        server.shutdown()
        server.server_close()
        thread.join(60)
