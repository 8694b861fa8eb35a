"""The asyncio shell: runs plans on httpx2.AsyncClient."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import httpx2
from typing_extensions import override

from headrace.client import admin, bulk, calls, events, hooks, offline
from headrace.client import map as mapping
from headrace.client.models import Cancelled, Job
from headrace.client.retries import Session
from headrace.client.sansio import (
    CloseStream,
    ConnectionFailed,
    HttpRequest,
    HttpResponse,
    NextInput,
    OpenStream,
    Pause,
    Plan,
    ReadStream,
    Step,
    Stream,
    StreamOpened,
    TakenInput,
    Yield,
    taken_from,
)
from headrace.client.transport import Transport, answer_of, broken_by, is_stream

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """A plan as a method."""

    @wraps(plan)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """A stream as a method."""

    @wraps(stream)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.iterate(stream(self.session, *args, **kwargs))

    return call


class _EventReader:
    """An answer whose body is read as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.aiter_bytes()

    async def hear(self) -> bytes | ConnectionFailed:
        try:
            return await anext(self._chunks, b"")
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return ConnectionFailed(str(error) or type(error).__name__, refused=False)

    async def close(self) -> None:
        await self._response.aclose()


class AsyncClient(Transport):
    """What `Client` is, for asyncio: every method is awaited, every iterator is an async one."""

    @override
    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Jobs are not touched."""
        await self._http.aclose()

    submit = _awaiting(calls.submit)
    wait = _awaiting(calls.wait)
    result = _awaiting(calls.result)
    submit_many = _iterating(bulk.submit_many)
    map = _iterating(mapping.map_inputs)
    events = _iterating(events.events)
    jobs = _iterating(calls.jobs)
    models = _awaiting(calls.models)
    model = _awaiting(calls.model)
    queues = _awaiting(calls.queues)
    pause_queue = _awaiting(admin.pause_queue)
    resume_queue = _awaiting(admin.resume_queue)
    purge_queue = _awaiting(admin.purge_queue)
    dead_letters = _iterating(admin.dead_letters)
    dead_letter = _awaiting(admin.dead_letter)
    requeue_dead_letters = _awaiting(admin.requeue_dead_letters)
    purge_dead_letters = _awaiting(admin.purge_dead_letters)
    ready = _awaiting(calls.ready)
    runs = _awaiting(offline.runs)
    run_record = _awaiting(offline.run_record)
    cancel_run = _awaiting(offline.cancel_run)
    webhooks = _awaiting(hooks.webhooks)
    redeliver_webhook = _awaiting(hooks.redeliver_webhook)

    @overload
    async def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    async def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    async def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """A job as it is now; of several, None stands for what is unknown.

        Raises:
            JobNotFound: there is none of that id. Not of several.
        """
        if isinstance(job, (str, Job)):
            return await self.run(calls.status(self.session, job))
        return await self.run(bulk.statuses(self.session, job))

    @overload
    async def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    async def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    async def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several; what that did.

        Raises:
            JobNotFound: there is none of that id. Not of several.
        """
        if isinstance(job, (str, Job)):
            return await self.run(calls.cancel(self.session, job))
        return await self.run(bulk.cancel_many(self.session, job))

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        came: object = None
        while True:
            try:
                step = plan.send(came)
            except StopIteration as ended:
                value: T = ended.value
                return value
            came = await self._perform(step)

    async def iterate(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Run a stream, and give what it emits."""
        came: object = None
        opened: list[_EventReader] = []
        try:
            while True:
                try:
                    step = stream.send(came)
                except StopIteration:
                    return
                if isinstance(step, Yield):
                    for item in step.items:
                        yield item
                    came = None
                    continue
                came = await self._perform(step)
                if isinstance(came, StreamOpened) and came.ear is not None:
                    opened = [came.ear]
        finally:
            # Also where the caller has had enough of it.
            for ear in opened:
                await ear.close()

    async def _perform(
        self, step: Step
    ) -> HttpResponse | ConnectionFailed | TakenInput | StreamOpened | bytes | None:
        if isinstance(step, HttpRequest):
            return await self._send(step)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, OpenStream):
            return await self._listen(step.request)
        if isinstance(step, ReadStream):
            heard: bytes | ConnectionFailed = await step.ear.hear()
            return heard
        if isinstance(step, CloseStream):
            await step.ear.close()
            return None
        return await self._take(step)

    async def _listen(self, request: HttpRequest) -> StreamOpened:
        try:
            built = self._http.build_request(**self._arguments(request))
            response = await self._http.send(built, stream=True)
            if is_stream(response):
                return StreamOpened(
                    HttpResponse(200, response.headers, b""), _EventReader(response)
                )
            try:
                await response.aread()
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            return StreamOpened(broken_by(error))
        return StreamOpened(answer_of(response))

    async def _take(self, step: NextInput) -> TakenInput:
        if isinstance(step.source, Iterator):
            return taken_from(step.source, step)
        inputs: list[Any] = []
        late = time.monotonic() + step.within_s
        try:
            async for value in step.source:
                inputs.append(value)
                if len(inputs) == step.count or time.monotonic() > late:
                    return TakenInput(inputs, ended=False)
        except Exception as error:  # noqa: BLE001 - raised again once its elders' results are out
            return TakenInput(inputs, ended=True, error=error)
        return TakenInput(inputs, ended=True)

    async def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        try:
            answer = await self._http.request(**self._arguments(request))
        except httpx2.TransportError as error:
            return broken_by(error)
        return answer_of(answer)
