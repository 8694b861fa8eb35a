"""The execution of a pipeline job: each stage starts as soon as its sources have ended.

Any worker can start it again at any time. The id of a stage's job follows from the pipeline's job
and its place, so submitting it again finds the job. Stages whose results were freed are known from
the saved states (`stage_state.py`). Redis and the payload stores are behind `StageJobs`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.config.model.pipelines import INPUT, PipelineConfig, Stage
from headrace.errors import HeadraceError, InvalidRequest, PayloadTooLarge
from headrace.jobs.job import Job, State, read_error
from headrace.jobs.message import Message, PayloadRange
from headrace.jobs.options import MAX_WAIT_FOR_START_S, InputDetails, JobOptions, read_object
from headrace.jobs.values.media_types import is_json
from workers.background.pipelines.stage_state import (
    PreviousAttempt,
    StageState,
    read_previous,
    stage_job_id,
)
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

#: Seconds for which a stage's ended job is kept, beyond twice the time that its pipeline's job may
#: take (another worker may resume it).
KEPT_S: Final = 3_600
#: Seconds by which the deadline of a stage's job is later than its pipeline's, which is reported.
LATER_S: Final = 5.0


class Backend(Protocol):
    """What an execution needs of Redis and the payload stores; see `StageJobs`."""

    inline_limit_bytes: int

    async def read(self, stretch: PayloadRange) -> bytes:
        """Return a range of a payload."""

    async def view(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs with their results; None for a job that Redis does not have."""

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete stages' jobs that have ended, so that they can run again."""

    async def saved_stages(self, execution: PipelineExecution) -> bytes:
        """Return the states that were saved last; b"" if none were saved."""

    async def save_stages(self, execution: PipelineExecution) -> None:
        """Save the states of the stages for readers; a failure is only logged."""

    async def free(self, execution: PipelineExecution, stages: Sequence[Stage]) -> bool:
        """Save the states, and free these stages' results; return whether it was done."""

    async def run_job(
        self, execution: PipelineExecution, stage: Stage, job_id: str, value: Value
    ) -> Job:
        """Submit a stage's job, unless it exists, and wait for its end."""


