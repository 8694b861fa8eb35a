"""The loop that runs a generator, with frames by script and a generator without a model."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from headrace import Budget, Context, Generator, Piece
from headrace.errors import InputError
from workers.model_process.batch_state import ReceivedBatch
from workers.model_process.executor import CANCELLED, BatchExecutor
from workers.model_process.generation import continuous, offline_limit
from workers.model_process.generation.continuous import ContinuousExecutor
from workers.protocol.frames import Done, Joins, Pieces, Room, RunBatch, Stop, TokenFigures, Waits

F = TypeVar("F")

#: For how many seconds an offline job yields, unless a test says else.
LONG = 1e9


class Counting(Generator):
    """Counts: each request gets its numbers as words. Each one takes one token of the memory.

    An input has `words`, and `most` for the most that it may ask for.
    """

    def __init__(self, slots: int, memory: int, share: float = 1.0) -> None:
        self.slots, self.memory, self.share = slots, memory, share
        self.running: dict[str, tuple[Any, int]] = {}
        self.paused: Set[str] = frozenset()
        self.steps = 0
        self.joined: list[str] = []

    def budget(self) -> Budget:
        taken = sum(self.likely_cost(one, n) for one, n in self.running.values())
        return Budget(self.slots - len(self.running), self.memory - taken)

    def cost(self, request: Any) -> int:
        return int(request.get("most", request["words"]))

    def likely_cost(self, request: Any, produced: int = 0) -> int:
        cost = self.cost(request)
        return min(cost, max(int(cost * self.share), produced + 1))

    def lacks_memory(self) -> bool:
        needed = [min(n + 1, self.cost(one)) for one, n in self.running.values()]
        return sum(needed) > self.memory

    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        assert list(resume_from) == list(range(len(resume_from)))
        assert len(self.running) < self.slots
        self.running[request_id] = (request, len(resume_from))
        self.joined.append(request_id)

    def step(self) -> list[Piece]:
        self.steps += 1
        assert self.steps < 10_000
        assert not self.lacks_memory()
        return [
            self.advance(name, *one)
            for name, one in list(self.running.items())
            if name not in self.paused
        ]

    def advance(self, name: str, request: Any, n: int) -> Piece:
        if n + 1 < request["words"]:
            self.running[name] = (request, n + 1)
            # Every third word comes with the next one.
            return Piece(name, None if n % 3 == 2 else self.text(n), (n,))
        del self.running[name]
        return Piece(name, self.text(n), (n,), finish="stop")

    @staticmethod
    def text(n: int) -> str:
        return (f"w{n - 1} " if n and n % 3 == 0 else "") + f"w{n} "

    def cancel(self, request_id: str) -> Any:
        request, n = self.running.pop(request_id)
        return {"prompt_tokens": 10, "completion_tokens": n} if request.get("counts", True) else ""

    @override
    def pause(self, request_ids: Set[str]) -> None:
        self.paused = request_ids


def words(count: int) -> str:
    return "".join(f"w{n} " for n in range(count))


@dataclass
class Script:
    """An inbox with frames, each after so many steps; and what the executor has sent."""

    generator: Counting
    frames: list[tuple[int, Any]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    #: What is dropped: after which step, and the set.
    drops: list[tuple[int, set[int]]] = field(default_factory=list)

    def job(
        self,
        seq: int,
        value: Any,
        at: int = 0,
        offline: float | None = None,
        drop_at: int | None = None,
        quiet: bool = False,
    ) -> None:
        dropped: set[int] = set()
        row = (f"job{seq}", json.dumps(value).encode())
        batch = RunBatch(seq, [row], joins=Joins([], [], offline, quiet))
        self.frames.append((at, ReceivedBatch(batch, dropped)))
        if drop_at is not None:
            self.drops.append((drop_at, dropped))

    def get(self, block: bool = True) -> Any:
        steps = self.generator.steps
        for at, dropped in self.drops:
            if at <= steps:
                dropped.add(0)
        if self.frames and (block or self.frames[0][0] <= steps):
            return self.frames.pop(0)[1]
        if block:
            return Stop()
        raise queue.Empty

    def run(self) -> Script:
        self.frames.sort(key=lambda pair: pair[0])
        context = Context("m", "1.0", "cpu", Path())
        executor = BatchExecutor(self.generator, context)
        self.generator.initialize(context)
        inbox: Any = self
        ContinuousExecutor(executor, self.generator, inbox, self.sent.append).run()
        return self

    def of(self, kind: type[F]) -> list[F]:
        """The frames of this kind that were sent."""
        return [frame for frame in self.sent if isinstance(frame, kind)]

    def outcomes(self, seq: int) -> list[Any]:
        return [frame.outcomes[0] for frame in self.of(Done) if frame.seq == seq]

    def text(self, seq: int) -> str:
        (outcome,) = self.outcomes(seq)
        assert outcome[0], outcome
        return str(json.loads(outcome[1])["text"])

    def logged(self, seq: int) -> tuple[str, list[int]]:
        """The pieces and the tokens of a job's log, whose indices follow each other."""
        rows = [row for frame in self.of(Pieces) for row in frame.rows]
        pieces: list[str] = []
        tokens: list[int] = []
        for _, _, first, count, text, made_of in (row for row in rows if row[0] == seq):
            assert first == len(pieces) + 1
            new = json.loads(text)
            assert len(new) == count
            pieces += new
            tokens += json.loads(made_of)
        return "".join(pieces), tokens

    @property
    def rooms(self) -> list[list[int]]:
        return [[frame.received, frame.online, frame.offline] for frame in self.of(Room)]

    def used(self, seq: int) -> list[int | None]:
        return [frame.used for frame in self.of(Done) if frame.seq == seq]

    def waits(self, seq: int) -> list[bool]:
        return [frame.waits for frame in self.of(Waits) if frame.seq == seq]


