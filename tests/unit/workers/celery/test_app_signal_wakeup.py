"""Celery's loop is woken by a signal, and not by its next timer."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest
from kombu.asynchronous import Hub

from workers.celery.app import SignalWakeup


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    fd = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(fd)
    signal.signal(signal.SIGUSR1, handler)


@pytest.fixture
def wakeup() -> Iterator[SignalWakeup]:
    made = SignalWakeup()
    yield made
    made.close()


def test_each_poll_ends_at_a_signal_also_after_the_loop_has_begun_anew(
    wakeup: SignalWakeup,
) -> None:
    hub = Hub()
    wakeup.listen()
    for _ in range(2):
        wakeup.register(hub)
        loop = hub.create_loop()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert readable(wakeup)
            next(loop)
            # The hub has come by, and found nothing else to do.
            assert not readable(wakeup)
        hub.reset()
    hub.close()
    wakeup.close()
    assert signal.set_wakeup_fd(-1) == -1


def test_where_no_signals_come_it_leaves_them_alone(wakeup: SignalWakeup) -> None:
    """Such as in a worker that a test runs in a thread."""
    thread = threading.Thread(target=wakeup.listen)
    thread.start()
    thread.join()
    assert signal.set_wakeup_fd(-1) == -1


def readable(wakeup: SignalWakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])
