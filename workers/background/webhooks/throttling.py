"""Limits the attempts per receiver, so that a slow or failing receiver does not delay others.

A receiver is a host and port, per API key. Independent of HTTP and clocks: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: How many of the worker's threads may send to one receiver at once, ...
PER_ENDPOINT: Final = 4
#: ... and to one that answers within QUICK_S seconds.
PER_QUICK_ENDPOINT: Final = 8
QUICK_S: Final = 0.2
#: After TRIP failures in a row a receiver gets no attempts for a while, and then one at a time.
TRIP: Final = 5
CLOSED_S: Final = 5.0
CLOSED_MAX_S: Final = 300.0
#: The longest wait for a free place at a receiver, in seconds.
QUEUE_MAX_S: Final = 300.0

#: The API key, the host and the port (0 for the scheme's own) of a receiver.
EndpointKey = tuple[str, str, int]


@dataclass(slots=True)
class EndpointState:
    """One receiver, as this process' attempts have found it.

    Attributes:
        running: attempts in flight.
        failures: failed attempts since the last success.
        closed_until: no attempt begins before this time.
        next_at: the time of the last attempt that was delayed.
        took_s: the moving average of an attempt's duration.
    """

    running: int = 0
    failures: int = 0
    closed_until: float = 0.0
    next_at: float = 0.0
    took_s: float = 0.5

    def wait_s(self, now: float) -> float:
        """Return the seconds by which to delay an attempt; 0 if it may begin."""
        most = PER_QUICK_ENDPOINT if self.took_s < QUICK_S else PER_ENDPOINT
        if self.failures >= TRIP:
            most = 1
        if now >= self.closed_until and self.running < most:
            return 0.0
        # Delayed attempts follow each other at the receiver's pace, so that each finds a place.
        free_at = max(now, self.closed_until, self.next_at) + self.took_s / most
        self.next_at = min(free_at, max(now, self.closed_until) + QUEUE_MAX_S)
        return self.next_at - now

    def ended(self, now: float, took_s: float, *, answers: bool, hold_s: float = 0.0) -> None:
        """Note that an attempt has ended.

        Args:
            now: the time.
            took_s: the attempt's duration.
            answers: the receiver works, whatever it replied.
            hold_s: the receiver's Retry-After.
        """
        self.took_s += (took_s - self.took_s) / 4
        self.failures = 0 if answers else self.failures + 1
        if self.failures >= TRIP:
            hold_s = max(hold_s, min(CLOSED_MAX_S, CLOSED_S * 2.0 ** (self.failures - TRIP)))
        self.closed_until = max(self.closed_until, now + hold_s)

    def idle(self, now: float) -> bool:
        """Return whether its state is the initial one again."""
        return not self.running and not self.failures and max(self.closed_until, self.next_at) < now


@dataclass(slots=True)
class EndpointThrottle:
    """The receivers of this process."""

    known: dict[EndpointKey, EndpointState] = field(default_factory=dict)

    def of(self, endpoint: EndpointKey) -> EndpointState:
        """Return the state of a receiver."""
        return self.known.setdefault(endpoint, EndpointState())

    def forget(self, now: float) -> None:
        """Drop the states of idle receivers."""
        for endpoint in [endpoint for endpoint, state in self.known.items() if state.idle(now)]:
            del self.known[endpoint]
