"""Looks at a server every few seconds, in a thread of its own: keys are answered at once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace import Client
from headrace.cli.top.sample import Sample, read
from headrace.cli.top.view import View, view_of
from headrace.errors import HeadraceError

#: Rates are those of about so long: workers tell what they count once a second.
WINDOW_S: Final = 5.0
#: Two samples that are further apart make no rate of now.
GAP_S: Final = 60.0
#: Without Redis a server tells nothing that could be counted.
_TELLING: Final = "headrace_queue_depth"


@dataclass(frozen=True, slots=True)
class PollResult:
    """What is known by now.

    Attributes:
        view: the last one; None before the first.
        error: why the last look failed; None where it did not.
        since_s: when the first look began that failed, by `time.monotonic`.
    """

    view: View | None = None
    error: HeadraceError | None = None
    since_s: float = 0.0


class History:
    """The samples of the last seconds, of which rates are made."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> View:
        """What to show, once this sample is the newest."""
        if self._samples and sample.at_s - self._samples[-1].at_s > GAP_S:
            self._samples.clear()
        # The first that is old enough stays.
        while len(self._samples) > 1 and sample.at_s - self._samples[1].at_s >= self._window_s:
            self._samples.popleft()
        before = next((one for one in self._samples if one.series.get(_TELLING)), None)
        self._samples.append(sample)
        return view_of(sample, before)


class Poller:
    """Looks until it is stopped. `seen` is what it knows.

    Args:
        client: the server; used by the thread alone. It repeats nothing.
        interval_s: between two looks.

    Attributes:
        wake_fd: can be read once there is something new.
    """

    def __init__(self, client: Client, interval_s: float) -> None:
        self.seen = PollResult()
        self.wake_fd, self._told_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._told_fd, False)
        self._client = client
        self._interval_s = interval_s
        self._history = History()
        self._stopping = threading.Event()
        # A server that never answers must not hold the terminal up at the end.
        self._thread = threading.Thread(target=self._run, name="headrace-top", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def poke(self) -> None:
        """Let whoever waits for `wake_fd` go on."""
        # Where it is full, it has been told often enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._told_fd, b".")

    def drain(self) -> None:
        """Take what `poke` has written."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.seen = self._look()
            self.poke()
            # The second look makes the first rates: it comes soon.
            first = self.seen.view is not None and self.seen.view.requests_s is None
            self._stopping.wait(min(self._interval_s, 1.0) if first else self._interval_s)

    def _look(self) -> PollResult:
        began_s = time.monotonic()
        try:
            sample = self._client.run(read(self._client.session))
        except HeadraceError as error:
            since_s = self.seen.since_s if self.seen.error is not None else began_s
            return PollResult(self.seen.view, error, since_s)
        return PollResult(self._history.add(sample))
