"""A TCP proxy as a bad network: it delays, cuts, half-closes or silences connections by a seed."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator

#: What can become of a connection, with how often; most of them are only slow.
FATES = {"slow": 6, "cut": 3, "half-closed": 2, "silent": 1}
#: After how many bytes a connection meets its fate, at most.
BYTES_MAX = 6_000
#: How long a piece of data is late, in seconds, at most; and what share of them.
DELAY_MAX_S = 0.05
DELAYED = 0.1


class BadNetwork:
    """Carries connections to a port of this machine.

    The fate of a connection follows from the seed and from its number.

    Attributes:
        port: where it listens.
        met: how many connections have met each fate.
    """

    def __init__(self, to_port: int, seed: int) -> None:
        self.met: Counter[str] = Counter()
        self._seed = seed
        self._to_port = to_port
        self._calm = True
        self._number = 0
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def worsen(self) -> None:
        """Begin to do all this; until then everything is carried at once."""
        self._calm = False

    def calm(self) -> None:
        """From now on carry everything, at once; end the connections that are silent."""
        self._calm = True
        for end in list(self._silent):
            _shut(end)

    def close(self) -> None:
        """End all connections, and accept no more."""
        self._listener.close()
        for end in list(self._open):
            _shut(end)

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
            self._number += 1
            chance = random.Random(f"{self._seed} {self._number}")
            fate = chance.choices(list(FATES), list(FATES.values()))[0]
            # Of the two directions, the one that meets it.
            ours = chance.randrange(2)
            for n, (source, target) in enumerate([(client, server), (server, client)]):
                own = random.Random(f"{self._seed} {self._number} {n}")
                pump = threading.Thread(
                    target=self._carry,
                    args=(source, target, fate if n == ours else "slow", own),
                    daemon=True,
                )
                pump.start()

    def _carry(
        self, source: socket.socket, target: socket.socket, fate: str, chance: random.Random
    ) -> None:
        left = chance.randrange(BYTES_MAX)
        pause = threading.Event()
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                if not self._calm:
                    if chance.random() < DELAYED:
                        pause.wait(chance.uniform(0, DELAY_MAX_S))
                    left -= len(data)
                    if left < 0 and fate != "slow":
                        # In the middle of a message.
                        target.sendall(data[: len(data) // 2])
                        if self._end(source, target, fate):
                            break
                        return
                target.sendall(data)
        for end in (source, target):
            _shut(end)
            self._open.discard(end)

    def _end(self, source: socket.socket, target: socket.socket, fate: str) -> bool:
        """Let a connection meet its fate; return whether both of its ends must be closed."""
        self.met[fate] += 1
        if fate == "half-closed":
            # The receiver reads an end, and what it sends still arrives.
            target.shutdown(socket.SHUT_WR)
        elif fate == "silent":
            self._silent |= {source, target}
        return fate == "cut"


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def bad_network(to_port: int, seed: int) -> Iterator[BadNetwork]:
    """A bad network while the context lasts."""
    network = BadNetwork(to_port, seed)
    try:
        yield network
    finally:
        network.close()
