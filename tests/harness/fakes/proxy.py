"""A TCP proxy in front of a server: it loses answers, goes silent, or leads to another server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from typing_extensions import override


class Carrier:
    """Carries connections to a port of this machine, in threads of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and accept no more."""
        self._listener.close()
        for end in list(self._open):
            shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to_port))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            self._carry(client, server)

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Begin to carry a connection, in other threads."""
        raise NotImplementedError


class Proxy(Carrier):
    """Carries connections, and can lose or swallow what they carry.

    Attributes:
        lost: how many answers it has lost.
        swallowed: how many requests it has kept to itself.
    """

    def __init__(self, to_port: int) -> None:
        self.lost = 0
        self.swallowed = 0
        self._unwanted = b""
        self._needle = b""
        self._times = 0
        #: Requests of several connections are counted one after the other.
        self._counting = threading.Lock()
        self._then: Callable[[], None] | None = None
        self._silent = False
        self._dead: set[socket.socket] = set()
        super().__init__(to_port)

    def lose_answer_to(
        self, needle: bytes, times: int = 1, then: Callable[[], None] | None = None
    ) -> None:
        """Pass on the next requests that hold these bytes; cut their connections at the answer.

        `then` is called before the cut, in another thread.
        """
        self._needle, self._times, self._then = needle, times, then

    def swallow(self, needle: bytes) -> None:
        """Pass on no request that holds these bytes, nor what comes behind it on its connection."""
        self._unwanted = needle

    def go_silent(self) -> None:
        """Pass nothing on any more, in either direction, and close nothing: as a cut network.

        Connections that are open now stay dead for ever; so does what connects until `speak`.
        """
        self._silent = True
        self._dead |= self._open

    def speak(self) -> None:
        """Carry new connections again."""
        self._silent = False

    def lead_to(self, port: int) -> None:
        """From now on another server is behind this port; what is open stays with the old one."""
        self._to_port = port

    @override
    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        if self._silent:
            self._dead |= {client, server}
        cut = threading.Event()
        for pump in (self._requests, self._answers):
            threading.Thread(target=pump, args=(client, server, cut), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._unwanted and self._unwanted in data:
                    self.swallowed += 1
                    return
                if self._needle and self._needle in data:
                    with self._counting:
                        if self._times:
                            self._times -= 1
                            cut.set()
                if client not in self._dead:
                    server.sendall(data)
        self._end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if cut.is_set():
                    self.lost += 1
                    if self._then is not None:
                        self._then()
                    break
                if client not in self._dead:
                    client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        if self._dead.intersection(ends):
            # Nobody hears that the other side has gone.
            return
        for end in ends:
            shut(end)
            self._open.discard(end)


def shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def proxy(to_port: int) -> Iterator[Proxy]:
    """A proxy while the context lasts."""
    with contextlib.closing(Proxy(to_port)) as carrier:
        yield carrier
