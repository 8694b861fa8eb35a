"""What a worker lets go of, and when it hands nothing over as it may hold nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import Settings
from headrace.jobs.message import decode_message
from headrace.redis.scripts.jobs import CANCEL_REQUESTED, FENCED, RENEWED, ClaimReply
from tests.harness.clients.messages import write_message
from workers.consumer.held_jobs import HeldJobs
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.jobs.settlement import Settlement
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.replicas.replica import Replica

NOW = 1000.0
LEASE_S = 15.0


@dataclass
class Desk:
    """Leases that only record the calls; the test gives the replies."""

    settings: Settings = field(default_factory=lambda: Settings(lease_ttl_s=LEASE_S))
    connected: bool = True
    settled: list[Settlement] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    renewals: list[tuple[list[LeasedJob], Callable[[list[LeasedJob], list[Any]], None]]] = field(
        default_factory=list
    )

    def append_pieces(self, model: str, rows: list[Any]) -> None:
        self.sent += rows

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        self.settled += settlements

    def delay_reaping(self, now: float) -> None:
        self.stops.append(now)

    def renew(
        self, model: ServedModel, answered: Callable[[list[LeasedJob], list[Any]], None]
    ) -> None:
        if model._held:
            self.renewals.append((list(model._held.values()), answered))

    def answer(self, *codes: int) -> None:
        jobs, answered = self.renewals.pop()
        answered(jobs, list(codes))


@pytest.fixture
def model() -> ServedModel:
    return ServedModel(ModelConfig(name="m", handler="echo", max_batch_size=4), 0, [])


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def cancellation(model: ServedModel, desk: Desk) -> HeldJobs:
    return HeldJobs([model], cast(LeaseManager, desk))


def claim(model: ServedModel, *ids: str) -> list[Settlement]:
    flat: list[bytes] = []
    for job_id in ids:
        raw = write_message(job_id, "m", "headrace.m", b"1", timeout_s=60.0)
        flat += [raw, job_id.encode(), f"token-{job_id}".encode(), b"", b"1", b"", b"", b"0"]
    model.claim_answered(ClaimReply([b"1", *[b"0"] * 4, 0, *flat]), NOW)
    return model.read_claims(NOW)


def told(*ids: str, model: str = "m") -> list[bytes]:
    return [msgspec.msgpack.encode([text for one in ids for text in (model, one, f"token-{one}")])]


def test_a_cancel_that_is_heard_before_the_claim_is_answered_is_not_lost(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    model._backlog.claiming = True
    cancellation.read_cancels(told("b"))
    ended = claim(model, "a", "b")
    assert [(end.id, end.state) for end in ended] == [("b", "c")]
    assert [job.id for job in model._batcher.take_all()] == ["a"]


def test_what_is_heard_of_others_jobs_is_passed_over(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    claim(model, "a")
    model._held["a"].token = "a newer one"
    cancellation.read_cancels([*told("a", "unknown"), *told("a", model="gone")])
    assert (desk.settled, model._claims.cancelled_tokens, len(model._batcher)) == ([], set(), 1)


@pytest.mark.parametrize("body", [b"\xc1", b"\x01", b"\x92\xa1m\xa1a", b""])
def test_what_cannot_be_read_ends_no_worker(
    model: ServedModel, desk: Desk, cancellation: HeldJobs, body: bytes
) -> None:
    claim(model, "a")
    cancellation.read_cancels([body, *told("a")])
    assert [end.id for end in desk.settled] == ["a"]


def test_a_cancel_is_settled_once_however_often_it_is_heard(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    claim(model, "a", "b")
    cancellation.read_cancels(told("a", "a"))
    cancellation.read_cancels(told("a"))
    cancellation.renew(model)
    desk.answer(CANCEL_REQUESTED, RENEWED)
    assert [end.id for end in desk.settled] == ["a"]
    assert [job.id for job in model._batcher.take_all()] == ["b"]
    assert "a" in model._held, "until Redis has said that it knows"


def test_what_a_renewal_shows_to_be_over_is_let_go_of(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    claim(model, "lost", "asked", "ours", "released")
    released = model._held["released"]
    assert model._batcher.remove(released)
    assert not model._batcher.remove(released)
    cancellation.renew(model)
    desk.answer(FENCED, CANCEL_REQUESTED, RENEWED, FENCED)
    assert list(model._held) == ["asked", "ours", "released"]
    assert [end.id for end in desk.settled] == ["asked"]
    assert [job.id for job in model._batcher.take_all()] == ["ours"]


def test_after_a_pause_nothing_is_handed_over_until_the_leases_are_known(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    claim(model, "a", "b")
    assert not cancellation.leases_in_doubt(NOW)
    assert not cancellation.leases_in_doubt(NOW + LEASE_S / 2)
    assert desk.stops == []
    assert cancellation.leases_in_doubt(NOW + 2 * LEASE_S)
    assert desk.stops == [NOW + 2 * LEASE_S]
    assert cancellation.leases_in_doubt(NOW + 2 * LEASE_S + 1)
    desk.answer(FENCED, RENEWED)
    assert not cancellation.leases_in_doubt(NOW + 2 * LEASE_S + 2)
    assert [job.id for job in model._batcher.take_all()] == ["b"]


def test_who_holds_nothing_is_in_no_doubt_and_an_outage_alone_causes_none(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    assert not cancellation.leases_in_doubt(NOW)
    assert not cancellation.leases_in_doubt(NOW + 2 * LEASE_S)
    claim(model, "a")
    assert not cancellation.leases_in_doubt(NOW + 2 * LEASE_S)
    desk.connected = False
    for turn in range(10):
        assert not cancellation.leases_in_doubt(NOW + (2 + turn / 2) * LEASE_S)


def test_after_a_pause_that_has_cost_the_connection_the_leases_are_in_doubt_until_they_are_renewed(
    model: ServedModel, desk: Desk, cancellation: HeldJobs
) -> None:
    claim(model, "a")
    assert not cancellation.leases_in_doubt(NOW)
    desk.connected = False
    assert cancellation.leases_in_doubt(NOW + 2 * LEASE_S)
    desk.connected = True
    assert cancellation.leases_in_doubt(NOW + 2 * LEASE_S + 1)
    cancellation.renew(model)
    desk.answer(FENCED)
    assert not cancellation.leases_in_doubt(NOW + 2 * LEASE_S + 2)
    assert not model._held


@pytest.mark.parametrize(
    ("handler", "own_s", "extended"),
    [("torchserve:h.py", None, True), ("torchserve:h.py", 5.0, False), ("echo", None, False)],
)
def test_the_timeout_of_an_archives_reply_counts_from_its_last_piece(
    desk: Desk, handler: str, own_s: float | None, extended: bool
) -> None:
    config = ModelConfig(name="m", handler=handler, timeout_s=100.0)
    model = ServedModel(config, 0, [])
    message = decode_message(write_message("a", "m", "headrace.m", b"1"))
    message = msgspec.structs.replace(message, timeout_s=own_s)
    job = LeasedJob("a", "token", message, 0, 0.0, 0.0, 1)
    begun = time.monotonic() - 50
    batch = Batch([job], "full", begun, begun + 100, seq=7, start_due_at=NEVER)
    replica = Replica({}, {}, batch=batch)
    held = HeldJobs([model], cast(LeaseManager, desk))
    held.write_pieces(model, replica, [(7, "a", 1, 1, b'["x"]', b"")])
    assert (batch.deadline >= begun + 150) == extended
    assert len(desk.sent) == 1
    # A job that is to leave is not given more time.
    job.dropped, batch.deadline = "timeout", begun + 55
    held.write_pieces(model, replica, [(7, "a", 2, 1, b'["x"]', b"")])
    assert batch.deadline == begun + 55
