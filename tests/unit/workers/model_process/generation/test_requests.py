"""Which request of a generator joins next, and which is put back first."""

from __future__ import annotations

from workers.model_process.batch_state import StageTimes
from workers.model_process.generation.requests import (
    OVERDUE_EVERY,
    PASSES_MAX,
    Request,
    WaitingRequests,
    put_back_first,
    that_make_room,
)


def request(number: int, cost: int = 1, *, offline: bool = False, until: float = 9e9) -> Request:
    one = Request(number, number, f"job{number}", None, cost, set(), StageTimes())
    one.offline, one.yields_until = offline, until
    return one


def waiting(*requests: Request) -> WaitingRequests:
    waiting_requests = WaitingRequests()
    for request in requests:
        waiting_requests.add(request)
    return waiting_requests


def order(requests: WaitingRequests) -> list[int]:
    """The numbers of requests that join one after the other, if each has room."""
    found = []
    while requests:
        first = requests.candidates()[0]
        requests.joined(first)
        found.append(first.number)
    return found


def test_the_oldest_and_the_cheapest_join_in_turns() -> None:
    requests = waiting(request(1, 50), request(2, 40), request(3, 3), request(4, 1), request(5, 2))
    assert order(requests) == [1, 4, 2, 5, 3]


def test_online_ones_join_before_offline_ones() -> None:
    requests = waiting(request(1, offline=True), request(2), request(3, offline=True), request(4))
    assert order(requests) == [2, 4, 1, 3]


def test_a_request_without_room_lets_only_so_many_pass() -> None:
    large = request(1, 100)
    requests = waiting(large)
    for number in range(2, PASSES_MAX + 2):
        requests.add(small := request(number))
        assert small in requests.candidates()
        requests.joined(small)
    requests.add(request(99))
    assert requests.candidates() == [large]
    requests.joined(large)
    assert order(requests) == [99]


def test_a_late_offline_request_holds_no_online_one_back() -> None:
    large = request(1, 100, offline=True)
    large.passes = PASSES_MAX
    requests = WaitingRequests()
    requests.add(large)
    large.passes = PASSES_MAX
    requests.add(request(2, offline=True))
    requests.add(online := request(3))
    assert requests.candidates() == [online, large]


def test_one_that_was_put_back_comes_before_younger_ones() -> None:
    requests = waiting(request(5), request(6))
    requests.add(back := request(2))
    assert requests.candidates()[0] is back


def test_one_in_ten_may_be_an_offline_request_that_has_yielded_for_too_long() -> None:
    old = [request(number, offline=True, until=10) for number in (1, 2)]
    requests = waiting(*old)
    requests.favour([], now=9.9)
    assert not any(one.favoured for one in old)
    requests.favour([], now=10)
    requests.favour([], now=10)
    assert [one.favoured for one in old] == [True, False]
    assert requests.candidates()[0] is old[0]
    requests.joined(old[0])
    for number in range(3, OVERDUE_EVERY + 2):
        requests.favour([], now=10)
        assert not old[1].favoured
        requests.add(one := request(number))
        requests.joined(one)
    requests.favour(old[:1], now=10)
    assert not old[1].favoured  # the other one still runs
    requests.favour([], now=10)
    assert old[1].favoured


def test_the_newest_offline_request_is_put_back_first() -> None:
    running = [request(1), request(2, offline=True), request(3), request(4, offline=True)]
    assert [one.number for one in put_back_first(running)] == [4, 2, 3, 1]
    running[3].favoured = True
    assert [one.number for one in put_back_first(running)] == [2, 4, 3, 1]


def test_as_few_offline_requests_are_put_back_as_make_room() -> None:
    running = [request(n, cost=10, offline=n != 2) for n in range(1, 6)]

    def leaving(needed: int, slots: int, tokens: int) -> list[int]:
        found = that_make_room(running, needed, slots, tokens, lambda one: one.cost)
        return [one.number for one in found]

    assert leaving(5, 0, 100) == [5]
    assert leaving(15, 0, 0) == [5, 4]
    assert leaving(40, 0, 0) == [5, 4, 3, 1]
    assert leaving(41, 0, 0) == []
    running[4].cannot_resume = True
    assert leaving(5, 0, 100) == [4]
    # Without company it has the whole memory.
    assert that_make_room([running[0]], 99, 0, 0, lambda one: one.cost) == [running[0]]
