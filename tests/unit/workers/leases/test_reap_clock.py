"""When expired leases may be reaped, after an outage and by Redis' clock."""

from __future__ import annotations

from headrace.redis.clock import US_PER_S
from workers.leases.manager import ReapClock

TTL_S = 15.0
SERVER_US = 1_000_000 * US_PER_S


def test_nothing_is_reaped_before_one_lease_after_the_connection() -> None:
    clock = ReapClock(TTL_S)
    clock.set_server_time(SERVER_US, 0.0)
    assert clock.until_us(1e9) == 0
    clock.connected(100.0)
    assert clock.until_us(200.0) == 0, "the server's clock is not known again"
    clock.set_server_time(SERVER_US, 100.0)
    assert clock.until_us(100.0 + TTL_S - 0.01) == 0
    assert clock.until_us(100.0 + TTL_S) == SERVER_US + int(TTL_S * 4 / 3 * US_PER_S)
    clock.disconnected()
    assert clock.until_us(1e9) == 0


def test_a_pause_delays_and_never_brings_forward() -> None:
    clock = ReapClock(TTL_S)
    clock.connected(100.0)
    clock.set_server_time(SERVER_US, 100.0)
    clock.delay(50.0)
    assert clock.until_us(100.0 + TTL_S) > 0
    clock.delay(110.0)
    assert clock.until_us(100.0 + TTL_S) == 0
    assert clock.until_us(110.0 + TTL_S) > 0
