"""Requests that wait for a busy worker. A file keeps it busy, so that no time decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.extensions.torchserve.compat.cases.table import QUEUE, manage, predict, register
from tests.extensions.torchserve.compat.servers import START_S, Answer, Server
from tests.harness.wait import wait_until

#: What a full queue refuses.
FULL: Final = predict("held", b"one too many", differs="queue-full")
#: What a model with tickets refuses.
TICKETED: Final = predict("ticketed", b"no worker is idle")
#: What runs in a batch with a bad input.
SPOILED: Final = predict("held", b"beside a bad one", differs="bad-neighbour")
#: Of a model with batches of one, a worker of Headrace runs a request and has claimed the next one.
ACCEPTED: Final = {True: (QUEUE + 1,), False: (QUEUE + 1, QUEUE + 2)}


@dataclass
class Held:
    """A server whose worker is busy with a request.

    Attributes:
        gate: the file that ends it, and all others of its model.
        sent: the requests, in their order.
    """

    server: Server
    gate: Path
    pool: ThreadPoolExecutor
    model: str = "held"
    sent: list[Future[list[Answer]]] = field(default_factory=list)

    def send(self, more: str = "") -> Answer | None:
        """Send a request; when it waits in the server or is answered, return its answer, if any."""
        future = self._sent(more)
        wait_until(
            lambda: future.done() or self._inside() == sum(not one.done() for one in self.sent),
            "the request waits in the server",
            START_S,
        )
        return future.result()[0] if future.done() else None

    def release(self) -> list[Answer]:
        """End the requests; return all answers."""
        self.gate.touch()
        return [future.result()[0] for future in self.sent]

    def begin(self) -> None:
        """Send the request that keeps the worker busy.

        A worker is idle a moment after its model is loaded; without tickets, the request waits.
        """
        self._sent("", until=200)
        wait_until(self.gate.with_suffix(".begun").exists, "the first request runs", START_S)

    def _sent(self, more: str, until: int = 0) -> Future[list[Answer]]:
        ask = predict(self.model, f"{self.gate}\n{more}".encode(), until=until)
        self.sent.append(self.pool.submit(self.server.ask, ask))
        return self.sent[-1]

    def _inside(self) -> int:
        """How many requests wait or run."""
        (answer,) = self.server.ask(manage("GET", f"/models/{self.model}"))
        (shown,) = json.loads(answer.body)
        queue = shown["jobQueueStatus"]
        # The worker of TorchServe has the first one.
        return int(queue["pendingRequests"]) + int(queue.get("runningRequests", 1))


@contextmanager
def held(server: Server, folder: Path, model: str = "held", batch_size: int = 1) -> Iterator[Held]:
    """Register a model, and keep its worker busy with one request."""
    gate = folder / f"{server.ports['inference']}.gate"
    (answer,) = server.ask(register(model, batch_size=batch_size))
    assert answer.status == 200, answer
    with ThreadPoolExecutor(2 * QUEUE) as pool:
        try:
            busy = Held(server, gate, pool, model)
            busy.begin()
            yield busy
        finally:
            gate.touch()
            (answer,) = server.ask(manage("DELETE", f"/models/{model}"))
            assert answer.status == 200, answer


def fill(server: Server, folder: Path) -> tuple[Answer, int]:
    """Send requests until one is refused; return its answer, and how many were accepted."""
    with held(server, folder) as busy:
        refused = next((answer for _ in range(QUEUE + 2) if (answer := busy.send())), None)
        assert refused is not None, f"it took {len(busy.sent)} requests"
        *accepted, _ = busy.release()
    assert {one.status for one in accepted} == {200}, accepted
    return refused, len(accepted)


def spoiled(server: Server, folder: Path) -> Answer:
    """Run a good input in a batch with a bad one; return its answer."""
    with held(server, folder, batch_size=QUEUE) as busy:
        for text in ("", "bad"):
            refused = busy.send(text)
            assert refused is None, refused
        first, good, bad = busy.release()
    assert (first.status, bad.status) == (200, 503), (first, bad)
    return good


def batches(server: Server, folder: Path) -> list[int]:
    """Send as many requests as the queue holds while the worker is busy; return their batches."""
    with held(server, folder, batch_size=QUEUE) as busy:
        for _ in range(QUEUE):
            refused = busy.send()
            assert refused is None, refused
        answers = busy.release()
    assert {one.status for one in answers} == {200}, answers
    return [int(one.body) for one in answers]


#: What a sequence refuses, if one of its requests runs and one waits.
CROWDED: Final = predict("crowded", b"", headers={"ts_request_sequence_id": "a"})


def crowded(server: Server, folder: Path) -> tuple[Answer, list[int]]:
    """Send two requests of a sequence while one runs; the answer of the refused one, and statuses.

    TorchServe does not say how many requests of a sequence wait, so both are sent at once.
    """
    gate = folder / f"{server.ports['inference']}.crowded"
    (answer,) = server.ask(register("crowded"))
    assert answer.status == 200, answer
    with ThreadPoolExecutor(3) as pool:
        try:
            first = pool.submit(server.ask, replace(CROWDED, body=str(gate).encode(), until=200))
            wait_until(gate.with_suffix(".begun").exists, "the first request runs", START_S)
            others = [pool.submit(server.ask, CROWDED) for _ in range(2)]
            wait_until(lambda: any(one.done() for one in others), "one is refused", START_S)
        finally:
            gate.touch()
        answers = [one.result()[0] for one in (first, *others)]
        server.ask(manage("DELETE", "/models/crowded"))
    return max(answers, key=lambda one: one.status), sorted(one.status for one in answers)


def ticketed(server: Server, folder: Path) -> tuple[Answer, int]:
    """Send a request while the only worker is busy, and one after that; its answer and status.

    The worker is idle a moment after its answer has been sent.
    """
    with held(server, folder, "ticketed") as busy:
        (refused,) = server.ask(TICKETED)
        (first,) = busy.release()
        assert first.status == 200, first
        (later,) = server.ask(predict("ticketed", str(busy.gate).encode(), until=200))
    return refused, later.status
