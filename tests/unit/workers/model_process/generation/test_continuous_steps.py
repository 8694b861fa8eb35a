"""How soon requests join and leave the others, counted in steps of the model."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.language_model import LanguageModel
from headrace.handler import Context
from workers.model_process.batch_state import ReceivedBatch
from workers.model_process.executor import BatchExecutor
from workers.model_process.generation.continuous import ContinuousExecutor
from workers.protocol.frames import Done, Pieces, RunBatch, Stop

LONG = 8
#: How many steps may run after the one that has read the prompt of a request, until it has a token.
STEPS_MAX = 3
#: How many steps may end after a cancel has come, until its request has left.
CANCEL_STEPS_MAX = 2


@dataclass
class Script:
    """An inbox with frames, each before a certain step; and what comes of them.

    Attributes:
        frames: before which step each comes, from 0.
        between: what is called before a step.
        during: what is called in the middle of a step, when its tokens are chosen.
        rows: for each step, the requests that get a token in it.
        sent: the frames of the process, each with how many steps had ended.
        holders: which requests had pages of the cache when a job ended, by its number.
    """

    model: LanguageModel
    frames: list[tuple[int, Any]] = field(default_factory=list)
    between: dict[int, Callable[[], None]] = field(default_factory=dict)
    during: dict[int, Callable[[], None]] = field(default_factory=dict)
    rows: list[set[str]] = field(default_factory=list)
    sent: list[tuple[int, Any]] = field(default_factory=list)
    holders: dict[int, set[str]] = field(default_factory=dict)
    steps: int = 0

    @property
    def engine(self) -> Any:
        return self.model.engine

    @property
    def holding(self) -> set[str]:
        """The requests that have pages of the cache."""
        allocators = self.engine._batches.cache.cache_allocators.values()
        return {name for one in allocators for name in one.block_table}

    def job(self, seq: int, name: str, asked: Any, at: int = 0) -> set[int]:
        """Let a job come before a step; return the set of its dropped places."""
        dropped: set[int] = set()
        batch = RunBatch(seq, [(name, json.dumps(asked).encode())])
        self.frames.append((at, ReceivedBatch(batch, dropped)))
        return dropped

    def get(self, block: bool = True) -> Any:
        if self.steps in self.between:
            self.between.pop(self.steps)()
        if self.frames and (block or self.frames[0][0] <= self.steps):
            return self.frames.pop(0)[1]
        if block:
            return Stop()
        raise queue.Empty

    def send(self, frame: Any) -> None:
        self.sent.append((self.steps, frame))
        if isinstance(frame, Done):
            self.holders[frame.seq] = self.holding

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run all jobs to their ends."""
        sampler, step = self.engine._sampler, self.engine.step
        prepare = sampler.prepare_tensor_args

        def choose(requests: list[Any]) -> Any:
            if self.steps in self.during:
                self.during.pop(self.steps)()
            self.rows[-1].update(one.state.request_id for one in requests)
            return prepare(requests)

        def counted() -> Any:
            self.rows.append(set())
            new = list(step())
            self.steps += 1
            return new

        self.frames.sort(key=lambda pair: pair[0])
        with monkeypatch.context() as patched:
            patched.setattr(sampler, "prepare_tensor_args", choose)
            patched.setattr(self.engine, "step", counted)
            inbox: Any = self
            executor = BatchExecutor(self.model, self.model.context)
            ContinuousExecutor(executor, self.model, inbox, self.send, "test").run()

    def done(self, seq: int) -> tuple[int, Any]:
        """How many steps had ended when a job ended, and its outcome."""
        ((steps, frame),) = [
            (steps, frame)
            for steps, frame in self.sent
            if isinstance(frame, Done) and frame.seq == seq
        ]
        return steps, frame.outcomes[0]

    def result(self, seq: int) -> Any:
        _, outcome = self.done(seq)
        assert outcome[0], outcome
        return json.loads(outcome[1])

    def first_piece(self, name: str) -> int:
        """How many steps had ended when a job's first piece was sent."""
        return next(
            steps
            for steps, frame in self.sent
            if isinstance(frame, Pieces) and any(row[1] == name for row in frame.rows)
        )


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    handler = LanguageModel()
    options = {"engine": "continuous"}
    handler.initialize(Context("m", "1", "cpu", Path(), options=options, max_batch_size=LONG + 1))
    yield handler
    handler.engine.close()
    torch.set_num_threads(before)


