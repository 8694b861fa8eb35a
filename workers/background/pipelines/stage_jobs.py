"""The jobs of pipelines' stages: submits them as the API does, waits for them, and deletes them.

Runs in asyncio; calls that block (the payload stores) run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.config.model.pipelines import PipelineConfig, Stage
from headrace.config.settings import Settings
from headrace.errors import BrokerError, HeadraceError, QueueFull, StoreError
from headrace.jobs.job import Job, State
from headrace.jobs.message import InputSource, PayloadRange
from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import THREADS, PayloadStores, read_bytes, read_parts, size_of
from headrace.queue.asyncio_tasks import RunningTasks
from headrace.queue.dead_letters import DeadLetters
from headrace.queue.following.waiters import JobWaiter, Waiters
from headrace.queue.job_queue import OUTCOMES_MAX_JOBS, VIEW_MAX_JOBS, JobQueue
from headrace.queue.submission import Extras, JobSubmission, SubmitKind, submission
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.outages import OUTAGE_LINES, Backoff, translate
from headrace.redis.scripts import pages_of, script
from workers.background.pipelines.execution import PipelineExecution, about
from workers.background.pipelines.stage_state import stage_job_id
from workers.background.pipelines.values import ExternalValue, StoredValue, Value, parts_of
from workers.jobs.settlement import Settlement

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two reads of a job whose end was not published: Redis may have lost it.
LOOK_S: Final = 10.0
#: Minimum seconds between two saves of an execution's states.
SAVE_S: Final = 0.3
#: The most jobs whose results one call frees, which limits how long it blocks Redis.
FREE_MAX_JOBS: Final = 256
#: The most states that are saved or read at once, each on a connection: fewer than the pool has.
SAVES_MAX: Final = 16
_PASSES: Final = (QueueFull, BrokerError, StoreError)
_NOTHING: Final = b"null"


class PipelineLeaseLost(Exception):
    """Another worker has the lease of the pipeline's job and resumes it; leave everything to it."""


class StageInput(NamedTuple):
    """The input of a stage's job.

    Attributes:
        text: the JSON text, if the message has it.
        source: where the input is otherwise.
        entries: the payload that was written for it; empty if there was no need.
    """

    text: bytes
    source: InputSource | None = None
    entries: tuple[PayloadEntry, ...] = ()