class StageFailed(HeadraceError):
    """A stage has ended without a result, and the pipeline's job fails.

    Attributes:
        job_code: the error code of the pipeline's job.
        dead: the job goes to the dead letters.
        traceback: the handler's traceback; "" if it did not raise.
    """

    def __init__(
        self, job_code: str, message: str, *, dead: bool = False, traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.job_code = job_code
        self.dead = dead
        self.traceback = traceback


class PipelineExecution:
    """The execution of a claimed pipeline job.

    Attributes:
        deadline: until when it must end, in seconds since 1970.
        running: the stages' jobs that have not ended: id -> stage.
        submitted: ids of the jobs that this attempt has submitted, and no earlier attempt.
        ended: the stages' jobs that have ended: id -> stage and job.
        freed: ids of the ended jobs whose results are not needed any more.
        ending: the job is being settled, which checks its lease at each step.
        saved_at: when states were saved last, in monotonic seconds.
        saving: held while states are saved, so that a save does not overtake a newer one.
    """

    def __init__(
        self, pipeline: PipelineConfig, job: LeasedJob, backend: Backend, deadline: float
    ) -> None:
        self.pipeline = pipeline
        self.job = job
        self.deadline = deadline
        self.states = {stage.name: StageState(stage.model) for stage in pipeline.stages}
        self.running: dict[str, Stage] = {}
        self.submitted: set[str] = set()
        self.ended: dict[str, tuple[Stage, Job]] = {}
        self.freed: list[str] = []
        self.ending = False
        self.saved_at = 0.0
        self.saving = asyncio.Lock()
        self._backend = backend
        self._began = time.time()
        self._results: dict[str, asyncio.Future[Value]] = {}
        # The names of stages whose results are freed.
        self._freed_stages: set[str] = set()

    @property
    def message(self) -> Message:
        """The job's message."""
        if self.job.message is None:
            raise RuntimeError("the job was not read")
        return self.job.message

    @property
    def started(self) -> str:
        """When the job began, as its record has it: at its claim, as nothing holds it back here."""
        return str(self.job.redis_us(self.job.claimed_at))

    async def run(self) -> Value:
        """Run all stages, and return the pipeline's result.

        Raises:
            StageFailed: a stage has failed; the others were left as they are.
            TimeoutError: the deadline has passed.
        """
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.time())):
                previous = await self._resume()
                async with asyncio.TaskGroup() as group:
                    # In order, so that each stage's sources have their tasks already.
                    for stage in self.pipeline.stages:
                        if stage.name not in previous.ended:
                            task = group.create_task(self._stage(stage))
                            self._results[stage.name] = task
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return self._combined(self.pipeline.result, joined=self.pipeline.joined)

    def stages_json(self) -> bytes:
        """Return the states of the stages as the record stores them."""
        return msgspec.json.encode([state.stage_json(name) for name, state in self.states.items()])

    def unfinished(self) -> list[str]:
        """Return the names of the stages that have begun and not ended."""
        return [n for n, state in self.states.items() if state.began_s and not state.ended_s]

    def job_ids(self, stage: Stage) -> list[str]:
        """Return the ids of a stage's jobs; none while their number is not known."""
        count = self.states[stage.name].jobs
        return [stage_job_id(self.job.id, stage.name, n) for n in range(count)]

    def options(self, stage: Stage, timeout_s: float) -> JobOptions:
        """Return the options of a stage's job, from those of the pipeline's job."""
        message = self.message
        left_s = max(0.0, self.deadline - time.time()) + LATER_S
        expires_s = None
        if message.expires_s is not None and INPUT in stage.sources:
            # The pipeline's job has not started before its first stage has.
            expires_s = max(0.001, self.job.expires_at - time.monotonic())
        kept_s = KEPT_S + 2 * max(0, math.ceil(self.deadline - self._began))
        return JobOptions(
            priority=max(self.job.step, stage.priority),
            expires=expires_s,
            timeout=min(timeout_s, left_s),
            max_retries=message.max_retries,
            retry_backoff=message.retry_backoff_s,
            retry_backoff_max=message.retry_backoff_max_s,
            result_ttl=min(kept_s, MAX_WAIT_FOR_START_S),
        )

    def details(self, stage: Stage, model: ModelConfig) -> InputDetails | None:
        """Return the details of the input of a stage's job: those that its model declares."""
        given = self.message.details
        if given is None:
            return None
        parameters = read_object(given.parameters, "parameters")
        headers = read_object(given.headers, "headers")
        return InputDetails(
            parameters=_chosen(parameters, model.parameters),
            headers=_chosen(headers, model.headers),
            metadata=given.metadata,
            nested=given.nested and INPUT in stage.sources,
            typed=given.typed and INPUT in stage.sources,
        )

    async def _resume(self) -> PreviousAttempt:
        """Resume an earlier attempt, and return its saved states."""
        note = await self._backend.saved_stages(self)
        previous = await read_previous(self.job.id, self.pipeline, note, self._backend.view)
        if previous.incomplete:
            await self._backend.forget(previous.incomplete)
        for stage in self.pipeline.stages:
            if stage.name not in previous.ended:
                continue
            self.states[stage.name] = StageState.of(stage.model, previous.ended[stage.name])
            jobs = previous.jobs.get(stage.name)
            if jobs is None:
                self.freed += self.job_ids(stage)
                continue
            self.ended.update({job.id: (stage, job) for job in jobs})
            values = tuple(value_of(job) for job in jobs)
            known = self._results[stage.name] = asyncio.get_running_loop().create_future()
            known.set_result(ListValue(values) if stage.spread else values[0])
        return previous

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
        await self._backend.save_stages(self)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(stage, n, len(given), value))
                for n, value in enumerate(given)
            ]
        values = tuple(task.result() for task in tasks)
        state.ended_s = time.time()
        await self._save_end()
        return ListValue(values) if stage.spread else values[0]

    async def _save_end(self) -> None:
        """Save that a stage has ended, and free results that no stage needs any more."""
        spent = self._spent()
        if not spent:
            await self._backend.save_stages(self)
        elif await self._backend.free(self, spent):
            for stage in spent:
                self._freed_stages.add(stage.name)
                self._results.pop(stage.name, None)
                ids = self.job_ids(stage)
                self.freed += [name for name in ids if self.ended.pop(name, None) is not None]

    def _spent(self) -> list[Stage]:
        """Return the stages with results that no stage needs any more.

        None of them once all stages have ended, as everything is deleted with the job's end.
        """
        over = {name for name, state in self.states.items() if state.ended_s}
        if len(over) == len(self.states):
            return []
        needed = {source for stage in self.pipeline.stages if stage.name not in over
                  for source in stage.sources}  # fmt: skip
        kept = {*needed, *self.pipeline.result, *self._freed_stages}
        return [
            stage for stage in self.pipeline.stages if stage.name in over and stage.name not in kept
        ]

    async def _given(self, stage: Stage) -> list[Value]:
        value = self._combined(stage.sources, joined=stage.joined)
        if not stage.path:
            return [value]
        short = self._backend.inline_limit_bytes
        values = await follow(value, stage.path, self._backend.read, short)
        max_items = self.pipeline.max_items
        if len(values) > max_items:
            raise PayloadTooLarge(
                f"{len(values)} elements, more than the pipeline's max_items of {max_items}"
            )
        return values

    async def _one(self, stage: Stage, n: int, of: int, value: Value) -> Value:
        job_id = stage_job_id(self.job.id, stage.name, n)
        self.running[job_id] = stage
        shown = f"stage {stage.name}" + (f" ({n + 1} of {of})" if stage.spread else "")
        state = self.states[stage.name]
        try:
            job = await self._backend.run_job(self, stage, job_id, value)
        except HeadraceError as error:
            state.failed = True
            raise StageFailed(error.code, f"{shown}: {error.message}") from error
        del self.running[job_id]
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


def _chosen(given: dict[str, Any], names: Container[str]) -> bytes:
    """Return the members with these names as JSON text; b"" for none."""
    chosen = {name: value for name, value in given.items() if name in names and value is not None}
    return msgspec.json.encode(chosen) if chosen else b""


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure of a group, which has cancelled the others."""
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


def about(execution: PipelineExecution) -> dict[str, str]:
    """Return the log fields of a pipeline's job."""
    return {"model": execution.pipeline.name, "job": execution.job.id}
