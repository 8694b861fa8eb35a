"""Decides until when expired leases may be reaped. Pure: times are arguments."""

from __future__ import annotations

from headrace.redis.clock import US_PER_S

_NEVER = float("inf")


class ReapClock:
    """Delays reaping after an outage, and maps this process' clock to that of Redis.

    All holders of leases that were cut off by the same outage need a lease's time to renew.
    So nothing is reaped before `lease_ttl_s` seconds after the connection, which is also after the
    server's own start.
    """

    def __init__(self, lease_ttl_s: float) -> None:
        self._lease_ttl_s = lease_ttl_s
        self._after = _NEVER
        # Redis' clock at this process' second 0.
        self._server_zero_us: int | None = None

    def connected(self, now: float) -> None:
        """Start the delay, as the connection is new."""
        self._after = now + self._lease_ttl_s
        self._server_zero_us = None

    def disconnected(self) -> None:
        """Reap nothing until the next connection."""
        self._after = _NEVER

    def delay(self, now: float) -> None:
        """Start the delay again: this process or Redis was stopped, and so may have been others."""
        self._after = max(self._after, now + self._lease_ttl_s)

    def set_server_time(self, server_us: int, now: float) -> None:
        """Note what Redis' clock shows at `now`, in microseconds."""
        self._server_zero_us = server_us - int(now * US_PER_S)

    def until_us(self, now: float) -> int:
        """Return until when, by Redis' clock, a sweep that is sent at `now` may reap; 0 for never.

        The limit is near. Over a slow network, or at a server that hung, a sweep may arrive a
        minute late. By then all leases have expired, and their holders could not renew them.
        """
        if now < self._after or self._server_zero_us is None:
            return 0
        return self._server_zero_us + int((now + self._lease_ttl_s / 3) * US_PER_S)
