"""When a worker asks for the next batch, and what it says before it works at what it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.redis.scripts.jobs import ClaimReply
from tests.harness.clients.messages import write_message
from workers.consumer.loop import TOP_UP_S, Claimer
from workers.jobs.settlement import Settlement
from workers.leases.manager import LeaseManager
from workers.models.backlog import OWN, WRONG_MAX, Place
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher

NOW = 1000.0
SIZE = 4


@dataclass
class Desk:
    """Leases that only record the calls, in order."""

    said: list[Any] = field(default_factory=list)
    connected: bool = True
    breaks: bool = False

    def claim(self, model: ServedModel, room: Sequence[int], now: float) -> None:
        model._backlog.claim_sent(room, now)
        self.said.append(("claim", model.config.name, list(room)))

    def flush(self, now: float) -> None:
        self.said.append("flush")
        self.connected = not self.breaks

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        self.said.append(("settle", [one.id for one in settlements]))

    def move_misplaced(self, model: ServedModel) -> None:
        assert model.take_misplaced() == []


def served(name: str = "m", **options: Any) -> ServedModel:
    """A model with one idle process."""
    replica = Replica({"device": "cpu"}, {}, state=Phase.READY)
    return ServedModel(
        ModelConfig(name=name, handler="echo", max_batch_size=SIZE, **options), 0, [replica]
    )


def came(model: ServedModel, count: int, left: int = 0) -> None:
    """A claim is answered with so many jobs, and says how many it left."""
    flat: list[bytes] = []
    for n in range(count):
        raw = write_message(f"j{n}", model.config.name, "q", b"1", timeout_s=60.0)
        flat += [raw, b"j%d" % n, b"t%d" % n, b"", b"1", b"", b"", b"0"]
    model._backlog.claim_sent((), NOW)
    model.claim_answered(ClaimReply([b"1", b"%d" % left, b"0", b"0", b"0", 0, *flat]), NOW)


def said(models: Sequence[ServedModel], act: str) -> list[Any]:
    desk = Desk()
    claims = Claimer(models, cast(LeaseManager, desk), Dispatcher(models))
    getattr(claims, act)(NOW)
    return desk.said


def test_the_next_batch_is_asked_for_before_the_one_that_came_is_read() -> None:
    """As it leaves at once, there is room; and no more than for one batch."""
    one = served()
    came(one, SIZE, left=100)
    assert said([one], "claim_before_reading") == [("claim", "m", [SIZE] * 4), "flush"]
    assert said([one], "read_claims") == [("settle", [])]
    assert len(one._batcher) == SIZE
    assert said([one], "claim") == [], "a claim is under way"


@pytest.mark.parametrize(
    ("count", "left"), [(SIZE - 1, 100), (SIZE, SIZE - 1), (SIZE, 0)], ids=["few", "shallow", "end"]
)
def test_where_no_whole_batch_comes_or_waits_nothing_is_said_ahead(count: int, left: int) -> None:
    one = served()
    came(one, count, left)
    assert said([one], "claim_before_reading") == []


@pytest.mark.parametrize("options", [{"max_batch_cost": 9}, {"batch_key": "a"}], ids=str)
def test_what_may_leave_in_parts_leaves_room_only_once_it_is_read(options: dict[str, Any]) -> None:
    one = served(**options)
    came(one, SIZE, left=100)
    assert said([one], "claim_before_reading") == []


def test_a_batch_that_stays_prepared_takes_up_the_room() -> None:
    """Its device is busy, or another model is to have it: one prepared batch a model, no more."""
    busy = served()
    busy.replicas[0].state = Phase.DRAINING
    came(busy, SIZE, left=100)
    assert said([busy], "claim_before_reading") == []
    one, other = served("one"), served("other")
    came(one, SIZE, left=100)
    came(other, 1)
    assert said([one, other], "claim_before_reading") == []


def test_a_free_device_waits_for_no_top_up_and_a_busy_one_does() -> None:
    """The loop sleeps until the next claim is due, which for a free device is now."""
    free, busy = served("free"), served("busy")
    busy.device = "cuda:1"
    busy.replicas[0].state = Phase.DRAINING
    for model in (free, busy):
        came(model, 1, left=1)
    models = [free, busy]
    claims = Claimer(models, cast(LeaseManager, Desk()), Dispatcher(models))
    claims.read_claims(NOW)
    claims.claim(NOW)
    assert claims.due_at(free) <= NOW
    assert NOW < claims.due_at(busy) == NOW + TOP_UP_S


def test_a_whole_batch_is_asked_for_before_what_ran_is_settled_and_a_part_with_it() -> None:
    deep, shallow = served("deep"), served("shallow")
    for one, left in ((deep, SIZE), (shallow, SIZE - 1)):
        came(one, 0, left)
        one.read_claims(NOW)
    models = [shallow, deep]
    assert said(models, "claim_before_settling") == [("claim", "deep", [SIZE] * 4), "flush"]
    assert said(models, "claim") == [("claim", "shallow", [SIZE] * 4)]


def test_nothing_more_is_asked_for_when_the_first_write_finds_redis_gone() -> None:
    """It would be said again with the call that gives back what is not known to be held."""
    one, other = served("one"), served("other")
    other.device = "cuda:1"
    for each in (one, other):
        came(each, SIZE, left=100)
    desk = Desk(breaks=True)
    claims = Claimer([one, other], cast(LeaseManager, desk), Dispatcher([one, other]))
    claims.claim_before_reading(NOW)
    claims.read_claims(NOW)
    other.release_prepared()
    claims.claim_before_settling(NOW)
    assert [word for word in desk.said if word[0] == "claim"] == [("claim", "one", [SIZE] * 4)]
    assert not other._backlog.claiming


def test_behind_lone_jobs_nothing_is_asked_for_until_a_look_has_found_some() -> None:
    """A job is claimed as a push has told; what is asked for at its end brings nothing."""
    one = served()

    def at_its_end(brings: int) -> bool:
        one.release_prepared()
        one._backlog.guess([Place(OWN, 0)])
        asked = bool(said([one], "claim"))
        if asked:
            came(one, brings)
            one.read_claims(NOW)
        return asked

    def lone_job() -> bool:
        one._backlog.assume_waiting([Place(OWN, 0)])
        assert said([one], "claim"), "it was told of"
        came(one, 1)
        one.read_claims(NOW)
        return at_its_end(brings=0)

    assert [lone_job() for _ in range(5)] == [True] * WRONG_MAX + [False] * 2
    one._backlog.missed(Place(OWN, 0))
    assert said([one], "claim"), "a length says so"
    came(one, 1)
    one.read_claims(NOW)
    assert [at_its_end(brings=1), at_its_end(brings=0)] == [True] * 2
    assert [lone_job() for _ in range(3)] == [True, True, False]


def test_a_cancel_told_before_the_answer_is_read_is_kept_until_then_and_no_longer() -> None:
    one = served()
    came(one, 2)
    one._claims.cancelled_tokens |= {"t1", "of a job that was never ours"}
    assert said([one], "read_claims") == [("settle", ["j1"])]
    assert not one._claims.cancelled_tokens
    came(one, 1)
    one._claims.cancelled_tokens.add("of the claim that is under way")
    one._backlog.claim_sent((), NOW)
    one.read_claims(NOW)
    assert one._claims.cancelled_tokens == {"of the claim that is under way"}