def test_an_online_request_takes_the_place_of_the_newest_offline_one() -> None:
    script = Script(Counting(slots=2, memory=100))
    script.job(1, {"words": 8}, offline=LONG)
    script.job(2, {"words": 8}, offline=LONG)
    script.job(3, {"words": 4}, at=3)
    script.run()
    assert [script.text(seq) for seq in (1, 2, 3)] == [words(8), words(8), words(4)]
    assert script.generator.joined == ["job1", "job2", "job3", "job2"]
    assert script.logged(2) == (words(8), list(range(8)))
    assert script.waits(2) == [True, False]
    assert script.waits(1) == []


def test_online_jobs_have_room_while_offline_ones_run_and_offline_ones_do_not() -> None:
    script = Script(Counting(slots=2, memory=100))
    for seq in (1, 2):
        script.job(seq, {"words": 9}, offline=LONG)
    script.job(3, {"words": 2}, at=3)
    script.run()
    assert script.rooms[0] == [0, 2, 2]
    assert [2, 2, 0] in script.rooms
    # Job 3 runs, job 2 is put back.
    assert [3, 1, 0] in script.rooms
    assert script.rooms[-1] == [3, 2, 2]


def test_an_offline_request_that_has_yielded_for_too_long_stays() -> None:
    script = Script(Counting(slots=1, memory=100))
    script.job(1, {"words": 6}, offline=0.0)
    script.job(2, {"words": 2}, at=2)
    script.run()
    assert script.generator.joined == ["job1", "job2"]


def test_offline_requests_pause_until_an_online_one_has_its_first_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offline_limit, "ONLINE_S", 0.0)
    monkeypatch.setattr(continuous, "clock", lambda: 0.0)
    generator = Counting(slots=3, memory=100)
    script = Script(generator)
    script.job(1, {"words": 5}, offline=LONG)
    script.job(2, {"words": 5}, offline=LONG)
    script.job(3, {"words": 1}, at=2)
    script.run()
    # One step of the online request alone.
    assert generator.steps == 6
    assert generator.paused == frozenset()


