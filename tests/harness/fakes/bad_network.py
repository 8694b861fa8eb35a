"""A TCP proxy as a bad network: it delays, cuts, half-closes or silences connections by a seed."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator

from typing_extensions import override

from tests.harness.fakes.proxy import Carrier, shut

#: What can become of a connection, with how often; most of them are only slow.
FATES = {"slow": 6, "cut": 3, "half-closed": 2, "silent": 1}
#: After how many bytes a connection meets its fate, at most.
BYTES_MAX = 6_000
#: After how many bytes a slow connection draws a fate anew, at most. Clients keep connections: a
#: network whose first ones are all slow would never turn bad.
SLOW_BYTES_MAX = 300_000
#: How long a piece of data is late, in seconds, at most; and what share of them.
DELAY_MAX_S = 0.05
DELAYED = 0.1


class BadNetwork(Carrier):
    """Carries connections; the fate of each follows from the seed and from its number.

    Attributes:
        met: how many connections have met each fate.
    """

    def __init__(self, to_port: int, seed: int) -> None:
        self.met: Counter[str] = Counter()
        self._seed = seed
        self._calm = True
        self._number = 0
        self._silent: set[socket.socket] = set()
        super().__init__(to_port)

    def worsen(self) -> None:
        """Begin to do all this; until then everything is carried at once."""
        self._calm = False

    def calm(self) -> None:
        """From now on carry everything, at once; end the connections that are silent."""
        self._calm = True
        for end in list(self._silent):
            shut(end)

    @override
    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        self._number += 1
        chance = random.Random(f"{self._seed} {self._number}")
        fate = chance.choices(list(FATES), list(FATES.values()))[0]
        # Of the two directions, the one that meets it.
        ours = chance.randrange(2)
        for n, (source, target) in enumerate([(client, server), (server, client)]):
            own = random.Random(f"{self._seed} {self._number} {n}")
            given = (source, target, fate if n == ours else None, own)
            threading.Thread(target=self._pump, args=given, daemon=True).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, fate: str | None, chance: random.Random
    ) -> None:
        """Carry one direction; without a fate it is only slow."""
        left = chance.randrange(BYTES_MAX)
        pause = threading.Event()
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                if not self._calm:
                    if chance.random() < DELAYED:
                        pause.wait(chance.uniform(0, DELAY_MAX_S))
                    left -= len(data)
                    if left < 0 and fate == "slow":
                        fate = chance.choices(list(FATES), list(FATES.values()))[0]
                        left = chance.randrange(SLOW_BYTES_MAX)
                    elif left < 0 and fate is not None:
                        # In the middle of a message.
                        target.sendall(data[: len(data) // 2])
                        if self._end(source, target, fate):
                            break
                        return
                target.sendall(data)
        for end in (source, target):
            shut(end)
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


@contextlib.contextmanager
def bad_network(to_port: int, seed: int) -> Iterator[BadNetwork]:
    """A bad network while the context lasts."""
    with contextlib.closing(BadNetwork(to_port, seed)) as network:
        yield network
