"""Estimates from earlier batches and arrivals: a batch's time, its memory, the next arrivals.

A batch that is too large for the memory is halved in the model process, which costs the failed
attempts. So later batches are limited to the size that fits. The limit is raised again slowly,
because what used the memory may be gone.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: The weight that earlier batches keep with each new batch.
MEMORY: Final = 0.95
#: With less variance of batch sizes, the slope cannot be separated from the constant. Two clients
#: whose jobs run together in one batch of eight have 0.1.
MIN_VARIANCE: Final = 0.04
#: For so many batches of one size, the slope counts that was known before.
SLOPE_BATCHES: Final = 500
#: The share of its time that a batch may wait for jobs that are known to come.
KNOWN_SHARE: Final = 0.02
#: How many full batches must run before a larger batch is tried; doubled after each failure.
PATIENCE_MIN: Final = 16
PATIENCE_MAX: Final = 4096
#: How many of the latest batches count for the least time, and their maximum age. With fewer there
#: is no estimate, because the first batches of a process are slow.
LEAST_BATCHES: Final = 20
LEAST_AGE_S: Final = 60.0
#: The share of the shortest batch that is the estimate: an input may cost less than any before it.
LEAST_SHARE: Final = 0.5
#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1
#: Nothing is expected before the callers of so many batches were observed.
SEEN_MIN: Final = 4
#: Nor if a smaller share of them comes back, when so many of the newest are taken for chance.
SHARE_MIN: Final = 0.4
CHANCE: Final = 2
#: From this share on, all of them are expected: the share is a little too small by chance.
ALL_MIN: Final = 0.75
#: Weights of the newest batch in the running share, means and mean deviation.
SHARE_WEIGHT: Final = 0.1
MEAN_WEIGHT: Final = 0.125
DEVIATION_WEIGHT: Final = 0.25
#: A caller is late after so many mean deviations; with 4, as TCP, one in fifty is.
DEVIATIONS: Final = 6
#: A caller is expected from this share of the usual time on, less the deviations.
EARLY_SHARE: Final = 0.9
#: A quiet time of less than this share of the callers' time is too short; then a time as long as
#: theirs counts, just before it.
QUIET_MIN: Final = 0.5
#: The error of a time counts for at most so many mean deviations, or for so much of the time if
#: that is more: a job at random that comes after the last caller is not much later than usual.
ERROR_MAX: Final = 3
ERROR_SHARE: Final = 0.06
#: How many batches wait for their callers: a long one must not keep those after it.
OPEN_MAX: Final = 64
#: How many of the latest jobs count, at least, and how many batches of them: several may have ended
#: before a batch is observed.
RECENT: Final = 256
RECENT_BATCHES: Final = 8


@dataclass(slots=True)
class LatencyModel:
    """Running least squares of batch seconds over batch size; older batches count less."""

    weight: float = 0.0
    size: float = 0.0
    size2: float = 0.0
    time: float = 0.0
    size_time: float = 0.0
    _slope: float | None = None
    _slope_age: int = 0

    def add(self, size: int, seconds: float) -> None:
        """Add a batch that has run."""
        for name, value in (
            ("weight", 1.0), ("size", size), ("size2", size * size),
            ("time", seconds), ("size_time", size * seconds),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) * MEMORY + value)
        mean = self.size / self.weight
        variance = self.size2 / self.weight - mean * mean
        if variance >= MIN_VARIANCE:
            covariance = self.size_time / self.weight - mean * self.time / self.weight
            self._slope, self._slope_age = max(0.0, covariance / variance), 0
            return
        self._slope_age += 1
        if self._slope_age > SLOPE_BATCHES:
            self._slope = None

    @property
    def line(self) -> tuple[float, float] | None:
        """The fixed seconds of a batch, and the seconds per item; None while unknown."""
        if self._slope is None:
            return None
        fixed_s = (self.time - self._slope * self.size) / self.weight
        return max(0.0, fixed_s), self._slope

    @property
    def fixed_s(self) -> float:
        """The fixed seconds of a batch; 0 while unknown."""
        line = self.line
        return 0.0 if line is None else line[0]

    @property
    def usual_s(self) -> float:
        """The recent mean seconds of a batch; 0 while unknown."""
        return self.time / self.weight if self.weight else 0.0

    def worth_s(self, size: int) -> float:
        """Return how long `size` items should wait for jobs that are known to come.

        They wait while one batch less saves more than that. The wait is at least a small share of a
        batch's time, because the saving is unknown until batches of several sizes have run.
        """
        return max(self.fixed_s / size, KNOWN_SHARE * self.usual_s)


class LeastTime:
    """The least time that a batch takes, estimated from recent batches.

    If no batch runs because all jobs were refused, the estimate expires and the next batch runs.
    """

    def __init__(self) -> None:
        self._took: deque[tuple[float, float]] = deque(maxlen=LEAST_BATCHES)

    def add(self, seconds: float, now: float) -> None:
        """Add a batch that has run."""
        self._took.append((now, seconds))

    def clear(self) -> None:
        """Discard the estimate, because a new model process may be faster."""
        self._took.clear()

    def at(self, now: float) -> float:
        """Return the estimate in seconds; 0 while it is unknown."""
        if len(self._took) < LEAST_BATCHES or self._took[0][0] < now - LEAST_AGE_S:
            return 0.0
        return min(seconds for _, seconds in self._took) * LEAST_SHARE


@dataclass(slots=True)
class MemoryLimit:
    """The batch size that fits into a model's memory.

    Attributes:
        allowed: the allowed batch sizes in order; empty if all are.
        limit: the largest size that is known to fit.
    """

    max_size: int
    allowed: tuple[int, ...] = ()
    limit: int = field(init=False)
    _good: int = 0
    _full: int = 0
    _patience: int = PATIENCE_MIN

    def __post_init__(self) -> None:
        self.limit = self.max_size

    def observe(self, size: int, fits: int) -> bool:
        """Learn from a batch that has run.

        `fits` is how many of its items fit together; 0 if all did.

        Returns:
            Whether `limit` has changed.
        """
        before = self.limit
        if fits:
            # A size that ran before fits, unless this batch has just failed with it.
            known = max(fits, self._good if self._good < size else 0)
            self.limit = max((step for step in self.allowed if step <= known), default=known)
            self._good, self._full = self.limit, 0
            self._patience = min(self._patience * 2, PATIENCE_MAX)
            return self.limit != before
        self._good = max(self._good, size)
        if size >= self.limit < self.max_size:
            self._full += 1
            if self._full >= self._patience:
                self._full = 0
                larger = min(self.max_size, self.limit + max(1, self.limit // 4))
                self.limit = min((n for n in self.allowed if n > self.limit), default=larger)
        return self.limit != before


@dataclass(slots=True)
class Arrivals:
    """The gaps between arrivals."""

    gap_s: float | None = None
    last: float | None = None

    def observe(self, at: float) -> None:
        """Add an arrival at this time."""
        last, old = self.last, self.gap_s
        if last is not None:
            gap = at - last if at > last else 0.0
            self.gap_s = gap if old is None else old + GAP_WEIGHT * (gap - old)
        self.last = at

    def expected_s(self, now: float) -> float | None:
        """Return the expected seconds until the next arrival; None while unknown."""
        if self.gap_s is None or self.last is None:
            return None
        return max(self.gap_s, now - self.last)


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
    """A batch that took `took_s`, and whose callers may come back until `until`; `came` have.

    The first of them was enqueued at `enqueued_at`, and was here at `first_at`.
    """

    ended_at: float
    size: int
    until: float
    took_s: float = 0.0
    enqueued_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    came: int = 0


@dataclass(slots=True)
class Returns:
    """The callers that come back: how many, and when, after the end of their batch.

    In a closed loop each caller sends its next job as soon as it has the answer to its last one. So
    jobs come shortly after the end of a batch and not before, and a mean gap between arrivals is of
    no use. This is learned from the ends of batches and from the jobs that follow them; who sent a
    job is not known.

    A share of the callers comes back: the jobs that are enqueued after the end in the time in which
    callers come back, less those that would come in that time at random, to the size of the batch.
    Jobs come at random at the rate of the quiet time before: from the start of the batch on, or
    from when the callers of the batches observed before are late. So for jobs at random, the share
    is near 0. When callers come is learned as TCP learns its retransmission timeout (RFC 6298): a
    running mean, and a running mean deviation.

    Attributes:
        seen: how many batches were observed.
        enqueued_s: after how many seconds the first one is enqueued.
        first_s: after how many seconds the first one is here.
        last_s: after how many seconds the last one is here.
        deviation_s: the mean deviation of `last_s`.
    """

    seen: int = 0
    enqueued_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    deviation_s: float = 0.0
    #: The running means of how many callers come back, and of how many a batch has.
    _back: float = 0.0
    _size: float = 0.0
    #: When the callers' time of the batches that were observed is over.
    _late_at: float = float("-inf")
    _delay_s: float = 0.0
    _open: deque[EndedBatch] = field(default_factory=lambda: deque(maxlen=OPEN_MAX))
    #: When the latest jobs were enqueued, sorted.
    _recent: list[float] = field(default_factory=list)
    _kept: int = RECENT

    @property
    def late_s(self) -> float:
        """After how many seconds a caller that has not come back is late; 0 while unknown."""
        return self.last_s + DEVIATIONS * self.deviation_s

    @property
    def early_s(self) -> float:
        """Before how many seconds no caller is expected to be enqueued."""
        return max(0.0, EARLY_SHARE * self.enqueued_s - DEVIATIONS * self.deviation_s)

    @property
    def share(self) -> float:
        """The share of the callers that come back; below 0 only by chance."""
        return self._back / self._size if self._size else 0.0

    @property
    def _weight(self) -> float:
        """The weight of the newest batch in the running share: at first, all have the same."""
        return max(SHARE_WEIGHT, 1 / self.seen)

    @property
    def known(self) -> bool:
        """Whether callers are known to come back."""
        if self.seen < SEEN_MIN:
            return False
        return self._back - CHANCE * self._weight >= SHARE_MIN * self._size

    def batch_ended(self, size: int, now: float, delay_s: float, took_s: float) -> None:
        """Note the end of a batch of `size` jobs that took `took_s`.

        The first caller that comes back opens a batch, which waits for at most `delay_s`.
        """
        self._expire(now)
        self._delay_s = delay_s
        self._kept = max(self._kept, RECENT_BATCHES * size)
        if size:
            self._open.append(EndedBatch(now, size, now + max(delay_s, took_s), took_s))

    def arrived(self, enqueued_at: float, now: float) -> None:
        """Note a new job, which is here since `now`."""
        self._expire(now)
        enqueued_at = min(enqueued_at, now)  # Redis' clock may have been set back since
        insort(self._recent, enqueued_at)
        if len(self._recent) > self._kept:
            del self._recent[0]
        batch = self._batch_of(enqueued_at)
        if batch is None:
            return
        if not batch.came:
            batch.enqueued_at, batch.first_at = enqueued_at, now
            batch.until = now + self._delay_s
            if self.last_s:
                late_at = batch.ended_at + 2 * self.late_s
                batch.until = min(batch.until, max(now, late_at))
        batch.came, batch.last_at = batch.came + 1, now
        if batch.came == batch.size:
            self._open.remove(batch)
            self._learn(batch)

    def _batch_of(self, enqueued_at: float) -> EndedBatch | None:
        """Return the batch of which this is a caller: the last one after which it is not early."""
        if not self._open or enqueued_at <= self._open[0].ended_at:
            return None
        early_s, last = self.early_s, None
        for batch in reversed(self._open):
            after_s = enqueued_at - batch.ended_at
            if after_s > early_s:
                return batch
            if last is None and after_s > 0:
                last = batch
        return last

    def expected(self, now: float, running: int = 0) -> Expected | None:
        """Return who should come back, if anyone.

        A batch of `running` jobs counts as if it ended now.
        """
        self._expire(now)
        if not self.known:
            return None
        share = 1.0 if self.share >= ALL_MIN else self.share
        count, first_at, last_at, late_at = 0, float("inf"), now, now
        ended = [EndedBatch(now, running, now)] if running else []
        for batch in (*self._open, *ended):
            missing = round(batch.size * share) - batch.came
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
        early_s, took_s = self.early_s, batch.took_s
        # No longer than the batch: otherwise callers of the next one would be counted too.
        within_s = min((self.late_s or self._delay_s) - early_s, took_s)
        early_at = at + early_s
        # The jobs of the batch itself came before it began.
        quiet_at = max(at - took_s, self._late_at)
        if early_at - quiet_at < QUIET_MIN * within_s:
            quiet_at = early_at - within_s
        self._late_at = max(self._late_at, early_at + within_s)
        times = (quiet_at, early_at, early_at + within_s)
        quiet, early, late = (bisect(self._recent, time) for time in times)
        at_random = (early - quiet) * within_s / ((early_at - quiet_at) or 1.0)
        self.seen += 1
        weight = self._weight
        self._back += weight * (min(late - early, size) - min(at_random, size) - self._back)
        self._size += weight * (size - self._size)
        if not batch.came:
            return
        times_s = [time - at for time in (batch.enqueued_at, batch.first_at, batch.last_at)]
        if not self.last_s:
            self.enqueued_s, self.first_s, self.last_s = times_s
            self.deviation_s = self.last_s / 2
            return
        most_s = max(ERROR_MAX * self.deviation_s, ERROR_SHARE * self.last_s)
        means_s = (self.enqueued_s, self.first_s, self.last_s)
        errors_s = [
            max(-most_s, min(most_s, time_s - mean_s))
            for time_s, mean_s in zip(times_s, means_s, strict=True)
        ]
        self.enqueued_s, self.first_s, self.last_s = (
            mean_s + MEAN_WEIGHT * error_s
            for mean_s, error_s in zip(means_s, errors_s, strict=True)
        )
        self.deviation_s += DEVIATION_WEIGHT * (abs(errors_s[-1]) - self.deviation_s)