class Timed(Counting):
    """A generator whose steps take 1 ms, and 1 ms more for each request, by a clock of its own."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, memory=10_000)
        self.now = 0.0
        # The online and the offline requests that had a part in each step.
        self.rows: list[tuple[int, int]] = []
        # Before which step each request joined, and whether it is offline.
        self.joins: list[tuple[int, bool]] = []

    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        super().add(request_id, request, resume_from)
        self.joins.append((self.steps, request["words"] > 3))

    def step(self) -> list[Piece]:
        parts = [one for name, (one, _) in self.running.items() if name not in self.paused]
        offline = sum(one["words"] > 3 for one in parts)
        self.rows.append((len(parts) - offline, offline))
        self.now += 0.001 * (1 + len(parts))
        return super().step()


#: Fits into a step of 5 ms.
FITS = 4


def test_steps_are_short_while_online_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Timed(slots=40)
    monkeypatch.setattr(continuous, "clock", lambda: generator.now)
    script = Script(generator)
    for seq in range(60):
        script.job(seq, {"words": 50}, offline=LONG)
    online = range(100, 140)
    for seq in online:
        script.job(seq, {"words": 2}, at=10 * (seq - 99))
    script.run()
    assert generator.rows[8] == (0, 40), "they fill the slots before the first online request"
    limited = generator.rows[60:400]
    assert all(offline <= FITS + 1 for _, offline in limited)
    assert sum(offline for _, offline in limited) > 2.5 * len(limited), "and they go on"
    first_steps = [generator.rows[step] for step, offline in generator.joins if not offline]
    assert first_steps == [(1, 0)] * len(online)
    joins = [step for step, offline in generator.joins if offline and 60 < step < 400]
    assert len(set(joins)) == len(joins), "one of them joins at a time"
    for seq in (*range(60), *online):
        assert script.text(seq) == words(2 if seq in online else 50)


def test_all_offline_requests_run_again_when_no_online_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offline_limit, "ONLINE_S", 0.1)
    generator = Timed(slots=40)
    monkeypatch.setattr(continuous, "clock", lambda: generator.now)
    script = Script(generator)
    for seq in range(40):
        script.job(seq, {"words": 100}, offline=LONG)
    script.job(100, {"words": 2}, at=4)
    script.run()
    assert generator.rows[3] == (0, 40)
    assert all(offline <= FITS + 1 for _, offline in generator.rows[8:12])
    # Their timeouts do not run meanwhile.
    assert all(script.waits(seq) == [True, False] for seq in range(FITS + 2, 40))
    assert script.waits(0) == []
    assert (0, 40) in generator.rows[30:60]
    assert script.rooms[-1] == [41, 40, 40]


@pytest.mark.parametrize("offline", [False, True])
def test_the_reader_of_frames_gets_time_only_beside_offline_requests(
    monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    waited: list[float] = []
    # Threads of other tests may sleep too.
    monkeypatch.setattr(continuous, "time", SimpleNamespace(sleep=waited.append))
    script = Script(Counting(slots=2, memory=100))
    script.job(1, {"words": 8}, offline=LONG if offline else None)
    script.job(2, {"words": 4}, at=2)
    script.run()
    assert bool(waited) == offline


def test_offline_requests_go_on_beside_an_online_one_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = Timed(slots=4)
    monkeypatch.setattr(continuous, "clock", lambda: generator.now)
    script = Script(generator)
    for seq in range(3):
        script.job(seq, {"words": 5}, offline=0.05)
    for seq in range(100, 200):
        script.job(seq, {"words": 1}, at=seq - 100)
    script.run()
    ended = [frame.seq for frame in script.of(Done)]
    assert {0, 1, 2} < set(ended[:-20])


def test_a_request_that_is_too_large_fails_at_once_beside_others() -> None:
    script = Script(Counting(slots=2, memory=10))
    script.job(1, {"words": 9})
    script.job(2, {"words": 11}, at=1)
    script.run()
    assert (script.used(1), script.used(2)) == ([None], [0])
    (outcome,) = script.outcomes(2)
    assert "the request needs 11 tokens of the model's memory, which has 10" in outcome[2]
    places = [frame.seq for frame in script.of(Done)]
    assert places == [2, 1]


def test_a_request_that_ends_before_it_has_joined_has_used_no_tokens() -> None:
    class Picky(Counting):
        def preprocess(self, inputs: list[Any]) -> list[Any]:
            return [InputError("no") if one.get("bad") else one for one in inputs]

        def budget(self) -> Budget:
            # Less than at the start, as if something else took the memory.
            return Budget(1 - len(self.running), 10 if self.steps == 0 else 5)

        def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
            if request.get("refused"):
                raise InputError("no")
            super().add(request_id, request, resume_from)

    script = Script(Picky(slots=1, memory=10))
    script.job(0, {"words": 3})
    script.frames.append((0, ReceivedBatch(RunBatch(1, [("job1", b"{")]), set())))
    script.job(2, {"words": 1, "bad": True})
    script.job(3, {"words": 1, "refused": True})
    script.job(4, {"words": 8})
    script.job(5, {"words": 1}, drop_at=0)
    script.job(6, {"words": 1}, at=1, drop_at=2)
    script.run()
    for seq in range(1, 7):
        assert not script.outcomes(seq)[0][0], seq
        assert script.used(seq) == [0], seq
    assert script.text(0) == words(3)
    assert script.used(0) == [None], "it has no usage"


def test_a_request_that_is_cancelled_counts_with_what_it_took() -> None:
    script = Script(Counting(slots=2, memory=100))
    script.job(1, {"words": 9}, drop_at=3)
    # It is put back for the third one, and cancelled while it waits.
    script.job(2, {"words": 9}, offline=LONG, drop_at=6)
    script.job(3, {"words": 9}, at=2)
    script.job(4, {"words": 9}, at=4)
    script.job(5, {"words": 9, "counts": False}, at=13, drop_at=15)
    script.run()
    assert [script.outcomes(seq) for seq in (1, 2, 5)] == [[CANCELLED]] * 3
    assert (script.used(1), script.used(2), script.used(5)) == ([13], [12], [None])
    prompts = sum(frame.prompt for frame in script.of(TokenFigures))
    assert prompts == 20, "each one counts once"


def test_a_request_that_fails_keeps_its_error_if_its_usage_is_bad() -> None:
    class Failing(Counting):
        def advance(self, name: str, request: Any, n: int) -> Piece:
            del self.running[name]
            return Piece(name, None, error=InputError("too warm"), usage=request["usage"])

    script = Script(Failing(slots=2, memory=100))
    script.job(1, {"words": 1, "usage": {"prompt_tokens": 7}})
    script.job(2, {"words": 1, "usage": {"prompt_tokens": "many"}})
    script.run()
    for seq in (1, 2):
        ((succeeded, code, message, *_),) = script.outcomes(seq)
        assert (succeeded, code, message) == (False, InputError.code, "too warm")
    assert (script.used(1), script.used(2)) == ([7], [None])


@pytest.mark.parametrize("pauses", [False, True])
def test_a_request_counts_as_waiting_only_if_the_generator_pauses_it(
    monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    steps: list[int] = []
    generator = Timed(slots=8)
    if not pauses:
        monkeypatch.setattr(Counting, "pause", Generator.pause)
    monkeypatch.setattr(continuous, "clock", lambda: generator.now)
    stepped = offline_limit.OfflineLimit.stepped

    def noted(limit: offline_limit.OfflineLimit, seconds: float, offline: int, now: float) -> None:
        steps.append(offline)
        stepped(limit, seconds, offline, now)

    monkeypatch.setattr(offline_limit.OfflineLimit, "stepped", noted)
    script = Script(generator)
    for seq in range(6):
        script.job(seq, {"words": 50}, offline=LONG)
    script.job(100, {"words": 3}, at=5)
    script.run()
    assert generator.can_pause == pauses
    assert script.waits(5) == ([True, False] if pauses else [])
    assert (steps == [6] * 50) != pauses
    assert [seq for seq in range(6) if script.text(seq) != words(50)] == []


def test_the_newest_request_is_put_back_when_the_memory_runs_out() -> None:
    # Each may take 10, and is expected to take 3, so that all three join.
    generator = Counting(slots=3, memory=10, share=0.3)
    script = Script(generator)
    for seq in (1, 2, 3):
        script.job(seq, {"words": 9, "most": 10}, offline=LONG if seq == 1 else None)
    script.run()
    assert generator.joined[:3] == ["job2", "job3", "job1"]
    # The offline one first, then the newer online one.
    assert [frame.seq for frame in script.of(Waits) if frame.waits] == [1, 1, 3]
    for seq in (1, 2, 3):
        assert script.text(seq) == words(9)
        assert script.logged(seq) == (words(9), list(range(9)))
    assert [frame.seq for frame in script.of(Done)] == [2, 3, 1]


def test_a_quiet_job_sends_no_pieces_and_keeps_its_tokens_when_it_is_put_back() -> None:
    script = Script(Counting(slots=1, memory=100))
    script.job(1, {"words": 6}, offline=LONG, quiet=True)
    script.job(2, {"words": 4}, at=3)
    script.run()
    assert script.generator.joined == ["job1", "job2", "job1"]
    assert script.logged(1) == ("", [])
    assert script.text(1) == words(6)
    assert script.logged(2)[0] == words(4)


def test_a_request_without_tokens_keeps_its_place() -> None:
    class Forgetful(Counting):
        def advance(self, name: str, request: Any, n: int) -> Piece:
            piece = super().advance(name, request, n)
            return Piece(name, piece.delta, finish=piece.finish)

    script = Script(Forgetful(slots=1, memory=100))
    script.job(1, {"words": 6}, offline=LONG, quiet=True)
    script.job(2, {"words": 4}, at=3)
    script.run()
    assert script.generator.joined == ["job1", "job2"]
    assert script.text(1) == words(6)


def test_a_request_that_is_put_back_can_be_cancelled() -> None:
    script = Script(Counting(slots=1, memory=100))
    script.job(1, {"words": 6}, offline=LONG, drop_at=3)
    script.job(2, {"words": 6}, at=2)
    script.run()
    assert not script.outcomes(1)[0][0]
    assert script.generator.joined == ["job1", "job2"]
    assert script.text(2) == words(6)
    assert script.logged(1)[0] == words(2)


def test_memory_that_runs_out_for_a_request_alone_fails_it() -> None:
    class Leaking(Counting):
        def lacks_memory(self) -> bool:
            return any(n == 2 for _, n in self.running.values())

    script = Script(Leaking(slots=1, memory=100))
    script.job(1, {"words": 6})
    script.job(2, {"words": 2})
    script.run()
    assert "the model's memory ran out" in script.outcomes(1)[0][2]
    assert script.text(2) == words(2)


class Preparing(Counting):
    """Prepares a request with `ready` until so many steps have run."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, memory=100)
        self.prepared: list[tuple[int, Any, Future[None]]] = []

    @override
    def preparation(self, request: Any) -> Future[Any] | None:
        if "ready" not in request:
            return None
        self.prepared.append((request["ready"], request, Future()))
        return self.prepared[-1][2]

    @override
    def step(self) -> list[Piece]:
        pieces = super().step()
        for at, request, future in self.prepared:
            if at <= self.steps and not future.done():
                if "wrong" in request:
                    future.set_exception(InputError(request["wrong"]))
                else:
                    future.set_result(None)
        return pieces


