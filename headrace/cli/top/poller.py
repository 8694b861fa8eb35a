"""Polls a server every few seconds in a thread, so that the screen reacts to keys at once."""

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

#: Rates are measured over about this many seconds; workers report once per second.
WINDOW_S: Final = 5.0
#: Samples that are further apart give no present rate.
GAP_S: Final = 60.0
#: A series that a server without Redis does not have.
_NEEDS_REDIS: Final = "headrace_queue_depth"


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of the last poll.

    Attributes:
        view: the last view; None before the first.
        error: why the last poll failed; None if it succeeded.
        since_s: start of the first failed poll, by `time.monotonic`.
    """

    view: View | None = None
    error: HeadraceError | None = None
    since_s: float = 0.0


class History:
    """The samples of the last seconds, for rates."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> View:
        """Add the newest sample and return its view."""
        if self._samples and sample.at_s - self._samples[-1].at_s > GAP_S:
            self._samples.clear()
        # Keep the newest sample that is old enough.
        while len(self._samples) > 1 and sample.at_s - self._samples[1].at_s >= self._window_s:
            self._samples.popleft()
        before = next((one for one in self._samples if one.series.get(_NEEDS_REDIS)), None)
        self._samples.append(sample)
        return view_of(sample, before)


class Poller:
    """Polls until it is stopped.

    Args:
        client: the server; used only by the thread. It must not retry.
        interval_s: seconds between two polls.

    Attributes:
        result: the result of the last poll.
        wake_fd: becomes readable after each poll.
    """

    def __init__(self, client: Client, interval_s: float) -> None:
        self.result = PollResult()
        self.wake_fd, self._notify_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._notify_fd, False)
        self._client = client
        self._interval_s = interval_s
        self._history = History()
        self._stopping = threading.Event()
        # A daemon thread: a server that never answers must not delay the exit.
        self._thread = threading.Thread(target=self._run, name="headrace-top", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopping.set()

    def poke(self) -> None:
        """Make `wake_fd` readable."""
        # A full pipe is readable already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._notify_fd, b".")

    def drain(self) -> None:
        """Read what `poke` has written."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.result = self._poll()
            self.poke()
            # The second poll gives the first rates, so it follows soon.
            first = self.result.view is not None and self.result.view.requests_s is None
            self._stopping.wait(min(self._interval_s, 1.0) if first else self._interval_s)

    def _poll(self) -> PollResult:
        started_s = time.monotonic()
        try:
            sample = self._client.run(read(self._client.session))
        except HeadraceError as error:
            since_s = self.result.since_s if self.result.error is not None else started_s
            return PollResult(self.result.view, error, since_s)
        return PollResult(self._history.add(sample))
