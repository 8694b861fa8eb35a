"""How one claim takes from the two queues of a model, and what is then known of both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from workers.models.backlog import OWN, PLACES, VERSION, YIELD_EVERY, Backlog, Place

NOW = 1000.0
ROOM = [8, 8, 8, 4]


def backlog(own: Sequence[int], version: Sequence[int], yield_s: float = 0.0) -> Backlog:
    made = Backlog(yield_s)
    made.raise_waiting(own, OWN)
    made.raise_waiting(version, VERSION)
    return made


def claim(one: Backlog, room: Sequence[int] = ROOM, now: float = NOW) -> dict[int, list[int]]:
    """The room of each queue that is claimed from; nothing comes and everything stays."""
    before = [list(queue.waiting) for queue in one.queues]
    shares = {number: list(share) for number, share in one.claim_sent(room, now)}
    for number in shares:
        one.claim_answered(0, before[number], now, number)
    return shares


def test_a_queue_alone_gets_all_room_and_one_call() -> None:
    assert claim(backlog([9, 0, 0, 0], [0] * 4)) == {OWN: ROOM}
    assert claim(backlog([0] * 4, [9, 0, 0, 0])) == {VERSION: ROOM}
    assert claim(backlog([0] * 4, [0] * 4)) == {OWN: ROOM}, "a guess, or a test"


@pytest.mark.parametrize(
    ("own", "version", "rooms"),
    [
        ([90, 0, 0, 0], [30, 0, 0, 0], ([6, 6, 6, 2], [2, 2, 2, 2])),
        ([900, 0, 0, 0], [1, 0, 0, 0], ([7, 7, 7, 3], [1, 1, 1, 1])),
        ([1, 0, 0, 0], [900, 0, 0, 0], ([1, 1, 1, 0], [7, 7, 7, 4])),
        ([2, 0, 0, 0], [3, 0, 0, 0], ([5, 5, 5, 1], [3, 3, 3, 3])),
        ([9, 0, 0, 0], [0, 0, 0, 9], ([8, 8, 8, 4], [0, 0, 0, 0])),
        ([2, 0, 0, 0], [0, 9, 0, 0], ([8, 2, 2, 0], [0, 6, 6, 4])),
        ([2, 6, 0, 0], [1, 3, 0, 0], ([7, 6, 6, 2], [1, 2, 2, 2])),
    ],
    ids=[
        "by what waits",
        "at least one",
        "for each",
        "all fit",
        "better first",
        "then the rest",
        "of the docstring",
    ],
)
def test_both_share_the_room(
    own: list[int], version: list[int], rooms: tuple[list[int], list[int]]
) -> None:
    shares = claim(backlog(own, version))
    assert shares == {n: share for n, share in enumerate(rooms) if any(share)}
    for place, most in enumerate(ROOM):
        assert sum(share[place] for share in shares.values()) <= most


def test_of_a_single_place_each_gets_every_second() -> None:
    one = backlog([9, 0, 0, 0], [9, 0, 0, 0])
    got = [next(iter(claim(one, [1, 1, 1, 1]))) for _ in range(4)]
    assert sorted(got) == [OWN, OWN, VERSION, VERSION]


@pytest.mark.parametrize("late", [OWN, VERSION])
def test_what_was_passed_over_for_too_long_gets_one_place_at_times(late: int) -> None:
    waits = {late: [0, 0, 0, 9], 1 - late: [99, 0, 0, 0]}
    one = backlog(waits[OWN], waits[VERSION], yield_s=60)
    assert not any(late in claim(one) for _ in range(YIELD_EVERY))
    turns = [claim(one, now=NOW + 61) for _ in range(2 * YIELD_EVERY)]
    got = [share[late] for share in turns if late in share]
    assert len(got) == 2
    assert all(max(share) == 1 for share in got)
    never = backlog(waits[OWN], waits[VERSION])
    assert not any(late in claim(never, now=NOW + n) for n in range(2 * YIELD_EVERY))


def test_a_claim_is_over_when_both_queues_have_answered() -> None:
    one = backlog([9, 0, 0, 0], [9, 0, 0, 0])
    assert len(one.claim_sent(ROOM, NOW)) == 2
    one.claim_answered(4, [0] * 4, NOW + 1, OWN)
    over = [one.claimable]
    one.claim_answered(3, [5, 0, 0, 0], NOW + 1, VERSION)
    assert [*over, one.claimable] == [False, True]
    assert one.expected_step == 0, "7 of 8 came, and more are known to wait"


def test_a_refused_call_ends_the_claim_with_the_other_one() -> None:
    one = backlog([9, 0, 0, 0], [9, 0, 0, 0])
    one.claim_sent(ROOM, NOW)
    one.refused()
    pending = [one.claiming]
    one.claim_answered(1, [0] * 4, NOW, VERSION)
    assert [*pending, one.claiming] == [1, 0]


def test_a_paused_queue_leaves_all_room_to_the_other() -> None:
    one = backlog([9, 0, 0, 0], [-1, 0, 0, 0])
    one.assume_waiting(PLACES)
    assert claim(one) == {OWN: ROOM}
    assert not one.watches(Place(VERSION, 0), NOW)
    one.raise_waiting([3, 0, 0, 0], VERSION)
    assert one.claim_sent(ROOM, NOW)[1][0] == VERSION


def test_nothing_is_guessed_of_versions_until_jobs_were_found() -> None:
    one = Backlog()
    one.guess(PLACES)
    assert claim(one) == {OWN: ROOM}
    one.missed(Place(VERSION, 0))
    one.claim_sent(ROOM, NOW)
    one.claim_answered(1, [0] * 4, NOW, VERSION)
    one.guess(PLACES)
    assert set(claim(one)) == {OWN, VERSION}