def test_a_request_joins_once_another_thread_has_prepared_it() -> None:
    script = Script(Preparing(slots=4))
    script.job(1, {"words": 3, "ready": 4})
    script.job(2, {"words": 3, "ready": 5, "wrong": "no such shape"})
    script.job(3, {"words": 3, "ready": 99}, drop_at=3)
    script.job(4, {"words": 9})
    script.run()
    assert isinstance(script.generator, Preparing)
    assert script.generator.joined == ["job4", "job1"]
    assert [script.text(seq) for seq in (1, 4)] == [words(3), words(9)]
    assert script.outcomes(2)[0][1:3] == ["input-error", "no such shape"]
    assert script.outcomes(3) == [CANCELLED]
    assert script.generator.prepared[2][2].cancelled()
    # Those that are prepared take no room.
    assert [4, 3, 1] in script.rooms
    assert script.rooms[-1][:2] == [4, 4]


def test_so_many_are_prepared_that_they_take_the_room_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continuous, "PREPARING_MAX", 2)
    script = Script(Preparing(slots=2))
    for seq in (1, 2, 3):
        script.job(seq, {"words": 3, "ready": 4})
    script.job(4, {"words": 9})
    script.run()
    assert [4, 0, 0] in script.rooms
    assert [script.text(seq) for seq in (1, 2, 3, 4)] == [words(n) for n in (3, 3, 3, 9)]
    assert script.rooms[-1][:2] == [4, 2]


