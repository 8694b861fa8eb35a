"""Signals as exceptions, and what they must not cut in two."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from headrace.cli.shared.interrupts import InterruptHandler, Terminated, TimeUp


def come(number: signal.Signals) -> None:
    """Get a signal, and be past the place where it is seen."""
    os.kill(os.getpid(), number)
    signal.sigpending()


@pytest.fixture(autouse=True)
def _handlers_are_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    # Under nohup it is ignored, and stays so.
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        before = [signal.getsignal(number) for number in numbers]
        yield
        assert [signal.getsignal(number) for number in numbers] == before
    finally:
        signal.signal(signal.SIGHUP, hangup)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, Terminated),
        (signal.SIGHUP, Terminated),
    ],
)
def test_a_signal_is_an_exception(number: signal.Signals, error: type[BaseException]) -> None:
    with pytest.raises(error), InterruptHandler(None):
        come(number)


@pytest.mark.parametrize("timeout_s", [0.01, 0])
def test_the_time_limit_is_one_that_the_client_cannot_take_for_its_own(timeout_s: float) -> None:
    with pytest.raises(TimeUp, match="within 0") as caught, InterruptHandler(timeout_s):
        threading.Event().wait(60)
    assert not isinstance(caught.value, Exception)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def line(stops: InterruptHandler, written: list[str], *signals: signal.Signals) -> None:
    """Write in two halves, with signals between them."""
    with stops.shield():
        written.append("a li")
        for number in signals:
            come(number)
        written.append("ne")


def test_what_comes_within_the_shield_is_raised_at_its_end() -> None:
    written: list[str] = []
    with InterruptHandler(None) as stops:
        with pytest.raises(KeyboardInterrupt):
            line(stops, written, signal.SIGINT)
        line(stops, written)
    assert written == ["a li", "ne"] * 2


def test_a_second_one_is_not_held_back() -> None:
    written: list[str] = []
    with pytest.raises(KeyboardInterrupt), InterruptHandler(None) as stops:
        line(stops, written, signal.SIGINT, signal.SIGINT)
    assert written == ["a li"]


def test_an_error_within_the_shield_is_that_error() -> None:
    with InterruptHandler(None) as stops:
        with pytest.raises(OSError, match="disk"), stops.shield():
            raise OSError("disk")
        stops.ignore()
        come(signal.SIGINT)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with InterruptHandler(None):
            come(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
