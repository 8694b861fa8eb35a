"""Who may be sent a webhook now: so that one receiver that is slow or down holds up no other.

A receiver is a host and port, of one API key. Knows no HTTP and no clock: times are given in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: Tries under way at a time to one receiver, of the threads that do errands, ...
PER_ENDPOINT: Final = 4
#: ... and to one that has answered within so many seconds, as it holds each of them but briefly.
PER_QUICK_ENDPOINT: Final = 8
QUICK_S: Final = 0.2
#: After so many failures in a row a receiver is left alone for a while, and then tried by one.
TRIP: Final = 5
CLOSED_S: Final = 5.0
CLOSED_MAX_S: Final = 300.0
#: Nothing is put off further than this for want of room alone.
QUEUE_MAX_S: Final = 300.0

Place = tuple[str, str, int]


@dataclass(slots=True)
class EndpointState:
    """One receiver, as the tries of this process have found it.

    Attributes:
        running: tries under way.
        failures: how many have failed since one went well.
        closed_until: until then nobody tries.
        next_at: when the last of those that were put off is to try.
        took_s: what a try takes, roughly.
    """

    running: int = 0
    failures: int = 0
    closed_until: float = 0.0
    next_at: float = 0.0
    took_s: float = 0.5

    def wait_s(self, now: float) -> float:
        """How long a try is to be put off; 0 where it may begin."""
        most = PER_QUICK_ENDPOINT if self.took_s < QUICK_S else PER_ENDPOINT
        if self.failures >= TRIP:
            most = 1
        if now >= self.closed_until and self.running < most:
            return 0.0
        # One behind the other at the pace at which it answers, so that nobody asks in vain.
        free_at = max(now, self.closed_until, self.next_at) + self.took_s / most
        self.next_at = min(free_at, max(now, self.closed_until) + QUEUE_MAX_S)
        return self.next_at - now

    def ended(self, now: float, took_s: float, *, answers: bool, hold_s: float = 0.0) -> None:
        """A try has ended.

        Args:
            now: the time.
            took_s: what it took.
            answers: whether the receiver is in order, whatever it thinks of what it was sent.
            hold_s: for how long it has asked to be left alone.
        """
        self.took_s += (took_s - self.took_s) / 4
        self.failures = 0 if answers else self.failures + 1
        if self.failures >= TRIP:
            hold_s = max(hold_s, min(CLOSED_MAX_S, CLOSED_S * 2.0 ** (self.failures - TRIP)))
        self.closed_until = max(self.closed_until, now + hold_s)

    def idle(self, now: float) -> bool:
        """Whether there is nothing to remember of it."""
        return not self.running and not self.failures and max(self.closed_until, self.next_at) < now


@dataclass(slots=True)
class EndpointThrottle:
    """All receivers of this process."""

    known: dict[Place, EndpointState] = field(default_factory=dict)

    def of(self, place: Place) -> EndpointState:
        """One of them."""
        return self.known.setdefault(place, EndpointState())

    def forget(self, now: float) -> None:
        """Forget those of which there is nothing to remember."""
        for place in [place for place, one in self.known.items() if one.idle(now)]:
            del self.known[place]
