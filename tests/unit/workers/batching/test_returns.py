"""When a batch is held for the callers that come back after the end of the batch before it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from benchmarks.batching.simulation import Device, Simulation, lone
from workers.batching.batcher import TRIAL_EVERY, Batcher, BatchPolicy, Hold, Leave
from workers.batching.estimates import (
    OPEN_MAX,
    RECENT,
    SEEN_MIN,
    SLOPE_BATCHES,
    LatencyModel,
    Returns,
)

BATCH_S = 0.020
TRIP_S = 0.002
DELAY_S = 0.005
NEVER = float("inf")


@dataclass(eq=False)
class Waiting:
    enqueued_at: float
    step: int = 0
    key: str | None = None
    overdue_at: float = NEVER
    isolated: bool = False
    cost: int = 0

    @property
    def ready_at(self) -> float:
        return self.enqueued_at


def batcher(
    *, fixed_s: float = BATCH_S, item_s: float = 0.0, delay_s: float = DELAY_S,
    keyed: bool = False, sizes: tuple[int, ...] = (),
) -> Batcher[Waiting]:  # fmt: skip
    made: Batcher[Waiting] = Batcher(BatchPolicy(8, delay_s, keyed=keyed, sizes=sizes))
    for _ in range(20):
        for size in (1, 4):
            made.latency_model.add(size, fixed_s + item_s * size)
    return made


def observed(
    made: Batcher[Waiting], batches: int = 8, size: int = 4, back: int = 4, at: float = 0.0
) -> float:
    """Batches of `size` that end, of which `back` callers come back TRIP_S later; return the time.

    The callers of the last one are to come back.
    """
    for _ in range(batches):
        made.batch_ended(size, at, BATCH_S)
        for _ in range(back):
            made.add(Waiting(at + TRIP_S))
        made.take_all()
        at += BATCH_S + TRIP_S
    made.batch_ended(size, at, BATCH_S)
    return at


def left(decision: Leave[Waiting] | Hold | None) -> Leave[Waiting]:
    assert isinstance(decision, Leave)
    return decision


def held(decision: Leave[Waiting] | Hold | None) -> float:
    assert isinstance(decision, Hold)
    return decision.until


def test_who_is_here_waits_for_the_callers_that_come_back() -> None:
    made = batcher()
    at = observed(made)
    made.add(Waiting(at - 0.015))  # it came while the batch ran
    assert at + TRIP_S <= held(made.decide(at)) <= at + DELAY_S
    for _ in range(3):
        made.add(Waiting(at + TRIP_S))
        assert isinstance(made.decide(at + TRIP_S), Hold)
    made.add(Waiting(at + TRIP_S))
    assert len(left(made.decide(at + TRIP_S)).items) == 5, "nobody else is to come back"


def test_a_hold_whose_items_went_away_does_not_end_the_next_one() -> None:
    made = batcher()
    at = observed(made)
    made.add(gone := Waiting(at - 0.015))
    assert isinstance(made.decide(at), Hold)
    made.remove(gone)
    at = observed(made, at=at + 60)
    made.add(Waiting(at - 0.015))
    assert held(made.decide(at)) >= at + TRIP_S


def test_nobody_is_held_without_evidence() -> None:
    for made, at in (
        (few := batcher(), observed(few, batches=SEEN_MIN - 2)),
        (gone := batcher(), observed(gone, batches=20, back=1)),
    ):
        made.add(Waiting(at - 0.015))
        assert left(made.decide(at)).reason in {"idle", "deadline"}


def test_arrivals_that_do_not_follow_the_end_of_a_batch_are_no_callers() -> None:
    returns = Returns()
    for number in range(4000):
        at = number * 0.001
        if number % 20 == 0:
            returns.batch_ended(4, at, DELAY_S, BATCH_S)
        returns.arrived(at + 0.0005, at + 0.0005)
    assert returns.seen > 100
    assert not returns.known


@pytest.mark.parametrize("gap_s", [0.025, 0.05, 0.1, 0.4])
def test_jobs_that_follow_a_batch_by_chance_are_no_callers(gap_s: float) -> None:
    """A device takes who is here; the jobs come at random."""
    known = batches = 0
    for seed in range(40):
        rng, returns = random.Random(seed), Returns()
        at, free_at, running, waiting = 0.0, NEVER, 0, 0
        for _ in range(200):
            at += rng.expovariate(1 / gap_s)
            while free_at < at:
                returns.batch_ended(running, free_at, DELAY_S, BATCH_S)
                running, waiting = waiting, 0
                free_at = free_at + BATCH_S if running else NEVER
            returns.arrived(at, at)
            waiting += 1
            if free_at == NEVER:
                running, waiting, free_at = waiting, 0, at + BATCH_S
                batches += 1
                known += returns.known
    assert known <= batches / 1000


def test_jobs_from_before_redis_clock_was_set_back_hide_no_callers() -> None:
    returns = Returns()
    for _ in range(2 * RECENT):
        returns.arrived(3600.0, 0.0)
    for number in range(1, 40):
        returning(returns, number * 0.1, 4)
    assert returns.share > 0.95


def test_the_callers_of_very_large_batches_count() -> None:
    returns = Returns()
    for number in range(40):
        returning(returns, number * 0.1, 4 * RECENT)
    assert returns.share > 0.95


def test_jobs_of_the_batch_itself_hide_no_callers() -> None:
    """Batches are so short that the callers before them come within the time to wait."""
    returns = Returns()
    batch_s = 2 * TRIP_S
    at = 0.0
    for _ in range(20):
        returns.batch_ended(4, at, 100 * DELAY_S, batch_s)
        for part in range(4):
            came = at + TRIP_S * (1 + part / 4)
            returns.arrived(came, came)
        at += 2 * TRIP_S + batch_s
    assert returns.share == 1.0


def returning(returns: Returns, at: float, size: int, here_s: float = 0.0) -> None:
    """A batch of `size` ends at `at`; its callers come back, and are here `here_s` later."""
    returns.batch_ended(size, at, 2 * DELAY_S, 0.007)
    for _ in range(size):
        returns.arrived(at + 0.005, at + 0.005 + here_s)


def test_callers_that_come_back_during_the_next_batch_do_not_hide_its_own() -> None:
    """Batches of 8 and 2 take turns on a device that never waits."""
    returns = Returns()
    for number in range(40):
        returning(returns, number * 0.007, 2 if number % 2 else 8)
    assert returns.share > 0.95


def test_callers_that_always_come_during_the_next_batch_are_known() -> None:
    """12 clients in two groups: the device never waits."""
    returns = Returns()
    for number in range(40):
        returning(returns, number * 0.007, 6)
    assert returns.share > 0.95


def test_a_job_at_random_is_not_taken_for_the_last_caller() -> None:
    returns = Returns()
    for number in range(200):
        at = number * 0.1
        returns.batch_ended(4, at, 2 * DELAY_S, 0.020)
        for part in range(4):
            returns.arrived(at + 0.002 + part * 0.0001, at + 0.002 + part * 0.0001)
            if number % 5 == 4 and part == 2:
                returns.arrived(at + 0.0045, at + 0.0045)
    assert returns.last_s == pytest.approx(0.0023, rel=0.2)
    assert returns.late_s < 0.0045


def test_stray_jobs_that_come_late_do_not_move_the_time_of_the_callers() -> None:
    """One batch in 15 is one of a stray job, whose next one comes 30 ms later."""
    returns = Returns()
    for number in range(400):
        at, stray = number * 0.2, number % 15 == 14
        returns.batch_ended(1 if stray else 4, at, 0.05, 0.020)
        for after_s in [0.03] if stray else [0.002, 0.0021, 0.0022, 0.0023]:
            returns.arrived(at + after_s, at + after_s)
    assert returns.known
    assert returns.early_s < 0.002 < 0.0023 < returns.late_s < 0.01


def test_large_batches_of_jobs_at_random_are_no_callers() -> None:
    device = Device(0.020, 0, 128, 0.050)
    simulation = Simulation(device, Batcher, 1)
    rate = 0.9 * device.full_rate
    simulation.run(lone(rate, int(2 * rate), 3))
    assert not simulation.batcher.returns.known


def test_callers_that_become_slower_are_known_again() -> None:
    returns = Returns()
    for number in range(100):
        returning(returns, number * 0.1, 4)
    for number in range(100, 160):
        at = number * 0.1
        returns.batch_ended(4, at, 4 * DELAY_S, 0.020)
        for _ in range(4):
            returns.arrived(at + 0.0095, at + 0.0095)
    assert returns.last_s == pytest.approx(0.0095, rel=0.05)
    assert returns.share > 0.95


def test_a_caller_that_is_too_early_for_the_last_batch_is_one_of_the_batch_before() -> None:
    returns = Returns()
    for number in range(40):
        returning(returns, number * 0.1, 4)
    returns.batch_ended(4, 4.0, 2 * DELAY_S, 0.007)
    returns.batch_ended(4, 4.0045, 2 * DELAY_S, 0.0045)
    for _ in range(4):
        returns.arrived(4.005, 4.005)
    assert returns.last_s == pytest.approx(0.005)
    expected = returns.expected(4.006)
    assert expected is not None
    assert expected.callers == 4


def test_a_small_batch_counts_less_than_a_large_one() -> None:
    returns = Returns()
    for number in range(40):
        at = number * 0.1
        returning(returns, at, 8)
        returns.batch_ended(2, at + 0.05, 2 * DELAY_S, 0.007)  # these callers have gone
    assert 0.7 < returns.share < 0.9


def test_callers_of_whom_a_few_are_missed_by_chance_are_all_expected() -> None:
    returns = Returns()
    at = 0.0
    for number in range(40):
        at = number * 0.1
        returns.batch_ended(10, at, 2 * DELAY_S, 0.007)
        for _ in range(8):
            returns.arrived(at + 0.005, at + 0.005)
    returns.batch_ended(10, at + 0.1, 2 * DELAY_S, 0.007)
    expected = returns.expected(at + 0.1)
    assert expected is not None
    assert expected.callers == 10


def test_callers_count_from_when_they_were_enqueued() -> None:
    """They are here three ms later, each time."""
    returns = Returns()
    for number in range(200):
        returning(returns, number * 0.02, 4, here_s=0.003)
    assert returns.share == pytest.approx(1.0)


def test_jobs_that_were_claimed_late_do_not_count_as_callers() -> None:
    """A worker that is not notified during a short batch sees them all after its end."""
    returns = Returns()
    for number in range(100):
        at = number * 0.004
        returns.batch_ended(4, at, DELAY_S, 0.004)
        for part in range(4):
            returns.arrived(at - 0.004 + part * 0.001, at + 0.0001)
    assert not returns.known


def test_the_delay_counts_from_when_the_batch_could_start_and_bounds_the_hold() -> None:
    made = batcher(fixed_s=1.0, delay_s=0.05)
    at = observed(made)
    made.add(Waiting(at - 0.5))
    first = held(made.decide(at))
    assert first <= at + 0.05
    made.add(Waiting(at + 0.001))
    assert held(made.decide(at + 0.001)) <= at + 0.05
    assert left(made.decide(at + 0.05)).reason == "deadline"


def test_who_waited_for_chance_arrivals_is_bounded_by_its_own_age() -> None:
    made = batcher(fixed_s=1.0, delay_s=0.05)
    made.add(Waiting(9.98))
    made.add(Waiting(9.99))
    assert held(made.decide(10.0)) <= 9.98 + 0.05
    assert left(made.decide(10.031)).reason == "deadline"


def test_who_is_late_is_not_waited_for() -> None:
    made = batcher(delay_s=0.1)
    at = observed(made, batches=40)
    made.add(Waiting(at))
    until = held(made.decide(at))
    assert until < at + 2 * TRIP_S
    assert left(made.decide(until)).reason == "idle"


def test_a_hold_for_callers_that_come_irregularly_costs_no_more_than_it_saves() -> None:
    made = batcher(delay_s=10 * BATCH_S)
    at = observed(made)
    made.returns.deviation_s = BATCH_S  # they are late only after six of these
    made.add(Waiting(at))
    until = held(made.decide(at))
    assert until == pytest.approx(at + BATCH_S)
    assert left(made.decide(until)).reason == "idle"


def test_no_hold_if_the_time_of_a_batch_is_linear_in_its_size() -> None:
    made = batcher(fixed_s=0.0, item_s=0.010)
    at = observed(made)
    made.add(Waiting(at))
    assert left(made.decide(at)).reason == "idle"


def test_no_hold_if_the_callers_take_longer_than_a_batch_saves() -> None:
    made = batcher(fixed_s=TRIP_S / 2, item_s=0.010)
    at = observed(made)
    made.add(Waiting(at))
    assert left(made.decide(at)).reason == "idle"


def test_a_lone_caller_is_never_held() -> None:
    made = batcher()
    at = observed(made, size=1, back=1)
    made.add(Waiting(at + TRIP_S))
    assert left(made.decide(at + TRIP_S)).reason == "idle"


def test_a_hold_that_leaves_most_callers_to_the_next_batch_does_not_pay() -> None:
    made = batcher()
    at = observed(made, size=8, back=8)
    for _ in range(7):
        made.add(Waiting(at))
    assert left(made.decide(at)).reason == "idle", "one place is free, and eight come back"
    made = batcher()
    at = observed(made, size=8, back=8)
    for _ in range(2):
        made.add(Waiting(at))
    assert isinstance(made.decide(at), Hold)


def test_callers_that_go_to_other_workers_are_not_waited_for() -> None:
    made = batcher(delay_s=0.1)
    at = observed(made, batches=40, back=2)
    expected = made.returns.expected(at)
    assert expected is not None
    assert expected.callers == 2
    made.add(Waiting(at - 0.015))
    assert isinstance(made.decide(at), Hold)
    for _ in range(2):
        made.add(Waiting(at + TRIP_S))
    assert len(left(made.decide(at + TRIP_S)).items) == 3


def test_the_callers_of_several_replicas_add_up() -> None:
    made = batcher()
    at = observed(made)
    made.batch_ended(3, at + 0.0005, BATCH_S)
    expected = made.returns.expected(at + 0.0005)
    assert expected is not None
    assert expected.callers == 7


def test_the_end_of_a_closed_loop_costs_few_holds() -> None:
    made = batcher()
    at = observed(made, batches=40)
    holds = 0
    for _ in range(40):
        made.add(Waiting(at + 1.0))
        holds += isinstance(made.decide(at + 1.0), Hold)
        made.take_all()
        at += 2.0
        made.batch_ended(1, at, BATCH_S)
        made.add(Waiting(at))
        holds += isinstance(made.decide(at), Hold)
        made.take_all()
    assert holds <= 15


def test_a_key_that_is_held_keeps_no_other_back() -> None:
    made = batcher(keyed=True)
    at = observed(made)
    one = Waiting(at, key="a")
    made.add(one)
    assert isinstance(made.decide(at), Hold)
    for _ in range(8):
        made.add(Waiting(at - 0.01, key="b"))
    assert {item.key for item in left(made.decide(at)).items} == {"b"}
    assert one in made.take_all()


def test_batches_that_run_at_the_same_allowed_size_are_worth_a_whole_batch() -> None:
    made: Batcher[Waiting] = Batcher(BatchPolicy(8, DELAY_S, sizes=(4, 8)))
    for _ in range(20):
        made.latency_model.add(4, BATCH_S)
    assert made.latency_model.line is None
    made._left = 1  # no trial
    at = observed(made, size=2, back=2)
    made.add(Waiting(at))
    assert isinstance(made.decide(at), Hold)


def test_a_trial_learns_the_times_where_all_batches_have_one_size() -> None:
    made: Batcher[Waiting] = Batcher(BatchPolicy(8, DELAY_S))
    for _ in range(20):
        made.latency_model.add(1, BATCH_S)
    at = observed(made, size=1, back=1)
    trials = 0
    for _ in range(2 * TRIAL_EVERY):
        made.add(Waiting(at - 0.01))
        trial = isinstance(made.decide(at), Hold)
        trials += trial
        made.add(Waiting(at + TRIP_S))
        assert len(left(made.decide(at + TRIP_S)).items) == (2 if trial else 1)
        at += BATCH_S
        made.batch_ended(1, at, BATCH_S)
    assert 2 <= trials <= 5


def test_a_batch_is_not_staged_if_the_callers_of_the_running_one_are_worth_the_wait() -> None:
    made = batcher()
    at = observed(made)
    for _ in range(4):
        made.add(Waiting(at + TRIP_S))
    left(made.decide(at + TRIP_S))
    made.add(Waiting(at + 0.01))
    assert isinstance(made.decide(at + 0.021, behind=4), Hold)
    assert made._opened_at is None, "the device is not free yet"
    for _ in range(7):
        made.add(Waiting(at + 0.021))
    assert left(made.decide(at + 0.021, behind=4)).reason == "full"
    unknown = batcher()
    unknown.add(Waiting(at))
    assert isinstance(unknown.decide(at, behind=4), Leave)


def test_while_offline_jobs_wait_they_use_the_device() -> None:
    made = batcher()
    at = observed(made)
    made.add(Waiting(at))
    assert isinstance(made.decide(at), Hold)
    made.add(Waiting(at, step=9))
    assert left(made.decide(at)).reason == "idle"


def test_a_worker_that_drains_waits_for_nobody() -> None:
    made = batcher()
    at = observed(made)
    made.add(Waiting(at))
    assert left(made.decide(at, draining=True)).reason == "drain"


def test_without_a_delay_nobody_is_held() -> None:
    made = batcher(delay_s=0.0)
    at = observed(made)
    made.add(Waiting(at))
    assert left(made.decide(at)).reason == "deadline"


@pytest.mark.parametrize("policy", [BatchPolicy(1, DELAY_S), BatchPolicy(8, 0.0)])
def test_without_holds_no_work_is_spent_on_callers(policy: BatchPolicy) -> None:
    made: Batcher[Waiting] = Batcher(policy)
    observed(made)
    assert made.returns == Returns()


def test_the_slope_is_kept_while_all_batches_have_one_size() -> None:
    fit = LatencyModel()
    for size in (1, 4) * 20:
        fit.add(size, 0.020 + 0.001 * size)
    for _ in range(SLOPE_BATCHES):
        fit.add(4, 0.024)
    assert fit.line is not None
    assert fit.line[0] == pytest.approx(0.020)
    assert fit.line[1] == pytest.approx(0.001)
    for _ in range(SLOPE_BATCHES):
        fit.add(4, 0.024)
    assert fit.line is None, "it is measured anew"


@pytest.mark.parametrize("clients", [10, 12, 16])
def test_full_batches_of_one_key_do_not_starve_another_that_is_held(clients: int) -> None:
    """Clients of the key `a` come back after each batch; one of the key `b` came before them."""
    made = batcher(keyed=True)
    at = observed(made, batches=20, size=8, back=8)
    made.take_all()
    for _ in range(clients):
        made.add(Waiting(at, key="a"))
    made.add(lone := Waiting(at, key="b"))
    for _ in range(10):
        decision = made.decide(at)
        came = 0
        while not isinstance(decision, Leave):
            assert came < 8, "it is held although all have come back"
            made.add(Waiting(at := at + TRIP_S / 8, key="a"))
            came += 1
            decision = made.decide(at)
        if lone in decision.items:
            return
        for _ in range(8 - came):
            made.add(Waiting(at := at + TRIP_S / 8, key="a"))
        at += BATCH_S
        made.batch_ended(len(decision.items), at, BATCH_S)
    raise AssertionError("the other key never ran")


def test_few_ended_batches_are_remembered_after_a_slow_one() -> None:
    returns = Returns()
    returns.batch_ended(4, 0.0, DELAY_S, took_s=30)
    for number in range(1000):
        returns.batch_ended(4, number * 0.005, DELAY_S, took_s=0.005)
    assert len(returns._open) <= OPEN_MAX


def test_the_delay_does_not_count_while_an_offline_batch_runs() -> None:
    made = batcher()
    at = observed(made)
    made.add(Waiting(at))
    made.decide(at, behind=0)
    later = at + DELAY_S
    made.batch_ended(4, later, BATCH_S)
    assert isinstance(made.decide(later), Hold)
