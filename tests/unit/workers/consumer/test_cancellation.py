"""What a worker lets go of, and when it hands nothing over as it may hold nothing any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from headrace.config.model_catalog import ModelConfig
from headrace.jobs.message_writer import envelope
from workers.consumer.cancellation import Cancellation
from workers.jobs.leased_job import LeasedJob, Settlement
from workers.leases.manager import ASKED, FENCED, RENEWED, LeaseLimits, LeaseManager
from workers.models.served_model import ServedModel

NOW = 1000.0
LEASE_S = 15.0


@dataclass
class Desk:
    """A ledger that only remembers what it was told; answers come when the test says."""

    limits: LeaseLimits = field(default_factory=lambda: LeaseLimits(LEASE_S, 3, 20, 60))
    connected: bool = True
    settled: list[Settlement] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    renewals: list[tuple[list[LeasedJob], Callable[[list[LeasedJob], list[Any]], None]]] = field(
        default_factory=list
    )

    def settle(self, lane: ServedModel, settlements: list[Settlement]) -> None:
        self.settled += settlements

    def stood_still(self, now: float) -> None:
        self.stops.append(now)

    def renew(
        self, lane: ServedModel, answered: Callable[[list[LeasedJob], list[Any]], None]
    ) -> None:
        if lane.held:
            self.renewals.append((list(lane.held.values()), answered))

    def answer(self, *codes: int) -> None:
        items, answered = self.renewals.pop()
        answered(items, list(codes))


@pytest.fixture
def lane() -> ServedModel:
    return ServedModel(ModelConfig(name="m", handler="echo", max_batch_size=4), 0, [])


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def dropping(lane: ServedModel, desk: Desk) -> Cancellation:
    return Cancellation([lane], cast(LeaseManager, desk))


def claim(lane: ServedModel, *ids: str) -> list[Settlement]:
    flat: list[bytes] = []
    for job_id in ids:
        raw = envelope(job_id, "m", "headrace.m", b"1", timeout_s=60.0)
        flat += [raw, job_id.encode(), f"token-{job_id}".encode(), b"", b"1", b"", b"", b"0"]
    return lane.accept([b"1", *[b"0"] * 4, 0, *flat], NOW)


def told(*ids: str, model: str = "m") -> list[bytes]:
    return [msgspec.msgpack.encode([text for one in ids for text in (model, one, f"token-{one}")])]


def test_a_cancel_that_is_heard_before_the_claim_is_answered_is_not_lost(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    lane.backlog.claiming = True
    assert dropping.heard(told("b"))
    ended = claim(lane, "a", "b")
    assert [(end.id, end.state) for end in ended] == [("b", "c")]
    assert [item.id for item in lane.batcher.take_all()] == ["a"]


def test_what_is_heard_of_others_jobs_is_passed_over(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    claim(lane, "a")
    lane.held["a"].token = "a newer one"
    assert dropping.heard([*told("a", "unknown"), *told("a", model="gone")])
    assert not dropping.heard([])
    assert (desk.settled, lane.foretold, len(lane.batcher)) == ([], set(), 1)


@pytest.mark.parametrize("body", [b"\xc1", b"\x01", b"\x92\xa1m\xa1a", b""])
def test_what_cannot_be_read_ends_no_worker(
    lane: ServedModel, desk: Desk, dropping: Cancellation, body: bytes
) -> None:
    claim(lane, "a")
    assert dropping.heard([body, *told("a")])
    assert [end.id for end in desk.settled] == ["a"]


def test_a_cancel_is_settled_once_however_often_it_is_heard(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    claim(lane, "a", "b")
    dropping.heard(told("a", "a"))
    dropping.heard(told("a"))
    dropping.renew(lane)
    desk.answer(ASKED, RENEWED)
    assert [end.id for end in desk.settled] == ["a"]
    assert [item.id for item in lane.batcher.take_all()] == ["b"]
    assert "a" in lane.held, "until Redis has said that it knows"


def test_what_a_renewal_shows_to_be_over_is_let_go_of(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    claim(lane, "lost", "asked", "ours", "released")
    released = lane.held["released"]
    assert lane.batcher.remove(released)
    assert not lane.batcher.remove(released)
    dropping.renew(lane)
    desk.answer(FENCED, ASKED, RENEWED, FENCED)
    assert list(lane.held) == ["asked", "ours", "released"]
    assert [end.id for end in desk.settled] == ["asked"]
    assert [item.id for item in lane.batcher.take_all()] == ["ours"]


def test_after_a_pause_nothing_is_handed_over_until_the_leases_are_known(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    claim(lane, "a", "b")
    assert not dropping.in_doubt(NOW)
    assert not dropping.in_doubt(NOW + LEASE_S / 2)
    assert desk.stops == []
    assert dropping.in_doubt(NOW + 2 * LEASE_S)
    assert desk.stops == [NOW + 2 * LEASE_S]
    assert dropping.in_doubt(NOW + 2 * LEASE_S + 1)
    desk.answer(FENCED, RENEWED)
    assert not dropping.in_doubt(NOW + 2 * LEASE_S + 2)
    assert [item.id for item in lane.batcher.take_all()] == ["b"]


def test_who_holds_nothing_or_has_no_redis_is_in_no_doubt(
    lane: ServedModel, desk: Desk, dropping: Cancellation
) -> None:
    assert not dropping.in_doubt(NOW)
    assert not dropping.in_doubt(NOW + 2 * LEASE_S)
    claim(lane, "a")
    desk.connected = False
    assert not dropping.in_doubt(NOW + 5 * LEASE_S)
