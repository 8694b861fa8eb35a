"""Limits the attempts of a background worker, per receiver and per API key.

A receiver is a host and port, per API key, so that a slow or failing receiver delays no other. All
receivers of a key share its places, so that a key with many receivers delays no other key.
Independent of HTTP and clocks: times are arguments, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: How many attempts may run for a receiver at once, ...
PER_ENDPOINT: Final = 4
#: ... and for a receiver that answers within QUICK_S seconds.
PER_QUICK_ENDPOINT: Final = 8
QUICK_S: Final = 0.2
#: How many attempts run at once: keys with attempts share them, ...
ATTEMPTS_MAX: Final = 256
#: ... a key has no more than this many, ...
PER_OWNER: Final = 32
#: ... and no less than this many, however many keys there are.
PER_OWNER_MIN: Final = 2
#: After TRIP failures in a row a receiver gets no attempts for a while, and then one at a time.
TRIP: Final = 5
CLOSED_S: Final = 5.0
CLOSED_MAX_S: Final = 300.0
#: The longest wait for a free place, in seconds.
QUEUE_MAX_S: Final = 300.0
#: The failures of a receiver are forgotten when it has had no attempt for so long, in seconds, ...
FORGET_S: Final = 2 * CLOSED_MAX_S
#: ... or when it is the oldest of more receivers than this.
ENDPOINTS_MAX: Final = 10_000

#: The API key, the host and the port (0 for the scheme's own) of a receiver.
EndpointKey = tuple[str, str, int]


@dataclass(slots=True)
class Places:
    """Places for attempts that run at once.

    Attributes:
        next_at: the time of the last attempt that was delayed.
        took_s: the moving average of an attempt's duration.
    """

    running: int = 0
    next_at: float = 0.0
    took_s: float = 0.5

    def delay_s(self, now: float, places: int, begin: float) -> float:
        """Return the seconds by which to delay an attempt that has no place before `begin`."""
        # Delayed attempts follow each other at this pace, so that each finds a place.
        free_at = max(now, begin, self.next_at) + self.took_s / places
        self.next_at = min(free_at, max(now, begin) + QUEUE_MAX_S)
        return self.next_at - now

    def took(self, seconds: float) -> None:
        """Note how long an attempt took."""
        self.took_s += (seconds - self.took_s) / 4


@dataclass(slots=True)
class EndpointState(Places):
    """A receiver, as this process' attempts know it.

    Attributes:
        failures: failed attempts since the last success.
        closed_until: no attempt begins before this time.
    """

    failures: int = 0
    closed_until: float = 0.0
    ended_at: float = 0.0

    def wait_s(self, now: float, *, by_hand: bool = False) -> float:
        """Return the seconds by which to delay an attempt; 0 if it may begin.

        One that was requested `by_hand` waits for no pause.
        """
        if by_hand:
            return 0.0 if self.running < PER_QUICK_ENDPOINT else self.took_s
        places = PER_QUICK_ENDPOINT if self.took_s < QUICK_S else PER_ENDPOINT
        if self.failures >= TRIP:
            places = 1
        if now >= self.closed_until and self.running < places:
            return 0.0
        return self.delay_s(now, places, self.closed_until)

    def ended(self, now: float, took_s: float, *, answers: bool, hold_s: float = 0.0) -> None:
        """Note that an attempt has ended; `answers` if the receiver works, whatever it replied.

        `hold_s` is the receiver's Retry-After.
        """
        self.took(took_s)
        self.ended_at = now
        self.failures = 0 if answers else self.failures + 1
        if self.failures >= TRIP:
            hold_s = max(hold_s, min(CLOSED_MAX_S, CLOSED_S * 2.0 ** (self.failures - TRIP)))
        self.closed_until = max(self.closed_until, now + hold_s)

    def idle(self, now: float) -> bool:
        """Return whether nothing of it needs to be known any more."""
        if self.running or max(self.closed_until, self.next_at) >= now:
            return False
        return not self.failures or self.ended_at + FORGET_S < now


@dataclass(slots=True)
class EndpointThrottle:
    """The receivers and the API keys of this process.

    Attributes:
        known: the receivers, in the order of their latest attempts.
        owners: the API keys that have attempts, or had some a moment ago.
    """

    known: dict[EndpointKey, EndpointState] = field(default_factory=dict)
    owners: dict[str, Places] = field(default_factory=dict)

    def of(self, endpoint: EndpointKey) -> EndpointState:
        """Return the state of a receiver."""
        return self.known.setdefault(endpoint, EndpointState())

    def wait_s(self, endpoint: EndpointKey, now: float, *, by_hand: bool = False) -> float:
        """Return the seconds by which to delay an attempt; 0 if it may begin."""
        wait_s = self.of(endpoint).wait_s(now, by_hand=by_hand)
        if wait_s > 0:
            return wait_s
        owner = self._owner(endpoint)
        counts = [user.running for user in self.owners.values() if user.running]
        places = PER_OWNER_MIN
        if sum(counts) < ATTEMPTS_MAX:
            busy = len(counts) + (not owner.running)
            places = max(PER_OWNER_MIN, min(PER_OWNER, ATTEMPTS_MAX // busy))
        return 0.0 if owner.running < places else owner.delay_s(now, places, now)

    def begin(self, endpoint: EndpointKey) -> None:
        """Count an attempt that begins, until `leave`."""
        state = self.known[endpoint] = self.known.pop(endpoint, EndpointState())
        state.running += 1
        self._owner(endpoint).running += 1

    def leave(self, endpoint: EndpointKey) -> None:
        """Count an attempt no longer."""
        self.of(endpoint).running -= 1
        self._owner(endpoint).running -= 1

    def ended(
        self, endpoint: EndpointKey, now: float, took_s: float, *, answers: bool, hold_s: float
    ) -> None:
        """Note how an attempt has ended; the arguments are those of `EndpointState.ended`."""
        self.of(endpoint).ended(now, took_s, answers=answers, hold_s=hold_s)
        self._owner(endpoint).took(took_s)

    def prune(self, now: float) -> None:
        """Drop what need not be known any more."""
        for endpoint in [endpoint for endpoint, state in self.known.items() if state.idle(now)]:
            del self.known[endpoint]
        surplus = max(0, len(self.known) - ENDPOINTS_MAX)
        still = [endpoint for endpoint, state in self.known.items() if not state.running]
        for endpoint in still[:surplus]:
            del self.known[endpoint]
        for name in [
            name for name, user in self.owners.items() if not user.running and user.next_at < now
        ]:
            del self.owners[name]

    def _owner(self, endpoint: EndpointKey) -> Places:
        return self.owners.setdefault(endpoint[0], Places())
