"""The course of one pipeline's job: its stages, each as soon as it has what it takes from.

All of it can be begun anew at any time, by anybody: the id of a stage's job follows from the
pipeline's job and its place, so that saying it again finds it, as it is by then. What has been
freed by then the note of the stages tells (`workers/background/pipelines/resume.py`). Knows Redis
only by what its `StageBackend` do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from headrace.config.pipelines import INPUT, PipelineConfig, Stage
from headrace.errors import HeadraceError, InvalidRequest, PayloadTooLarge
from headrace.jobs.failure import read_error
from headrace.jobs.job import Job, State
from headrace.jobs.media_types import is_json
from headrace.jobs.message import Message, PayloadRange
from headrace.jobs.options import MAX_WAIT_FOR_START_S, JobOptions
from workers.background.pipelines.resume import PreviousAttempt, read_past, stage_job_id
from workers.background.pipelines.stage_state import StageState
from workers.background.pipelines.values import (
    ExternalValue,
    ListValue,
    ObjectValue,
    StoredValue,
    TextValue,
    Value,
    follow,
    value_of,
)
from workers.jobs.leased_job import LeasedJob

#: How much longer than its pipeline's job may take (twice, as another may go on with that) a
#: stage's job is kept once it has ended, where nobody removes it.
KEPT_S: Final = 3_600
#: A stage's job has so much longer than its pipeline's, whose deadline is the one to tell of.
LATER_S: Final = 5.0


class StageFailed(HeadraceError):
    """A stage has ended otherwise than by a result, and with it the pipeline's job.

    Attributes:
        said: the code that the pipeline's job ends with.
        dead: its message is to lie in the dead letters.
        traceback: the handler's, where it raised.
    """

    def __init__(self, said: str, message: str, *, dead: bool = False, traceback: str = "") -> None:
        super().__init__(message)
        self.said = said
        self.dead = dead
        self.traceback = traceback


class StageBackend(Protocol):
    """What a course asks of Redis and of the stores."""

    inline_limit_bytes: int

    async def job(self, course: PipelineExecution, stage: Stage, job_id: str, value: Value) -> Job:
        """Submit a stage's job, unless it is there, and wait for its end."""

    async def read(self, stretch: PayloadRange) -> bytes:
        """A stretch of a payload."""

    async def told(self, course: PipelineExecution) -> None:
        """Note how far the course has come, now or soon."""

    async def noted(self, course: PipelineExecution) -> bytes:
        """How far it had come when that was noted last; empty where it never was."""

    async def view(self, ids: Sequence[str]) -> list[Job | None]:
        """Jobs with their results; None for those that Redis does not know."""

    async def forget(self, ids: Sequence[str]) -> None:
        """Remove what is left of stages' jobs that have ended, so that they can run again."""

    async def free(self, course: PipelineExecution, stages: Sequence[Stage]) -> bool:
        """Note how far the course has come, and free these stages' results; whether it was done."""


