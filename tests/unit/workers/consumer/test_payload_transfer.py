"""Threads that move payloads: an error of any kind ends none of them."""

from __future__ import annotations

import threading
from typing import Any

from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import THREADS
from workers.consumer.payload_transfer import SWEEP_S, PayloadTransfer

WAIT_S = 10.0


class FaultyStores:
    """The first sweep, and as many deletions as there are threads, raise an unexpected error."""

    def __init__(self) -> None:
        self.sweeps = self.drops = 0
        self.failed, self.swept, self.dropped = (threading.Event() for _ in range(3))

    def sweep(self) -> bool:
        self.sweeps += 1
        if self.sweeps == 1:
            self.failed.set()
            raise ValueError("an entry that cannot be read")
        self.swept.set()
        return False

    def drop(self, *_: PayloadEntry) -> None:
        self.drops += 1
        if self.drops <= THREADS:
            raise ValueError("no error of the store's own")
        self.dropped.set()

    def close(self) -> None:
        pass


class Deletions:
    """A model with a payload to delete, each time that it is asked."""

    def take_payload_work(self) -> tuple[list[Any], list[Any], list[PayloadEntry]]:
        return [], [], [PayloadEntry("redis:a", "a", "m", "r")]


def test_an_unexpected_error_ends_neither_sweeps_nor_deletions() -> None:
    stores: Any = FaultyStores()
    refs: Any = None
    model: Any = Deletions()
    transfer = PayloadTransfer(stores, refs)
    try:
        transfer.sweep(0.0)
        assert stores.failed.wait(WAIT_S)
        now = 0.0
        while not stores.swept.wait(0.01) and now < WAIT_S * 100 * SWEEP_S:
            # The next sweep is skipped while the first one ends.
            now += SWEEP_S
            transfer.sweep(now)
        assert stores.swept.is_set()
        for _ in range(THREADS + 1):
            transfer.begin(model)
        assert stores.dropped.wait(WAIT_S)
    finally:
        transfer.close()
