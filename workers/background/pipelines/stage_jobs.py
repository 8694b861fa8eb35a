"""The jobs of pipelines' stages: submitted as the API does it, waited for, and cleared away.

asyncio; what blocks (the payload stores) is asked from threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from headrace.config.model_catalog import Catalog, ModelConfig
from headrace.config.pipelines import Stage
from headrace.config.settings import Settings
from headrace.errors import BrokerError, HeadraceError, QueueFull, StoreError
from headrace.jobs.job import Job, State
from headrace.jobs.message import InputSource, PayloadRange
from headrace.payloads.ranges import read_bytes, read_parts, size_of
from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import THREADS, PayloadStores
from headrace.queue.dead_letters import DeadLetters
from headrace.queue.job_queue import OUTCOMES_MAX_JOBS, VIEW_MAX_JOBS, JobQueue
from headrace.queue.submission import submission
from headrace.queue.waiters import JobWaiter, Waiters
from headrace.redis import keys
from headrace.redis.backoff import Backoff
from headrace.redis.keys import F
from headrace.redis.outages import translate
from headrace.redis.scripts import pipelines as pipeline_scripts
from workers.background.pipelines.execution import PipelineExecution, about
from workers.background.pipelines.values import ExternalValue, StoredValue, Value, parts_of
from workers.jobs.settlement import Settlement

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A stage's job is looked at so often though nobody has told of its end: Redis may have lost it.
LOOK_S: Final = 10.0
#: How far the stages have come is written down at most so often, in seconds.
TOLD_S: Final = 0.3
#: The results of so many jobs are freed in one call: bounds how long it holds Redis.
FREE_MAX_JOBS: Final = 256
#: So many notes are said or read at a time, each on a connection: fewer than the pool has.
NOTES_MAX: Final = 16
_PASSES: Final = (QueueFull, BrokerError, StoreError)
_NOTHING: Final = b"null"


class StageJobLost(Exception):
    """The job of a course is another's by now, who goes on with it: nothing of it is to be done."""


class StageInput(NamedTuple):
    """The input of a stage's job on its way.

    Attributes:
        entry: its payload, where one was made for it.
    """

    text: bytes
    source: InputSource | None = None
    entry: PayloadEntry | None = None


