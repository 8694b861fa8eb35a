"""Which receiver may be sent something now, and how long the rest waits."""

from __future__ import annotations

import pytest

from workers.background.webhooks.delivery import RETRY_MAX_S, backoff_s
from workers.background.webhooks.throttling import (
    ATTEMPTS_MAX,
    CLOSED_MAX_S,
    CLOSED_S,
    ENDPOINTS_MAX,
    FORGET_S,
    PER_ENDPOINT,
    PER_OWNER,
    PER_OWNER_MIN,
    PER_QUICK_ENDPOINT,
    QUEUE_MAX_S,
    TRIP,
    EndpointState,
    EndpointThrottle,
)


def test_so_many_at_a_time_and_the_rest_one_behind_the_other() -> None:
    endpoint = EndpointState(took_s=1.0)
    for _ in range(PER_ENDPOINT):
        assert endpoint.wait_s(100.0) == 0
        endpoint.running += 1
    waits = [endpoint.wait_s(100.0) for _ in range(3)]
    assert waits == pytest.approx([1 / PER_ENDPOINT, 2 / PER_ENDPOINT, 3 / PER_ENDPOINT])
    assert max(endpoint.wait_s(100.0) for _ in range(10_000)) <= QUEUE_MAX_S
    endpoint.running -= 1
    assert endpoint.wait_s(100.0) == 0, "room is for whoever comes first"


def test_one_that_answers_quickly_has_more_until_it_does_not() -> None:
    endpoint = EndpointState()
    for _ in range(6):
        endpoint.ended(0.0, 0.01, answers=True)
    endpoint.running = PER_QUICK_ENDPOINT - 1
    assert endpoint.wait_s(0.0) == 0
    endpoint.ended(0.0, 2.0, answers=True)
    assert endpoint.wait_s(0.0) > 0


def test_one_that_is_down_is_left_alone_for_longer_and_longer() -> None:
    endpoint, now = EndpointState(), 0.0
    for _ in range(TRIP - 1):
        endpoint.ended(now, 0.1, answers=False)
    assert endpoint.wait_s(now) == 0
    closed = []
    for _ in range(12):
        endpoint.ended(now, 0.1, answers=False)
        closed.append(endpoint.closed_until - now)
        assert endpoint.wait_s(now) > closed[-1]
        now = endpoint.closed_until
        assert endpoint.wait_s(now) == 0, "one tries"
        endpoint.running = 1
        assert endpoint.wait_s(now) > 0, "and no other"
        endpoint.running = 0
    assert closed[0] == CLOSED_S
    assert closed == sorted(closed)
    assert closed[-1] == CLOSED_MAX_S
    endpoint.ended(now, 0.1, answers=True)
    assert endpoint.failures == 0


def test_it_is_left_alone_for_as_long_as_it_asks() -> None:
    endpoint = EndpointState()
    endpoint.ended(10.0, 0.1, answers=True, hold_s=60)
    assert endpoint.wait_s(69.0) >= 1
    assert endpoint.wait_s(69.0, by_hand=True) == 0
    assert endpoint.wait_s(70.0) == 0


def test_nothing_is_remembered_for_nothing() -> None:
    endpoints = EndpointThrottle()
    busy, failing, quiet = (endpoints.of(("", host, 0)) for host in "abc")
    busy.running, failing.failures = 1, 1
    assert endpoints.of(("", "c", 0)) is quiet
    endpoints.prune(1.0)
    assert [place[1] for place in endpoints.known] == ["a", "b"]


def test_a_failure_is_forgotten_once_it_is_long_ago() -> None:
    endpoints = EndpointThrottle()
    for _ in range(TRIP + 20):
        endpoints.begin(("", "down", 0))
        endpoints.leave(("", "down", 0))
        endpoints.ended(("", "down", 0), 10.0, 0.1, answers=False, hold_s=0.0)
    endpoints.prune(10.0 + CLOSED_MAX_S + 1)
    assert endpoints.known
    endpoints.prune(10.0 + FORGET_S + 1)
    assert not endpoints.known


def test_only_so_many_failures_are_remembered() -> None:
    endpoints = EndpointThrottle()
    for number in range(ENDPOINTS_MAX + 3):
        endpoints.of(("", str(number), 0)).failures = 1
    endpoints.known["", "0", 0].running = 1
    endpoints.prune(1.0)
    first, second, *_ = endpoints.known
    assert len(endpoints.known) == ENDPOINTS_MAX
    assert (first[1], second[1]) == ("0", "4"), "the oldest go, except what runs"


def started(endpoints: EndpointThrottle, key: str, wanted: int = ATTEMPTS_MAX) -> int:
    """How many attempts of a key begin, each for a receiver of its own."""
    count = 0
    for number in range(wanted):
        endpoint = (key, str(number), 0)
        if not endpoints.wait_s(endpoint, 1.0):
            endpoints.begin(endpoint)
            count += 1
    return count


def test_a_key_has_its_share_of_all_places_however_many_receivers_it_names() -> None:
    endpoints = EndpointThrottle()
    assert started(endpoints, "a") == PER_OWNER
    delayed = [endpoints.wait_s(("a", f"later {n}", 0), 1.0) for n in range(3)]
    assert delayed == sorted(delayed)
    assert started(endpoints, "b", 5) == 5, "another key has places"
    counts = [started(endpoints, f"key {n}") for n in range(200)]
    assert min(counts) == PER_OWNER_MIN
    running = sum(counts) + PER_OWNER + 5
    assert running <= ATTEMPTS_MAX + PER_OWNER_MIN * len(endpoints.owners)
    endpoints.leave(("a", "0", 0))
    assert endpoints.wait_s(("a", "0", 0), 1.0) > 0, "and who had more waits"


def test_retries_come_after_longer_and_longer_times() -> None:
    assert all(0 <= backoff_s(1) <= 5 for _ in range(100))
    for tries in (2, 5, 9, 50, 10_000):
        drawn = [backoff_s(tries) for _ in range(200)]
        most = min(RETRY_MAX_S, 5.0 * 4 ** min(tries - 1, 16))
        assert max(drawn) <= most
        assert max(drawn) > most / 2 > min(drawn)
