"""The asyncio client: runs plans on httpx2.AsyncClient."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import httpx2
from typing_extensions import override

from headrace.client import admin, bulk, calls, events
from headrace.client import map as mapping
from headrace.client.models import Cancelled, Job
from headrace.client.retries import Session
from headrace.client.sansio import (
    Action,
    CloseStream,
    ConnectionFailed,
    HttpRequest,
    HttpResponse,
    NextInput,
    OpenStream,
    Pause,
    Plan,
    ReadStream,
    Stream,
    StreamOpened,
    TakenInput,
    Yield,
    take_inputs,
)
from headrace.client.transport import ClientBase, connection_failed, is_stream, response_of

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """Return a plan as a method."""

    @wraps(plan)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """Return a stream as a method."""

    @wraps(stream)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.iterate(stream(self.session, *args, **kwargs))

    return call


class _EventReader:
    """Reads the body of an answer as it arrives."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.aiter_bytes()

    async def read(self) -> bytes | ConnectionFailed:
        try:
            return await anext(self._chunks, b"")
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return ConnectionFailed(str(error) or type(error).__name__, refused=False)

    async def close(self) -> None:
        await self._response.aclose()


class AsyncClient(ClientBase):
    """`Client` for asyncio: methods are awaited, and iterators are asynchronous."""

    @override
    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Jobs continue."""
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
    runs = _awaiting(admin.runs)
    run_record = _awaiting(admin.run_record)
    cancel_run = _awaiting(admin.cancel_run)
    webhooks = _awaiting(admin.webhooks)
    redeliver_webhook = _awaiting(admin.redeliver_webhook)

    @overload
    async def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    async def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    async def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """Return a job's present status; for several jobs a list with None for unknown ids.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return await self.run(calls.status(self.session, job))
        return await self.run(bulk.statuses(self.session, job))

    @overload
    async def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    async def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    async def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several, and return the outcome.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return await self.run(calls.cancel(self.session, job))
        return await self.run(bulk.cancel_many(self.session, job))

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end and return its result."""
        reply: object = None
        while True:
            try:
                action = plan.send(reply)
            except StopIteration as ended:
                value: T = ended.value
                return value
            reply = await self._perform(action)

    async def iterate(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Run a stream and yield its items."""
        reply: object = None
        opened: list[_EventReader] = []
        try:
            while True:
                try:
                    action = stream.send(reply)
                except StopIteration:
                    return
                if isinstance(action, Yield):
                    for item in action.items:
                        yield item
                    reply = None
                    continue
                reply = await self._perform(action)
                if isinstance(reply, StreamOpened) and reply.reader is not None:
                    opened = [reply.reader]
        finally:
            # Also if the caller stops early.
            for reader in opened:
                await reader.close()

    async def _perform(
        self, action: Action
    ) -> HttpResponse | ConnectionFailed | TakenInput | StreamOpened | bytes | None:
        if isinstance(action, HttpRequest):
            return await self._send(action)
        if isinstance(action, Pause):
            await asyncio.sleep(action.seconds)
            return None
        if isinstance(action, OpenStream):
            return await self._open_stream(action.request)
        if isinstance(action, ReadStream):
            chunk: bytes | ConnectionFailed = await action.reader.read()
            return chunk
        if isinstance(action, CloseStream):
            await action.reader.close()
            return None
        return await self._take_inputs(action)

    async def _open_stream(self, request: HttpRequest) -> StreamOpened:
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
            return StreamOpened(connection_failed(error))
        return StreamOpened(response_of(response))

    async def _take_inputs(self, action: NextInput) -> TakenInput:
        if isinstance(action.source, Iterator):
            return take_inputs(action.source, action)
        inputs: list[Any] = []
        deadline = time.monotonic() + action.within_s
        try:
            async for value in action.source:
                inputs.append(value)
                if len(inputs) == action.count or time.monotonic() > deadline:
                    return TakenInput(inputs, ended=False)
        except Exception as error:  # noqa: BLE001 - raised again after the results of earlier inputs
            return TakenInput(inputs, ended=True, error=error)
        return TakenInput(inputs, ended=True)

    async def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        try:
            answer = await self._http.request(**self._arguments(request))
        except httpx2.TransportError as error:
            return connection_failed(error)
        return response_of(answer)