def question(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is json.loads?"}]
    return {"messages": messages, "temperature": 0, **more}


def test_a_short_request_beside_long_ones_has_its_first_token_at_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(model)
    for n in range(LONG):
        script.job(n, f"long{n}", question(max_tokens=40, ignore_eos=True))
    script.job(LONG, "short", question(max_tokens=5), at=20)
    script.run(monkeypatch)
    everybody = {f"long{n}" for n in range(LONG)}
    assert script.rows[19] == everybody
    assert script.rows[20] == {*everybody, "short"}, "its prompt is read beside the others"
    # The step with its prompt is the twenty-first.
    assert script.first_piece("short") <= 21 + STEPS_MAX
    assert script.result(LONG)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_cancel_ends_a_request_within_two_steps(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, in_the_middle: bool
) -> None:
    """What all cancels become in the process: the places of a batch that are dropped."""
    alone = Script(model)
    kept = question(max_tokens=60, ignore_eos=True)
    sampled = {**kept, "temperature": 1.0, "seed": 3}
    alone.job(0, "kept", kept)
    alone.job(1, "sampled", sampled, at=60)
    alone.run(monkeypatch)
    script = Script(model)
    script.job(0, "kept", kept)
    script.job(1, "sampled", sampled)
    long = {"prompt": [9] * 600, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    dropped = script.job(2, "leaves", long)
    at = 20
    if in_the_middle:
        script.during[at] = lambda: dropped.add(0)
    else:
        script.between[at] = lambda: dropped.add(0)
    script.run(monkeypatch)
    steps, outcome = script.done(2)
    assert outcome[:2] == [False, "cancelled"]
    assert at <= steps <= at + CANCEL_STEPS_MAX
    assert all("leaves" not in row for row in script.rows[at + CANCEL_STEPS_MAX :])
    assert script.holders[2] == {"kept", "sampled"}
    assert not script.holding
    assert [script.result(n) for n in (0, 1)] == [alone.result(n) for n in (0, 1)]


def test_a_cancel_ends_a_request_whose_prompt_is_still_read(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(model)
    script.job(0, "kept", question(max_tokens=20, ignore_eos=True))
    # No other prompt begins alike, so that none of it is in the cache.
    dropped = script.job(1, "leaves", {"prompt": [11] * 1000, "max_tokens": 2}, at=5)
    script.during[5] = lambda: dropped.add(0)
    script.run(monkeypatch)
    steps, outcome = script.done(1)
    assert outcome[:2] == [False, "cancelled"]
    assert script.holders[1] == {"kept"}
    assert steps <= 5 + CANCEL_STEPS_MAX
    assert not any("leaves" in row for row in script.rows)
    assert script.result(0)["usage"]["completion_tokens"] == 20


def test_a_cancel_ends_a_request_that_waits_for_room(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(model)
    for n in range(LONG + 1):
        script.job(n, f"long{n}", question(max_tokens=20, ignore_eos=True))
    dropped = script.job(LONG + 1, "waits", question(max_tokens=5), at=3)
    script.during[6] = lambda: dropped.add(0)
    script.run(monkeypatch)
    steps, outcome = script.done(LONG + 1)
    assert outcome[:2] == [False, "cancelled"]
    assert steps <= 6 + CANCEL_STEPS_MAX
    assert not any("waits" in row for row in script.rows)
