"""Turns of generators and of static models on one device; the clock is simulated."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.redis.keys import OFFLINE_STEP
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher, offline_turn

SLOTS = 16
numbers = itertools.count(1)


class Frames:
    """In place of the socket of a model process."""

    def send(self, frame: list[Any]) -> None:
        """Take a frame; the simulation ends each batch."""


def served(name: str, *, generates: bool = False, size: int = 4, weight: float = 1) -> ServedModel:
    """A model with one loaded process."""
    config = ModelConfig(name=name, handler="echo", max_batch_size=size, weight=weight)
    replica = Replica({"device": "cpu"}, {}, state=Phase.READY, continuous=generates)
    replica.frames = Frames()  # type: ignore[assignment]
    replica.room = replica.offline_room = SLOTS if generates else 0
    model = ServedModel(config, 0, [replica])
    model.set_continuous(generates)
    return model


@dataclass
class Device:
    """A device with one slot: batches take as long as `took_s` returns, and then end.

    Attributes:
        wanted: how many jobs of each model wait or run, by its turn; one that ends is replaced.
        left: how many more jobs come in all, by turn; without an entry there is no end.
        turns: for each turn that began on an idle process, the most jobs that ran at once in it.
        used_s: the seconds with a batch, by model.
    """

    models: dict[str, ServedModel]
    took_s: Callable[[str], float]
    wanted: dict[str, int]
    left: dict[str, int] = field(default_factory=dict)
    overdue_s: float = NEVER
    now: float = 1000.0
    turns: dict[str, list[int]] = field(default_factory=dict)
    used_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ended: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(list(self.models.values()), slots=1)
        self.turns = {turn: [] for turn in self.wanted}
        self._ends: list[tuple[float, int, str]] = []
        for turn, count in self.wanted.items():
            self._add(turn, count)

    def run(self, until_s: float) -> None:
        """Let the device work for so long, or until nothing runs."""
        until = self.now + until_s
        while self.now < until:
            while (dispatched := self.dispatcher.next(self.now)) is not None:
                self._start(dispatched.model, dispatched.batch)
            if not self._ends:
                return
            at, seq, turn = heapq.heappop(self._ends)
            for name, model in self.models.items():
                self.used_s[name] += (at - self.now) * bool(model.replicas[0].running)
            self.now = at
            self._end(turn, seq)

    def _start(self, model: ServedModel, batch: Any) -> None:
        (replica,) = model.replicas
        turn = offline_turn(model.key) if batch.offline else model.key
        batch.seq = next(numbers)
        if replica.idle:
            self.turns[turn].append(0)
        replica.run(batch)
        # A job that joins is part of the turn in which it joins.
        turns = max(self.turns[turn], self.turns.get(offline_turn(model.key), []), key=len)
        turns[-1] = max(turns[-1], len(replica.running))
        heapq.heappush(self._ends, (self.now + self.took_s(model.key), batch.seq, turn))

    def _end(self, turn: str, seq: int) -> None:
        (replica,) = self.models[turn.removesuffix(" offline")].replicas
        batch = replica.finished(seq, self.now)
        assert batch is not None
        if replica.continuous:
            room = SLOTS - len(replica.running)
            replica.room_reported(replica._sent, room, room)
        self.ended[turn] += len(batch.jobs)
        self._add(turn, len(batch.jobs))

    def _add(self, turn: str, count: int) -> None:
        count = min(count, self.left.get(turn, count))
        if turn in self.left:
            self.left[turn] -= count
        model = self.models[turn.removesuffix(" offline")]
        for _ in range(count):
            step = OFFLINE_STEP if turn != model.key else 0
            job_id = f"job-{next(numbers)}"
            overdue_at = self.now + self.overdue_s if step else NEVER
            job = LeasedJob(
                id=job_id, token="1", message=None, created_us=0, enqueued_at=self.now,
                claimed_at=self.now, attempts=1, step=step, overdue_at=overdue_at,
            )  # fmt: skip
            model._batcher.add(job)


def test_requests_fill_a_turn_although_another_model_always_waits() -> None:
    """24 requests of 1 s beside batches of 0.5 s: in two turns, and not in 24."""
    device = Device(
        {"llm": served("llm", generates=True), "static": served("static")},
        lambda name: 1.0 if name == "llm" else 0.5,
        wanted={"static": 8, "llm": 24},
        left={"llm": 24, "static": 8000},
    )
    device.run(10)
    assert device.ended["llm"] == 24
    assert device.turns["llm"] == [16, 8]
    assert device.used_s["static"] >= 8


@pytest.mark.parametrize("weight", [1, 3, 1 / 3])
@pytest.mark.parametrize("other", ["static", "llm2"])
def test_time_goes_by_weight_and_turns_are_full(weight: float, other: str) -> None:
    chance = random.Random(7)
    device = Device(
        {
            "llm": served("llm", generates=True, weight=weight),
            other: served(other, generates=other == "llm2"),
        },
        lambda name: 0.2 if name == "static" else chance.uniform(0.1, 1.5),
        wanted={"llm": 32, other: 32},
    )
    device.run(1000)
    assert device.used_s["llm"] / device.used_s[other] == pytest.approx(weight, rel=0.1)
    for name in {"llm", other} - {"static"}:
        # No turn is over before the requests that wait have joined.
        assert min(device.turns[name][:-1]) == SLOTS


def test_a_model_that_comes_late_waits_for_those_that_run_and_no_others() -> None:
    """A generator that was alone for long owes nothing, but has had its least turn."""
    models = {"llm": served("llm", generates=True), "static": served("static")}
    device = Device(
        models,
        lambda name: 1.0 if name == "llm" else 0.1,
        wanted={"llm": 32, "static": 0},
        left={"static": 4},
    )
    device.run(100)
    assert len(device.turns["llm"]) == 1
    device._add("static", 4)
    device.run(2)
    assert device.turns["static"] == [1]
    assert device.ended["static"] == 4


def test_offline_jobs_of_others_end_no_turn() -> None:
    models = {"llm": served("llm", generates=True), "static": served("static")}
    wanted = {"llm": 32, offline_turn("static"): 8}
    device = Device(models, lambda _: 0.7, wanted=wanted)
    device.run(100)
    assert device.turns["llm"] == [SLOTS]
    assert device.used_s["static"] == 0


def test_overdue_offline_requests_fill_their_turn_and_get_their_small_share() -> None:
    wanted = {"static": 8, offline_turn("llm"): 200}
    models = {"llm": served("llm", generates=True), "static": served("static")}
    device = Device(models, lambda _: 0.5, wanted=wanted, overdue_s=20)
    device.run(20)
    assert device.used_s["llm"] == 0
    device.run(1000)
    assert device.used_s["llm"] / device.used_s["static"] == pytest.approx(0.1, rel=0.2)
    assert min(device.turns[offline_turn("llm")][:-1]) == SLOTS