class StageJobs:
    """Runs the jobs of stages, for the executions of an orchestrator."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        queue: JobQueue,
        waiters: Waiters,
        stores: PayloadStores,
        catalog: Catalog,
        settings: Settings,
    ) -> None:
        self.inline_limit_bytes = settings.inline_limit_bytes
        self.stores = stores
        self._client: Any = client
        self._queue = queue
        self._waiters = waiters
        self._catalog = catalog
        self._settings = settings
        self._dead_letters = DeadLetters(queue)
        self._threads = ThreadPoolExecutor(THREADS, "headrace-stages")
        self._drops = RunningTasks()
        self._save_slots = asyncio.Semaphore(SAVES_MAX)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.stores.close()

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call that blocks in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def read(self, stretch: PayloadRange) -> bytes:
        """Return a range of a payload."""
        return await self.patiently(lambda: self.in_thread(read_bytes, self.stores, stretch))

    async def save_stages(self, execution: PipelineExecution, *, now: bool = False) -> None:
        """Save the states of the stages for readers; a failure is only logged."""
        if now or time.monotonic() >= execution.saved_at + SAVE_S:
            await self._save(execution)

    async def saved_stages(self, execution: PipelineExecution) -> bytes:
        """Return the states that were saved last; b"" if none were saved."""

        async def read() -> bytes:
            try:
                async with self._save_slots:
                    stages = await self._client.hget(keys.job(execution.job.id), JobField.STAGES)
            except RedisError as error:
                raise translate(error) from error
            return stages or b""

        return await self.patiently(read)

    async def view(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs with their results; None for a job that Redis does not have."""
        jobs: list[Job | None] = []
        for chunk in pages_of(ids, VIEW_MAX_JOBS):
            jobs += await self.patiently(partial(self._queue.view, chunk))
        return jobs

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete stages' jobs that have ended, so that they can run again."""
        for chunk in pages_of(ids, OUTCOMES_MAX_JOBS):
            await self.patiently(partial(self._queue.forget, chunk))

    async def free(self, execution: PipelineExecution, stages: Sequence[Stage]) -> bool:
        """Save the states, and free these stages' results; return whether it was done.

        A failure (the lease is lost, or Redis is away) needs no retry. The next stage that ends
        frees these results too, or the end of the job does.
        """
        ids = [name for stage in stages for name in execution.job_ids(stage)]
        # Also without jobs, as the states must have the stage that has ended.
        for chunk in pages_of(ids, FREE_MAX_JOBS) if ids else ((),):
            if not await self._save(execution, *chunk):
                return False
        entries = _stored(execution, ids)
        if entries:
            await self._delete(execution, entries)
        return True

    async def _delete(self, execution: PipelineExecution, entries: Sequence[PayloadEntry]) -> None:
        """Delete payloads; those outside of Redis in the background, while the execution runs."""
        try:
            elsewhere = await self.in_thread(self.stores.index.look, *entries)
        except HeadraceError as error:
            logger.warning(
                "payloads not deleted; the sweep will: %s", error, extra=about(execution)
            )
            return
        if elsewhere:
            self._drops.begin(self._drop(*elsewhere))

    async def _save(self, execution: PipelineExecution, *freed: str) -> bool:
        """Save the states and which results are freed; return whether it was done."""
        token, execution.saved_at = execution.job.token, time.monotonic()
        async with execution.saving, self._save_slots:
            try:
                stages = execution.stages_json()
                save = script("pipelines/save_stages").call(
                    [], execution.job.id, token, stages, execution.started, *freed
                )
                return bool(await self._queue.call_once(save))
            except HeadraceError as error:
                logger.warning("states of stages not saved: %s", error, extra=about(execution))
                return False

    async def run_job(
        self, execution: PipelineExecution, stage: Stage, job_id: str, value: Value
    ) -> Job:
        """Submit a stage's job unless it exists, and await its end; or raise HeadraceError."""

        async def ended() -> Job:
            while True:
                job = await self._ended(execution, stage, job_id, value)
                if job is not None:
                    return job
                logger.warning(
                    "stage's job lost or outdated: %s; sent again", job_id, extra=about(execution)
                )

        return await self.patiently(ended)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what `call` returns, and retry it while a queue is full or a server is away."""
        backoff = Backoff()
        while True:
            try:
                return await call()
            except _PASSES as error:
                if not error.retryable:
                    raise
                delay_s = backoff.next_s()
                if (more := OUTAGE_LINES.allows(error.code)) is not None:
                    logger.info("%s; next attempt in %.2f s%s", error.message, delay_s, more)
            await asyncio.sleep(delay_s)

    async def cancel(self, execution: PipelineExecution) -> dict[str, str]:
        """Cancel stages' jobs; return the replies about ended ones, or raise PipelineLeaseLost."""
        job, over = execution.job, dict[str, str]()
        for chunk in pages_of(list(execution.running), VIEW_MAX_JOBS):
            replies = await self.patiently(
                partial(self._queue.cancel_for, job.id, job.token, chunk)
            )
            if replies is None:
                raise PipelineLeaseLost
            over.update(pair for pair in zip(chunk, replies, strict=True) if pair[1] != "asked")
        return over

    async def cancel_orphaned(self, pipeline: PipelineConfig, job_id: str) -> None:
        """Cancel the stages' jobs of a pipeline's job that has ended without its worker."""
        job = await self.patiently(lambda: self._queue.read(job_id))
        if job is not None and not job.state.final:
            return  # the id has another job by now, whose stages' jobs have the same ids
        for stage in pipeline.stages:
            count = pipeline.max_items if stage.spread else 1
            for chunk in pages_of(range(count), VIEW_MAX_JOBS):
                ids = [stage_job_id(job_id, stage.name, n) for n in chunk]
                replies = await self.patiently(partial(self._queue.cancel, ids))
                if all(reply == "unknown" for reply in replies):
                    break

    async def clear(
        self, execution: PipelineExecution, over: Mapping[str, str], *, settled: bool = False
    ) -> None:
        """Delete the results that are not needed after the execution; the others expire.

        `over` is what `cancel` returned. Until the pipeline's job is settled, its lease is checked.

        Raises:
            PipelineLeaseLost: another worker resumed the pipeline's job; nothing was deleted.
        """
        job = execution.job
        names = [*execution.ended, *execution.freed, *over]
        entries = _stored(execution, execution.ended)
        try:
            for chunk in pages_of(names, VIEW_MAX_JOBS):
                if settled:
                    await self._client.unlink(*map(keys.job, chunk), *map(keys.meta, chunk))
                else:
                    clear = script("pipelines/clear").call([], job.id, job.token, *chunk)
                    if not await self._queue.call_once(clear):
                        raise PipelineLeaseLost
            for model, ids in _dead_letters(execution, over).items():
                await self._dead_letters.purge(keys.queue_name(model), ids)
            if entries:
                await self.in_thread(self.stores.drop, *entries)
        except (HeadraceError, RedisError, OSError) as error:
            logger.warning(
                "stages' jobs not deleted; they expire: %s", error, extra=about(execution)
            )

    async def settled(self, execution: PipelineExecution, settlement: Settlement) -> None:
        """Delete the settled job's input; its result stays as long as its record."""
        name, message = execution.pipeline.name, execution.job.message
        entries = []
        if message is not None and message.source is not None and message.source.ref:
            entries.append(PayloadEntry(message.source.ref, execution.job.id, name, "i"))
        if settlement.extra == JobField.RESULT_REF:
            entries.append(
                PayloadEntry(str(settlement.value).split(" ")[0], execution.job.id, name, "r")
            )
        await self._drop(*entries)

    async def _ended(
        self, execution: PipelineExecution, stage: Stage, job_id: str, value: Value
    ) -> Job | None:
        """Return the job once it has ended; None if it is lost, or outdated by an old attempt."""
        model = self._catalog.models[stage.model]
        given = await self._input(job_id, model, value)
        with self._waiters.own(job_id) as wait:
            try:
                receipt = await self._queue.submit(
                    self._submission(execution, stage, job_id, given)
                )
            except BrokerError:
                raise  # Redis may have taken it; if not, the sweep deletes its payload
            except HeadraceError:
                await self._drop(*given.entries)
                raise
            if not receipt.repeated:
                execution.submitted.add(job_id)
                wait.submitted(receipt.created_us)
                return await self._end(wait, model.name, receipt.created_us)
        # An earlier attempt has submitted it, perhaps with another input payload.
        await self._drop(*given.entries)
        cancelled = job_id not in execution.submitted and await self._cancelled(job_id)
        async with self._waiters.foreign(job_id) as wait:
            wait.watched(receipt.created_us)
            job = await self._end(wait, model.name, receipt.created_us)
        if job is not None and (job.freed or (cancelled and job.state is State.CANCELLED)):
            # An attempt without saved states has freed it and could not delete it, or has cancelled
            # it while it ran.
            await self.forget([job_id])
            return None
        return job

    async def _cancelled(self, job_id: str) -> bool:
        job = await self._queue.read(job_id)
        return job is not None and (job.cancel_requested or job.state is State.CANCELLED)

    async def _end(self, wait: JobWaiter, model: str, created_us: int) -> Job | None:
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(LOOK_S, wait.wake)
            try:
                notice = await wait.woken()
            finally:
                timer.cancel()
            if notice is not None:
                return notice.job(model, created_us)
            job = await self.patiently(lambda: self._queue.read(wait.job_id))
            if job is None or job.state.final:
                return job

    def _submission(
        self, execution: PipelineExecution, stage: Stage, job_id: str, given: StageInput
    ) -> JobSubmission:
        model = self._catalog.models[stage.model]
        kind = SubmitKind(
            model,
            self._settings.result_ttl_s,
            execution.options(stage, model.timeout_s),
            self._waiters.api_id,
        )
        extras = Extras(
            source=given.source,
            trace=execution.message.trace,
            details=execution.details(stage, model),
            # Its pipeline's job is the failure that a user sees and retries.
            fields=(JobField.STAGE_JOB, "1"),
        )
        now_s = self._queue.clock.now_s()
        return submission(kind, job_id, given.text, now_s=now_s, extras=extras)

    async def _input(self, job_id: str, model: ModelConfig, value: Value) -> StageInput:
        if isinstance(value, ExternalValue):
            return StageInput(_NOTHING, value.source)
        if isinstance(value, StoredValue) and value.whole:
            at = value.at
            return StageInput(_NOTHING, InputSource(ref=at.ref, type=at.type, size=at.length))
        parts = parts_of(value)
        text = [part for part in parts if isinstance(part, str)]
        if sum(map(len, text)) <= self.inline_limit_bytes:
            if len(text) == len(parts):
                return StageInput("".join(text).encode())
            return StageInput(_NOTHING, InputSource(size=size_of(parts), parts=tuple(parts)))
        # Too long for a message, so the whole input is copied into a payload.
        body = await self.in_thread(read_parts, self.stores, parts)
        entry = self.stores.new_entry(job_id, model.name, "i")
        await self.in_thread(self.stores.put, entry, body)
        return StageInput(_NOTHING, InputSource(ref=entry.ref, size=len(body)), (entry,))

    async def _drop(self, *entries: PayloadEntry) -> None:
        try:
            if entries:
                await self.in_thread(self.stores.drop, *entries)
        except HeadraceError as error:
            logger.warning("payloads not deleted; the sweep will: %s", error.message)


def _dead_letters(execution: PipelineExecution, over: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the jobs that may be dead letters, by model; the pipeline's own replaces them."""
    dead_letters: dict[str, list[str]] = {}
    for job_id, (stage, job) in execution.ended.items():
        if job.dead_lettered:
            dead_letters.setdefault(stage.model, []).append(job_id)
    for job_id, word in over.items():
        if word == "ended":  # together with the job that has ended the execution
            dead_letters.setdefault(execution.running[job_id].model, []).append(job_id)
    return dead_letters


def _stored(execution: PipelineExecution, names: Iterable[str]) -> list[PayloadEntry]:
    """Return the payloads of those jobs whose results are in a store."""
    ended = [(name, *execution.ended[name]) for name in names if name in execution.ended]
    return [
        PayloadEntry(job.stored.ref, name, stage.model, "r")
        for name, stage, job in ended
        if job.stored is not None
    ]
