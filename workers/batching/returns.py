"""The callers that come back: an estimate of how many, and when, after the end of their batch.

In a closed loop each caller sends its next job as soon as it has the answer to its last one. So
jobs come shortly after the end of a batch and not before, and a mean gap between arrivals is of no
use. This is learned from the ends of batches and from the jobs that follow them; who sent a job
is not known.

A share of the callers comes back: the jobs that are enqueued within some time after the end, less
those within the same time before it, to the size of the batch. For jobs that come at random, the
two are equal, and the share is near 0. When they come is learned as TCP learns its retransmission
timeout (RFC 6298): a running mean, and a running mean deviation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Nothing is expected before the callers of so many batches were observed.
SEEN_MIN: Final = 4
#: Nor if a smaller share of them comes back.
SHARE_MIN: Final = 0.4
#: Weights of the newest batch in the running share, means and mean deviation.
SHARE_WEIGHT: Final = 0.1
MEAN_WEIGHT: Final = 0.125
DEVIATION_WEIGHT: Final = 0.25
#: A caller is late after so many mean deviations; with 4, as TCP, one in fifty is.
DEVIATIONS: Final = 6
#: How many of the latest jobs count.
RECENT: Final = 256


class Expected(NamedTuple):
    """The callers that should come back, and when.

    Attributes:
        callers: how many are not here yet.
        first_at: when the next one should be here; at the earliest now.
        last_at: when all should be here.
        late_at: from then on they are not expected any more.
    """

    callers: int
    first_at: float
    last_at: float
    late_at: float


@dataclass(eq=False, slots=True)
class EndedBatch:
    """A batch whose callers may come back until `until`; `came` have."""

    ended_at: float
    size: int
    until: float
    first_at: float = 0.0
    last_at: float = 0.0
    came: int = 0


@dataclass(slots=True)
class Returns:
    """The callers that come back, for one model.

    Attributes:
        share: the share of the callers that do; below 0 only by chance.
        seen: how many batches were observed.
        first_s: after how many seconds the first one does.
        last_s: after how many seconds the last one does.
        deviation_s: the mean deviation of `last_s`.
    """

    share: float = 0.0
    seen: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    deviation_s: float = 0.0
    _delay_s: float = 0.0
    _open: deque[EndedBatch] = field(default_factory=deque)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def late_s(self) -> float:
        """After how many seconds a caller that has not come back is late; 0 while unknown."""
        return self.last_s + DEVIATIONS * self.deviation_s

    @property
    def known(self) -> bool:
        """Whether callers are known to come back."""
        return self.seen >= SEEN_MIN and self.share >= SHARE_MIN

    def batch_ended(self, size: int, now: float, delay_s: float, usual_s: float) -> None:
        """Note the end of a batch of `size` jobs; usually one takes `usual_s`.

        The first caller that comes back opens a batch, which waits for at most `delay_s`.
        """
        self._expire(now)
        self._delay_s = delay_s
        if size:
            self._open.append(EndedBatch(now, size, now + max(delay_s, usual_s)))

    def arrived(self, enqueued_at: float, now: float) -> None:
        """Note a new job, which is here since `now`."""
        self._expire(now)
        self._recent.append(enqueued_at)
        for batch in reversed(self._open):
            if batch.ended_at < enqueued_at:
                if not batch.came:
                    batch.first_at = now
                    batch.until = now + self._delay_s
                    if self.last_s:
                        late_at = batch.ended_at + 2 * self.late_s
                        batch.until = min(batch.until, max(now, late_at))
                batch.came, batch.last_at = batch.came + 1, now
                if batch.came == batch.size:
                    self._open.remove(batch)
                    self._learn(batch)
                return

    def expected(self, now: float, running: int = 0) -> Expected | None:
        """Return who should come back, if anyone.

        A batch of `running` jobs counts as if it ended now.
        """
        self._expire(now)
        if not self.known:
            return None
        count, first_at, last_at, late_at = 0, float("inf"), now, now
        ended = [EndedBatch(now, running, now)] if running else []
        for batch in (*self._open, *ended):
            missing = round(batch.size * self.share) - batch.came
            until = batch.ended_at + self.late_s
            if missing > 0 and until > now:
                count += missing
                first_at = min(first_at, batch.ended_at + self.first_s)
                last_at = max(last_at, batch.ended_at + self.last_s)
                late_at = max(late_at, until)
        return Expected(count, max(first_at, now), last_at, late_at) if count else None

    def _expire(self, now: float) -> None:
        while self._open and now > self._open[0].until:
            self._learn(self._open.popleft())

    def _learn(self, batch: EndedBatch) -> None:
        at, size = batch.ended_at, batch.size
        within_s = self.late_s or self._delay_s
        after = sum(at < enqueued <= at + within_s for enqueued in self._recent)
        before = sum(at - within_s < enqueued <= at for enqueued in self._recent)
        self.seen += 1
        sample = (min(after, size) - min(before, size)) / size
        self.share += max(SHARE_WEIGHT, 1 / self.seen) * (sample - self.share)
        if not batch.came:
            return
        first_s, last_s = batch.first_at - at, batch.last_at - at
        if not self.last_s:
            self.first_s, self.last_s, self.deviation_s = first_s, last_s, last_s / 2
            return
        error_s = last_s - self.last_s
        self.first_s += MEAN_WEIGHT * (first_s - self.first_s)
        self.last_s += MEAN_WEIGHT * error_s
        self.deviation_s += DEVIATION_WEIGHT * (abs(error_s) - self.deviation_s)
