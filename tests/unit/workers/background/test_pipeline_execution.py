"""When an execution frees the results of its stages, and where it resumes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.config.model.pipelines import PipelineConfig, PipelineSection, Stage, build
from headrace.jobs.job import Job, State
from headrace.jobs.message import PayloadRange
from workers.background.pipelines.execution import PipelineExecution, StageFailed
from workers.background.pipelines.stage_state import stage_job_id
from workers.background.pipelines.values import Value, parts_of

ID = "whole"
ROW: dict[str, Any] = {name: {} for name in ("a", "b", "c", "d")}
TREE: dict[str, Any] = {
    "a": {},
    "b": {"from": "a"},
    "c": {"from": "a"},
    "d": {"from": ["b", "c"]},
    "e": {},
}
#: `b` has a job for each of what `a` gives.
SPREAD: dict[str, Any] = {"a": {}, "b": {"each": "[*]"}, "c": {}, "d": {}}


class Death(Exception):
    """The process is killed."""


class Redis:
    """Holds what lasts from one attempt to the next: jobs with results, and the saved states.

    Attributes:
        ran: the stages' jobs that were run, in order.
        freed: the stages whose results were freed, in order, each with what had ended by then.
        inputs: what each job was given.
        dies: whether the process dies now, asked at each word to Redis.
        takes_notes: else it is away for them.
        on_note: called when something was noted that frees nothing.
    """

    inline_limit_bytes = 1000

    def __init__(self, stages: dict[str, Any], **options: Any) -> None:
        written = {"stages": stages, **options}
        self.pipeline: PipelineConfig = build(ID, msgspec.convert(written, PipelineSection))
        self.jobs: dict[str, Job] = {}
        self.note = b""
        self.ran: list[str] = []
        self.freed: list[tuple[str, set[str]]] = []
        self.inputs: dict[str, Any] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.dies: Callable[[str], bool] = lambda _: False
        self.takes_notes = True
        self.on_note: Callable[[], None] = lambda: None

    async def run_job(
        self, execution: PipelineExecution, stage: Stage, job_id: str, value: Value
    ) -> Job:
        self._live(f"submit {stage.name}")
        if job_id not in self.jobs:
            given = json.loads("".join(str(part) for part in parts_of(value)))
            self.inputs[stage.name] = given
            self.ran.append(stage.name)
            if stage.name in self.held:
                await self.held[stage.name].wait()
            result = [1, 2] if stage.name == "a" else f"{stage.name} of {given}"
            meta = json.dumps({"result": result})
            timings = f"{len(self.ran)},1,2,3,4"
            made = Job(job_id, stage.model, "1", State.SUCCEEDED, 0, timings=timings, meta=meta)
            self.jobs[job_id] = made
        await asyncio.sleep(0)
        found = self.jobs[job_id]
        assert found.meta, f"{stage.name} was found freed"
        return found

    async def read(self, stretch: PayloadRange) -> bytes:
        raise AssertionError(stretch)

    async def save_stages(self, execution: PipelineExecution) -> None:
        if self.takes_notes:
            self.note = execution.stages_json()
            self.on_note()

    def ended(self) -> set[str]:
        """The stages that are noted as ended."""
        stages = json.loads(self.note or b"[]")
        return {stage["name"] for stage in stages if stage["status"] == "succeeded"}

    async def saved_stages(self, execution: PipelineExecution) -> bytes:
        return self.note

    async def view(self, ids: Sequence[str]) -> list[Job | None]:
        return [self.jobs.get(name) for name in ids]

    async def forget(self, ids: Sequence[str]) -> None:
        for name in ids:
            self.jobs.pop(name, None)

    async def free(self, execution: PipelineExecution, stages: Sequence[Stage]) -> bool:
        if not self.takes_notes:
            return False
        async with execution.saving:
            await asyncio.sleep(0)
            self.note = execution.stages_json()
        self._live("noted")
        over = {name for name, state in execution.states.items() if state.ended_s}
        for stage in stages:
            self.freed.append((stage.name, over))
            for name in execution.job_ids(stage):
                self.jobs[name].meta, self.jobs[name].freed = "", True
        self._live("freed")
        return True

    def _live(self, moment: str) -> None:
        if self.dies(moment):
            raise Death(moment)

    def execution(self) -> PipelineExecution:
        """One more life."""
        message = SimpleNamespace(source=None, input=b'"the input"')
        job: Any = SimpleNamespace(id=ID, message=message)
        return PipelineExecution(self.pipeline, job, self, deadline=1e12)

    def run(self) -> tuple[Any, PipelineExecution]:
        """Live until the end; what it gave."""
        execution = self.execution()
        value = asyncio.run(execution.run())
        return json.loads("".join(str(part) for part in parts_of(value))), execution


def stages_of(execution: PipelineExecution) -> dict[str, Any]:
    return {stage["name"]: stage for stage in json.loads(execution.stages_json())}


def test_in_a_row_each_is_freed_when_the_next_has_ended() -> None:
    redis = Redis(ROW)
    result, execution = redis.run()
    assert result == "d of c of b of [1, 2]"
    # What the last took from goes with the job itself.
    assert redis.freed == [("a", {"a", "b"}), ("b", {"a", "b", "c"})]
    assert execution.freed == [stage_job_id(ID, name, 0) for name in ("a", "b")]
    assert sorted(execution.ended) == sorted(stage_job_id(ID, name, 0) for name in ("c", "d"))


def test_what_two_take_from_is_kept_until_both_have_ended() -> None:
    async def run() -> None:
        redis = Redis(TREE)
        b_has_ended = redis.held["c"] = asyncio.Event()

        def on_note() -> None:
            if "b" in redis.ended() and not b_has_ended.is_set():
                assert redis.freed == []
                b_has_ended.set()

        redis.on_note = on_note
        await redis.execution().run()
        assert [name for name, _ in redis.freed] == ["a", "b", "c"]
        assert redis.freed[0][1] == {"a", "b", "c"}

    asyncio.run(run())


def test_what_the_whole_gives_is_never_freed() -> None:
    redis = Redis(ROW, result=["b", "d"])
    result, _ = redis.run()
    assert result == {"b": "b of [1, 2]", "d": "d of c of b of [1, 2]"}
    assert [name for name, _ in redis.freed] == ["a"]


def test_what_cannot_be_noted_is_not_freed_but_with_the_next() -> None:
    redis = Redis({name: {} for name in "abcde"})

    def away(moment: str) -> bool:
        # Nothing is taken from when b begins until c does.
        redis.takes_notes = moment != "submit b"
        return False

    redis.dies = away
    redis.run()
    assert [name for name, _ in redis.freed] == ["a", "b", "c"]
    assert redis.freed[0] == ("a", {"a", "b", "c"})


@pytest.mark.parametrize("stages", [ROW, TREE, SPREAD], ids=["row", "tree", "spread"])
def test_a_death_at_any_moment_runs_nothing_again(stages: dict[str, Any]) -> None:
    moments: list[str] = []

    def lives(moment: str) -> bool:
        moments.append(moment)
        return False

    whole = Redis(stages)
    whole.dies = lives
    expected, execution = whole.run()
    timings = {name: stage["timings"] for name, stage in stages_of(execution).items()}
    assert len(moments) > len(stages)
    for at in range(len(moments)):
        redis, left = Redis(stages), [at]

        def dies(_: str, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == -1

        redis.dies = dies
        with pytest.raises(Death):
            redis.run()
        result, execution = redis.run()
        assert result == expected, moments[at]
        assert sorted(redis.ran) == sorted(whole.ran), moments[at]
        stages_told = stages_of(execution)
        assert {stage["status"] for stage in stages_told.values()} == {"succeeded"}
        for name, stage in stages_told.items():
            assert stage["jobs"] == stage["done"] > 0
            parts = {key for key in stage["timings"] if key != "queued"}
            assert parts == {key for key in timings[name] if key != "queued"}
            assert stage["timings"]["inference"] == timings[name]["inference"]
        # All that is left of its stages is known, to be removed.
        assert {*execution.ended, *execution.freed} == set(redis.jobs), moments[at]


def test_a_lost_job_of_a_stage_that_is_needed_brings_back_what_was_freed_before_it() -> None:
    redis = Redis({name: {} for name in "abcde"})
    redis.dies = lambda moment: moment == "submit e"
    with pytest.raises(Death):
        redis.run()
    assert [name for name, _ in redis.freed] == ["a", "b", "c"]
    redis.dies = lambda _: False
    del redis.jobs[stage_job_id(ID, "d", 0)]
    result, execution = redis.run()
    assert result == "e of d of c of b of [1, 2]"
    assert redis.ran == [*"abcd", *"abcde"]
    assert {stage["status"] for stage in stages_of(execution).values()} == {"succeeded"}


def test_a_lost_job_that_nobody_needs_is_not_missed() -> None:
    redis = Redis({name: {} for name in "abcd"})
    redis.dies = lambda moment: moment == "submit d"
    with pytest.raises(Death):
        redis.run()
    redis.dies = lambda _: False
    for name in "ab":
        del redis.jobs[stage_job_id(ID, name, 0)]
    assert redis.run()[0] == "d of c of b of [1, 2]"
    assert redis.ran == [*"abcd"]


def test_of_a_stage_with_a_lost_job_none_is_kept_beside_new_ones() -> None:
    redis = Redis(SPREAD)
    redis.dies = lambda moment: moment == "submit c"
    with pytest.raises(Death):
        redis.run()
    redis.dies = lambda _: False
    del redis.jobs[stage_job_id(ID, "b", 1)]
    assert redis.run()[0] == "d of c of ['b of 1', 'b of 2']"
    assert redis.ran == [*"abbabbcd"]


def test_an_empty_list_that_was_noted_is_not_asked_for() -> None:
    redis = Redis({"b": {"each": "[*]", "from": "input"}, "c": {}, "d": {}, "e": {}})
    message = SimpleNamespace(source=None, input=b"[]")
    execution = redis.execution()
    execution.job.message = message  # type: ignore[assignment]
    redis.dies = lambda moment: moment == "submit e"
    with pytest.raises(Death):
        asyncio.run(execution.run())
    redis.dies = lambda _: False
    assert redis.run()[0] == "e of d of c of []"
    assert redis.ran == [*"cde"]


@pytest.mark.parametrize("note", [b"{", b"[1]", b"[]", b'[{"name":"a"}]'])
def test_a_note_that_says_nothing_begins_at_the_input(note: bytes) -> None:
    redis = Redis(ROW)
    redis.note = note
    assert redis.run()[0] == "d of c of b of [1, 2]"


def test_a_failure_frees_nothing_more() -> None:
    class Failing(Redis):
        async def run_job(
            self, execution: PipelineExecution, stage: Stage, job_id: str, value: Value
        ) -> Job:
            if stage.name != "c":
                return await super().run_job(execution, stage, job_id, value)
            return Job(job_id, stage.model, "1", State.FAILED, 0, dead_lettered=True)

    redis = Failing(ROW)
    with pytest.raises(StageFailed) as failed:
        redis.run()
    # Its own message still has what it was given.
    assert failed.value.dead
    assert [name for name, _ in redis.freed] == ["a"]