class StageJobs:
    """What the courses of one conductor work with.

    Args:
        client: the connections.
        queue: submits and reads.
        waiters: hears of the ends.
        stores: where long inputs and results lie.
        catalog: the models.
        settings: for the bounds.
    """

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
        self._letters = DeadLetters(client, queue)
        self._threads = ThreadPoolExecutor(THREADS, "headrace-stages")
        self._told_at: dict[str, float] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(NOTES_MAX)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.stores.close()

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """What blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def read(self, stretch: PayloadRange) -> bytes:
        """A stretch of a payload."""
        return await self.patiently(lambda: self.in_thread(read_bytes, self.stores, stretch))

    async def told(self, course: PipelineExecution, *, now: bool = False) -> None:
        """Note in the record how far a course has come; a view, so that a failure is none of it."""
        if now or time.monotonic() >= self._told_at.get(course.item.token, 0.0) + TOLD_S:
            await self._note(course)

    async def noted(self, course: PipelineExecution) -> bytes:
        """How far a course had come when that was noted last; empty where it never was."""

        async def read() -> bytes:
            try:
                async with self._room:
                    found = await self._client.hget(keys.job(course.item.id), F.STAGES)
            except RedisError as error:
                raise translate(error) from error
            return found or b""

        return await self.patiently(read)

    async def view(self, ids: Sequence[str]) -> list[Job | None]:
        """Jobs with their results; None for those that Redis does not know."""
        found: list[Job | None] = []
        for chunk in _chunks(ids, VIEW_MAX_JOBS):
            found += await self.patiently(partial(self._queue.view, chunk))
        return found

    async def forget(self, ids: Sequence[str]) -> None:
        """Remove what is left of stages' jobs that have ended, so that they can run again."""
        for chunk in _chunks(ids, OUTCOMES_MAX_JOBS):
            await self.patiently(partial(self._queue.forget, chunk))

    async def free(self, course: PipelineExecution, stages: Sequence[Stage]) -> bool:
        """Note how far a course has come, and free these stages' results; whether it was done.

        Where it was not, because the course is another's by now or Redis is away, it need not be
        said again: the next stage that ends frees these too, else the end of the job.
        """
        ids = [name for stage in stages for name in course.job_ids(stage)]
        # Of no job, too, as the note is to have the stage that has ended.
        for chunk in _chunks(ids, FREE_MAX_JOBS) if ids else ((),):
            if not await self._note(course, *chunk):
                return False
        entries = _stored(course, ids)
        if entries:
            await self._delete(course, entries)
        return True

    async def _delete(self, course: PipelineExecution, entries: Sequence[PayloadEntry]) -> None:
        """Delete payloads; what lies outside of Redis behind the course, which goes on."""
        try:
            elsewhere = await self.in_thread(self.stores.index.look, *entries)
        except HeadraceError as error:
            logger.warning("payloads are left to the sweep: %s", error, extra=about(course))
            return
        if elsewhere:
            task = asyncio.create_task(self._dropped(elsewhere))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _dropped(self, entries: Sequence[PayloadEntry]) -> None:
        try:
            await self.in_thread(self.stores.drop, *entries)
        except HeadraceError as error:
            logger.warning("payloads are left to the sweep: %s", error.message)

    async def _note(self, course: PipelineExecution, *freed: str) -> bool:
        """Note how far a course has come, and with it that results are freed; whether it was."""
        token = course.item.token
        self._told_at[token] = time.monotonic()
        async with course.telling, self._room:
            try:
                stages = course.stages_json()
                return bool(
                    await self._queue.call_once(
                        pipeline_scripts.save_stages(course.item.id, token, stages, freed)
                    )
                )
            except HeadraceError as error:
                logger.warning("its stages are not written down: %s", error, extra=about(course))
                return False

    async def job(self, course: PipelineExecution, stage: Stage, job_id: str, value: Value) -> Job:
        """Submit a stage's job, unless it is there, and wait for its end.

        Raises:
            HeadraceError: it can never be submitted.
        """
        model = self._catalog.models[stage.model]

        async def ended() -> Job:
            while True:
                found = await self._ended(course, stage, job_id, model, value)
                if found is not None:
                    return found
                logger.warning("%s is lost or outdated; sent again", job_id, extra=about(course))

        return await self.patiently(ended)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, called until there is room and everybody answers."""
        backoff = Backoff()
        while True:
            try:
                return await call()
            except _PASSES as error:
                if not error.retryable:
                    raise
                delay_s = backoff.next_s()
                logger.info("%s; tried again in %.2f s", error.message, delay_s)
            await asyncio.sleep(delay_s)

    async def cancel(self, course: PipelineExecution) -> dict[str, str]:
        """Cancel a course's jobs that are under way; how those ended that have, by id.

        Raises:
            Lost: the course is another's by now, and so are they.
        """
        item, over = course.item, dict[str, str]()
        for chunk in _chunks(list(course.under_way), VIEW_MAX_JOBS):
            said = await self.patiently(partial(self._queue.cancel_for, item.id, item.token, chunk))
            if said is None:
                raise StageJobLost
            over.update(pair for pair in zip(chunk, said, strict=True) if pair[1] != "asked")
        return over

    async def clear(
        self, course: PipelineExecution, over: Mapping[str, str], *, settled: bool = False
    ) -> None:
        """Remove what nobody needs once the course is over; where that fails, it runs out.

        Args:
            course: the course.
            over: what `cancel` gave.
            settled: its job has ended; until then it is asked whose that is.

        Raises:
            Lost: the course is another's by now, and nothing of it was removed.
        """
        self.leave(course)
        item = course.item
        names = [*course.ended, *course.freed, *over]
        entries = _stored(course, course.ended)
        try:
            for chunk in _chunks(names, VIEW_MAX_JOBS):
                if settled:
                    await self._client.unlink(*map(keys.job, chunk), *map(keys.meta, chunk))
                elif not await self._queue.call_once(
                    pipeline_scripts.clear(item.id, item.token, chunk)
                ):
                    raise StageJobLost
            for model, letters in _letters(course, over).items():
                await self._letters.purge(keys.queue_name(model), letters)
            if entries:
                await self.in_thread(self.stores.drop, *entries)
        except (HeadraceError, RedisError, OSError) as error:
            logger.warning("what is left of its stages runs out: %s", error, extra=about(course))

    def leave(self, course: PipelineExecution) -> None:
        """Note no more of a course."""
        self._told_at.pop(course.item.token, None)

    async def settled(self, course: PipelineExecution, settlement: Settlement) -> None:
        """The job has ended: its own input goes, and its result stays as long as its record."""
        name, message = course.pipeline.name, course.item.message
        entries = []
        if message is not None and message.source is not None and message.source.ref:
            entries.append(PayloadEntry(message.source.ref, course.item.id, name, "i"))
        if settlement.extra == F.RESULT_REF:
            entries.append(
                PayloadEntry(str(settlement.value).split(" ")[0], course.item.id, name, "r")
            )
        try:
            if entries:
                await self.in_thread(self.stores.drop, *entries)
        except HeadraceError as error:
            logger.warning("payloads are left to the sweep: %s", error.message)

    async def _ended(
        self, course: PipelineExecution, stage: Stage, job_id: str, model: ModelConfig, value: Value
    ) -> Job | None:
        """The job once it has ended; None where Redis, or a life that is over, has taken it."""
        given = await self._input(job_id, model, value)
        with self._waiters.own(job_id) as wait:
            try:
                receipt = await self._queue.submit(self._submission(course, stage, job_id, given))
            except BrokerError:
                raise  # Redis may have taken it; if not, the sweep deletes its payload
            except HeadraceError:
                await self._drop(given)
                raise
            if not receipt.repeated:
                course.sent.add(job_id)
                return await self._end(wait, model, receipt.created_us)
        # It was submitted by a life of this course before, under another name perhaps.
        await self._drop(given)
        cancelled = job_id not in course.sent and await self._cancelled(job_id)
        async with self._waiters.foreign(job_id) as wait:
            wait.wake()
            found = await self._end(wait, model, receipt.created_us)
        if found is not None and (found.freed or (cancelled and found.state is State.CANCELLED)):
            # A life of which no note is left has freed it and could not clear it away, or has had
            # it cancelled while it ran.
            await self.forget([job_id])
            return None
        return found

    async def _cancelled(self, job_id: str) -> bool:
        job = await self._queue.read(job_id)
        return job is not None and (job.cancel_asked or job.state is State.CANCELLED)

    async def _end(self, wait: JobWaiter, model: ModelConfig, created_us: int) -> Job | None:
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(LOOK_S, wait.wake)
            try:
                ended = await wait.woken()
            finally:
                timer.cancel()
            if ended is not None:
                return ended.job(model.name, model.version, created_us)
            job = await self.patiently(lambda: self._queue.read(wait.job_id))
            if job is None or job.state.final:
                return job

    def _submission(
        self, course: PipelineExecution, stage: Stage, job_id: str, given: StageInput
    ) -> Any:
        model = self._catalog.models[stage.model]
        return submission(
            job_id,
            model,
            given.text,
            course.options(stage, model.timeout_s),
            now_s=self._queue.clock.now_s(),
            result_ttl_s=self._settings.result_ttl_s,
            waiter=self._waiters.api_id,
            source=given.source,
            trace=course.message.trace,
        )

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
        # So much text stands in no message; what it is put together with is copied, too.
        body = await self.in_thread(read_parts, self.stores, parts)
        entry = self.stores.new_entry(job_id, model.name, "i")
        await self.in_thread(self.stores.put, entry, body)
        return StageInput(_NOTHING, InputSource(ref=entry.ref, size=len(body)), entry)

    async def _drop(self, given: StageInput) -> None:
        if given.entry is not None:
            try:
                await self.in_thread(self.stores.drop, given.entry)
            except HeadraceError as error:
                logger.warning("a payload is left to the sweep: %s", error.message)


def _letters(course: PipelineExecution, over: Mapping[str, str]) -> dict[str, list[str]]:
    """A course's jobs that may be dead letters, by model; the pipeline's own stands for them."""
    found: dict[str, list[str]] = {}
    for job_id, (stage, job) in course.ended.items():
        if job.dead_lettered:
            found.setdefault(stage.model, []).append(job_id)
    for job_id, word in over.items():
        if word == "ended":  # at the same time as what has ended the course
            found.setdefault(course.under_way[job_id].model, []).append(job_id)
    return found


def _chunks(names: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), most):
        yield names[at : at + most]


def _stored(course: PipelineExecution, names: Iterable[str]) -> list[PayloadEntry]:
    """The payloads of those of a course's jobs whose results lie in a store."""
    found = [(name, *course.ended[name]) for name in names if name in course.ended]
    return [
        PayloadEntry(job.stored.ref, name, stage.model, "r")
        for name, stage, job in found
        if job.stored is not None
    ]
