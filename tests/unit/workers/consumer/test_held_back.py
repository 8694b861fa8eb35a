"""A process that streams is not read while pieces wait for Redis, and its timeouts stand still."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from workers.jobs.leased_job import NEVER, Batch
from workers.lifecycle.replica_manager import ReplicaManager
from workers.models.served_model import ServedModel
from workers.protocol.frames import FROM_MODEL, FrameSocket, Phase
from workers.replicas.replica import Replica


class Site:
    """A model with a process that streams and one that does not."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.selector = selectors.DefaultSelector()
        self.leases = SimpleNamespace(pieces_full=False)
        away: Any = SimpleNamespace()
        leases: Any = self.leases
        self.manager = ReplicaManager(self.selector, leases, away, away, away)
        self.replicas = [
            Replica({"device": "cpu"}, {}, state=Phase.READY, frames=FrameSocket(one, FROM_MODEL))
            for one in sockets
        ]
        self.streaming, self.plain = self.replicas
        self.streaming.streams = True
        self.model = ServedModel(ModelConfig(name="m"), 0, self.replicas)
        for replica in self.replicas:
            assert replica.frames is not None
            self.selector.register(replica.frames, selectors.EVENT_READ, (self.model, replica))

    def look(self, now: float, *, full: bool) -> list[Replica]:
        """The replicas that are read after a turn at this time."""
        self.leases.pieces_full = full
        self.manager.hold_back([self.model], now)
        return [key.data[1] for key in self.selector.get_map().values()]


@pytest.fixture
def site() -> Iterator[Site]:
    pairs = [socket.socketpair() for _ in range(2)]
    found = Site([ours for ours, _ in pairs])
    yield found
    found.selector.close()
    for one in (one for pair in pairs for one in pair):
        one.close()


def test_what_streams_is_not_read_until_there_is_room(site: Site) -> None:
    assert len(site.look(1.0, full=False)) == 2
    for now in (2.0, 3.0):
        assert site.look(now, full=True) == [site.plain]
    for now in (4.0, 5.0):
        assert site.look(now, full=False) == [site.plain, site.streaming]


def test_timeouts_stand_still_meanwhile(site: Site) -> None:
    batches = [Batch([], "", 0.0, deadline=110.0), Batch([], "", 0.0, deadline=NEVER)]
    site.streaming.batch, site.streaming.joined = batches[0], batches[1:]
    other = site.plain.batch = Batch([], "", 0.0, deadline=110.0)
    for now, full in ((100.0, True), (104.0, True), (109.0, False), (120.0, False), (130.0, True)):
        site.look(now, full=full)
    assert [one.deadline for one in batches] == [119.0, NEVER]
    assert other.deadline == 110.0


def test_a_process_that_ends_meanwhile_can_be_forgotten(site: Site) -> None:
    site.look(1.0, full=True)
    site.manager._unwatch(site.streaming)
    assert not site.streaming.held_back
    site.streaming.frames = None
    assert site.look(2.0, full=False) == [site.plain]
