"""A server that says of itself what it is told to, and does nothing else."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override


class FakeRedis(socketserver.ThreadingTCPServer):
    """Answers INFO with what it was given, and GET never."""

    daemon_threads = True

    def __init__(self, info: str) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.info = info.replace("\n", "\r\n").encode()
        self.heard: list[bytes] = []
        self.url = f"redis://127.0.0.1:{self.server_address[1]}/0"


class _Conversation(socketserver.StreamRequestHandler):
    server: FakeRedis

    @override
    def handle(self) -> None:
        while line := self.rfile.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:-2].upper())
            self.server.heard.append(words[0])
            if words[0] == b"INFO":
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(self.server.info), self.server.info))
            elif words[0] != b"GET":
                self.wfile.write(b"+OK\r\n")


@contextmanager
def fake_redis(info: str) -> Iterator[FakeRedis]:
    """A server that says of itself what it is told to."""
    with FakeRedis(info) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
