"""The worker's selector where a connection is lost and a model process dies in the same turn."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config.settings import Settings
from workers.consumer.loop import Consumer
from workers.scheduling.dispatcher import Dispatcher

WAIT_S = 30.0


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    """Without models, and with leases that have just lost their connection."""
    settings = Settings(redis_url="redis://nowhere")
    away: Any = SimpleNamespace(connected=False, owner="w", socket=lambda: None, settings=settings)
    nobody: Any = SimpleNamespace(generation=0)
    made = Consumer(
        models=[], leases=away, notifications=away, observer=nobody, report=nobody,
        orphan_guard=nobody, transfer=nobody, dispatcher=Dispatcher([]), notifier=nobody,
        build=nobody, placement=nobody, registry=nobody, profiles=nobody,
        registered=[],
    )  # fmt: skip
    yield made
    made._selector.close()
    assert made._connector.close(WAIT_S)
    os.close(made._signal_in)
    os.close(made._signal_out)


@pytest.mark.parametrize("lost", ["notifications", "leases"])
def test_a_new_process_whose_socket_gets_the_number_of_a_lost_connection_is_heard(
    consumer: Consumer, lost: str
) -> None:
    """The selector knows files by their numbers, and the lost one was never taken out of it."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(2)]
        for sock in [sock for pair in pairs for sock in pair]:
            stack.enter_context(sock)
        watched = [ours for ours, _ in pairs]
        for sock in watched:
            consumer._selector.register(sock, selectors.EVENT_READ)
        consumer._watched = list(watched)
        broken = watched[lost == "leases"]
        # As if closed, but that no other thread gets the number.
        number = broken.detach()
        theirs, ours = map(stack.enter_context, socket.socketpair())
        os.dup2(ours.fileno(), number, inheritable=False)
        frames = stack.enter_context(socket.socket(fileno=number))

        def start(*_: object, loads: bool) -> None:
            consumer._selector.register(frames, selectors.EVENT_READ, "the new process")

        manager: Any = SimpleNamespace(
            maintain=start, hold_back=lambda *_: None, check=lambda *_: None
        )
        consumer._replica_manager = manager
        consumer._check_replicas(0.0)
        theirs.send(b"ready")
        heard = consumer._selector.select(WAIT_S)
        assert [(key.fileobj, key.data) for key, _ in heard] == [(frames, "the new process")]