def test_a_cancellation_is_seen_while_nothing_but_a_preparation_runs() -> None:
    class Alone(Preparing):
        def preparation(self, request: Any) -> Future[Any] | None:
            self.steps += 1
            return super().preparation(request)

    script = Script(Alone(slots=1))
    script.job(1, {"words": 3, "ready": 99}, drop_at=1)
    script.run()
    assert script.outcomes(1) == [CANCELLED]


JOBS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.integers(0, 12),
        st.integers(0, 30),
        st.sampled_from([None, None, LONG, 0.0]),
        st.sampled_from([None, None, None, 1, 5, 20]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(JOBS, st.integers(1, 4), st.integers(12, 40), st.sampled_from([0.0, 0.3, 1.0]))
def test_each_request_ends_with_its_text_whatever_comes(
    jobs: list[tuple[int, int, int, float | None, int | None]],
    slots: int,
    memory: int,
    share: float,
) -> None:
    script = Script(Counting(slots, memory, share))
    for seq, (count, more, at, offline, drop_after) in enumerate(jobs):
        drop_at = None if drop_after is None else at + drop_after
        script.job(seq, {"words": count, "most": count + more}, at, offline, drop_at)
    script.run()
    for seq, (count, more, *_, drop_after) in enumerate(jobs):
        (outcome,) = script.outcomes(seq)
        text, tokens = script.logged(seq)
        assert words(count).startswith(text)
        assert len(tokens) == len(text.split())
        if count + more > memory:
            assert not outcome[0]
        elif drop_after is None or outcome[0]:
            assert text == msgspec.json.decode(outcome[1])["text"] == words(count)
    *rooms, offline = script.rooms[-1]
    assert rooms == [len(jobs), slots]
    assert 1 <= offline <= slots