class PipelineExecution:
    """One claimed job of a pipeline.

    Args:
        pipeline: what it runs.
        item: the job, with its message.
        tools: what it works with.
        deadline: until when it must have ended, in seconds since 1970.

    Attributes:
        states: how far each stage has come.
        under_way: the ids of its stages' jobs that have not ended, with the stage.
        sent: the ids of those that were submitted here, and not by a life before this one.
        ended: those that have, with the job.
        freed: those that have, and whose results nobody needs.
        ending: its job is being ended, which asks at each step whether it is still ours.
        telling: held while it is noted how far the course has come, as no note may overtake a
            newer one.
    """

    def __init__(
        self, pipeline: PipelineConfig, item: LeasedJob, tools: StageBackend, deadline: float
    ) -> None:
        self.pipeline = pipeline
        self.item = item
        self.deadline = deadline
        self.states = {stage.name: StageState(stage.model) for stage in pipeline.stages}
        self.under_way: dict[str, Stage] = {}
        self.sent: set[str] = set()
        self.ended: dict[str, tuple[Stage, Job]] = {}
        self.freed: list[str] = []
        self.ending = False
        self.telling = asyncio.Lock()
        self._tools = tools
        self._began = time.time()
        self._results: dict[str, asyncio.Future[Value]] = {}
        # Stages whose results are freed.
        self._done_with: set[str] = set()

    @property
    def message(self) -> Message:
        """The job's message."""
        if self.item.message is None:
            raise RuntimeError("the job was not read")
        return self.item.message

    async def run(self) -> Value:
        """Run all stages; what the whole gives.

        Raises:
            StageFailed: a stage has failed; the others have been left where they are.
            TimeoutError: the deadline has passed.
        """
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.time())):
                past = await self._take_up()
                async with asyncio.TaskGroup() as group:
                    # Each behind those that it takes from.
                    for stage in self.pipeline.stages:
                        if stage.name not in past.ended:
                            task = group.create_task(self._stage(stage))
                            self._results[stage.name] = task
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return self._combined(self.pipeline.result, joined=self.pipeline.joined)

    def stages_json(self) -> bytes:
        """How far each stage has come, as the record keeps it."""
        return msgspec.json.encode([state.told(name) for name, state in self.states.items()])

    def unfinished(self) -> list[str]:
        """The stages that have begun, and have not ended."""
        return [n for n, state in self.states.items() if state.began_s and not state.ended_s]

    def job_ids(self, stage: Stage) -> list[str]:
        """The ids of a stage's jobs, as far as it is known how many there are."""
        count = self.states[stage.name].jobs
        return [stage_job_id(self.item.id, stage.name, n) for n in range(count)]

    def options(self, stage: Stage, timeout_s: float) -> JobOptions:
        """What a stage's job asks for: what the pipeline's job did, as far as it goes down."""
        message = self.message
        left_s = max(0.0, self.deadline - time.time()) + LATER_S
        expires_s = None
        if message.expires_s is not None and INPUT in stage.sources:
            # It has not really begun before its first stage has.
            expires_s = max(0.001, self.item.expires_at - time.monotonic())
        kept_s = KEPT_S + 2 * max(0, math.ceil(self.deadline - self._began))
        return JobOptions(
            priority=self.item.step,
            expires=expires_s,
            timeout=min(timeout_s, left_s),
            max_retries=message.max_retries,
            retry_backoff=message.retry_backoff_s,
            retry_backoff_max=message.retry_backoff_max_s,
            result_ttl=min(kept_s, MAX_WAIT_FOR_START_S),
        )

    async def _take_up(self) -> PreviousAttempt:
        """Go on where another has left it, or this one before; what holds of that."""
        note = await self._tools.noted(self)
        past = await read_past(self.item.id, self.pipeline, note, self._tools.view)
        if past.undone:
            await self._tools.forget(past.undone)
        for stage in self.pipeline.stages:
            if stage.name not in past.ended:
                continue
            self.states[stage.name] = StageState.of(stage.model, past.ended[stage.name])
            jobs = past.jobs.get(stage.name)
            if jobs is None:
                self.freed += self.job_ids(stage)
                continue
            self.ended.update({job.id: (stage, job) for job in jobs})
            values = tuple(value_of(job) for job in jobs)
            known = self._results[stage.name] = asyncio.get_running_loop().create_future()
            known.set_result(ListValue(values) if stage.spread else values[0])
        return past

    async def _stage(self, stage: Stage) -> Value:
        for source in stage.sources:
            if source != INPUT:
                await asyncio.shield(self._results[source])
        state = self.states[stage.name]
        try:
            given = await self._given(stage)
        except HeadraceError as error:
            state.failed = True
            raise StageFailed(
                error.code or InvalidRequest.code, f"stage {stage.name}: {error.message}"
            ) from error
        state.jobs, state.began_s = len(given), time.time()
        await self._tools.told(self)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(stage, n, len(given), value))
                for n, value in enumerate(given)
            ]
        values = tuple(task.result() for task in tasks)
        state.ended_s = time.time()
        await self._tell_end()
        return ListValue(values) if stage.spread else values[0]

    async def _tell_end(self) -> None:
        """A stage has ended: note it, at once where that frees what it and others took from."""
        spent = self._spent()
        if not spent:
            await self._tools.told(self)
        elif await self._tools.free(self, spent):
            for stage in spent:
                self._done_with.add(stage.name)
                self._results.pop(stage.name, None)
                ids = self.job_ids(stage)
                self.freed += [name for name in ids if self.ended.pop(name, None) is not None]

    def _spent(self) -> list[Stage]:
        """The stages whose results are still there, and will not be taken any more.

        None once all stages have ended: then the job ends, and everything goes.
        """
        over = {name for name, state in self.states.items() if state.ended_s}
        if len(over) == len(self.states):
            return []
        needed = {source for one in self.pipeline.stages if one.name not in over
                  for source in one.sources}  # fmt: skip
        kept = {*needed, *self.pipeline.result, *self._done_with}
        return [one for one in self.pipeline.stages if one.name in over and one.name not in kept]

    async def _given(self, stage: Stage) -> list[Value]:
        value = self._combined(stage.sources, joined=stage.joined)
        if not stage.path:
            return [value]
        short = self._tools.inline_limit_bytes
        values = await follow(value, stage.path, self._tools.read, short)
        most = self.pipeline.max_items
        if len(values) > most:
            raise PayloadTooLarge(
                f"{len(values)} elements, where max_items of the pipeline is {most}"
            )
        return values

    async def _one(self, stage: Stage, n: int, of: int, value: Value) -> Value:
        job_id = stage_job_id(self.item.id, stage.name, n)
        self.under_way[job_id] = stage
        shown = f"stage {stage.name}" + (f" ({n + 1} of {of})" if stage.spread else "")
        state = self.states[stage.name]
        try:
            job = await self._tools.job(self, stage, job_id, value)
        except HeadraceError as error:
            state.failed = True
            raise StageFailed(error.code, f"{shown}: {error.message}") from error
        del self.under_way[job_id]
        self.ended[job_id] = (stage, job)
        if job.state is not State.SUCCEEDED:
            state.failed = True
            raise _failure(shown, job)
        state.add(job)
        try:
            return value_of(job)
        except ValueError as error:
            state.failed = True
            raise StageFailed("input-unavailable", f"{shown}: {error}") from error

    def _combined(self, names: Iterable[str], *, joined: bool) -> Value:
        values = [(name, self._value(name)) for name in names]
        return ObjectValue(tuple(values)) if joined else values[0][1]

    def _value(self, name: str) -> Value:
        if name != INPUT:
            return self._results[name].result()
        source = self.message.source
        if source is None:
            return TextValue(self.message.input)
        if source.origin:
            return ExternalValue(source)
        kind = "" if is_json(source.type.partition(";")[0]) or not source.type else source.type
        return StoredValue(PayloadRange(source.ref, 0, source.size, kind), whole=True)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended a group: the first failure, and not what it has taken along."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _failure(shown: str, job: Job) -> StageFailed:
    if job.state is State.CANCELLED:
        return StageFailed("handler-error", f"{shown}: its job {job.id} was cancelled")
    error = read_error(job.error_json or '{"type": "handler-error"}')
    return StageFailed(
        error.type,
        f"{shown}: {error.message}",
        dead=job.dead_lettered,
        traceback=job.traceback or "",
    )


def about(course: PipelineExecution) -> dict[str, str]:
    """The fields of a line that concerns a pipeline's job."""
    return {"model": course.pipeline.name, "job": course.item.id}
