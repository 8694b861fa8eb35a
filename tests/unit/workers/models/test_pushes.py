"""What a worker does at a push: it claims, or it looks a moment later as others take the jobs."""

from __future__ import annotations

from math import inf

from workers.models.backlog import (
    BUSY_LOOK_S,
    FEW_WORKERS,
    IDLE_LOOK_S,
    OWN,
    VAIN_MAX,
    Backlog,
    Place,
)

NOW = 1000.0
PLACE = Place(OWN, 0)
ROOM = [8, 8, 8, 8]
MANY = FEW_WORKERS + 1


def claims(one: Backlog, *, workers: int = MANY, busy: bool = False) -> bool:
    """Whether it claims at once at a push."""
    one.notified(PLACE, NOW, workers=workers, busy=busy)
    return one.claimable


def came(one: Backlog, jobs: int) -> None:
    one.claim_sent(ROOM, NOW)
    one.claim_answered(jobs, [0, 0, 0, 0], NOW)


def vain(*, workers: int = MANY) -> Backlog:
    """Its claims at pushes have brought nothing."""
    one = Backlog()
    for _ in range(VAIN_MAX):
        assert claims(one, workers=workers)
        came(one, 0)
    return one


def test_an_idle_worker_that_never_gets_the_job_looks_a_moment_later() -> None:
    one = vain()
    assert not claims(one)
    assert not one.watches(PLACE, NOW)
    assert NOW + IDLE_LOOK_S[0] <= one.look_due(NOW) <= NOW + IDLE_LOOK_S[1]
    later = one.look_due(NOW)
    assert one.watches(PLACE, later)
    assert one.look_due(later) == inf, "it does not turn again for a look that is due"


def test_a_job_that_a_look_has_found_lets_it_claim_at_pushes_again() -> None:
    one = vain()
    assert not claims(one)
    one.missed(PLACE)
    assert one.claimable
    came(one, 0)
    assert not claims(one), "another worker was faster again"
    one.missed(PLACE)
    came(one, 1)
    assert claims(one)


def test_a_busy_worker_leaves_the_job_to_idle_ones_until_it_is_idle_itself() -> None:
    one = Backlog()
    assert not claims(one, busy=True)
    assert NOW + BUSY_LOOK_S[0] <= one.look_due(NOW)
    assert BUSY_LOOK_S[0] > IDLE_LOOK_S[1]
    one.look_now()
    assert one.watches(PLACE, NOW)


def test_a_worker_alone_claims_at_every_push() -> None:
    assert claims(vain(workers=1), workers=1)
    assert claims(Backlog(), workers=1, busy=True)
    assert claims(vain(), workers=1), "the others have ended"


def test_one_of_few_workers_claims_at_every_push_while_it_is_idle() -> None:
    assert claims(vain(workers=FEW_WORKERS), workers=FEW_WORKERS)
    assert not claims(Backlog(), workers=FEW_WORKERS, busy=True)
