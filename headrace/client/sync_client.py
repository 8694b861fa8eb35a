"""The blocking client: runs plans on httpx2.Client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from headrace.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return a plan as a method."""

    @wraps(plan)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """Return a stream as a method."""

    @wraps(stream)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.iterate(stream(self.session, *args, **kwargs))

    return call


class _EventReader:
    """Reads the body of an answer as it arrives."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.iter_bytes()

    def read(self) -> bytes | ConnectionFailed:
        try:
            return next(self._chunks, b"")
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return ConnectionFailed(str(error) or type(error).__name__, refused=False)

    def close(self) -> None:
        self._response.close()


class Client(ClientBase):
    """Submits jobs, waits for them and reads their results. Threads may share a client."""

    @override
    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Jobs continue."""
        self._http.close()

    submit = _blocking(calls.submit)
    wait = _blocking(calls.wait)
    result = _blocking(calls.result)
    submit_many = _iterating(bulk.submit_many)
    map = _iterating(mapping.map_inputs)
    events = _iterating(events.events)
    jobs = _iterating(calls.jobs)
    models = _blocking(calls.models)
    model = _blocking(calls.model)
    queues = _blocking(calls.queues)
    pause_queue = _blocking(admin.pause_queue)
    resume_queue = _blocking(admin.resume_queue)
    purge_queue = _blocking(admin.purge_queue)
    dead_letters = _iterating(admin.dead_letters)
    dead_letter = _blocking(admin.dead_letter)
    requeue_dead_letters = _blocking(admin.requeue_dead_letters)
    purge_dead_letters = _blocking(admin.purge_dead_letters)
    ready = _blocking(calls.ready)
    runs = _blocking(admin.runs)
    run_record = _blocking(admin.run_record)
    cancel_run = _blocking(admin.cancel_run)
    webhooks = _blocking(admin.webhooks)
    redeliver_webhook = _blocking(admin.redeliver_webhook)

    @overload
    def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """Return a job's present status; for several jobs a list with None for unknown ids.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return self.run(calls.status(self.session, job))
        return self.run(bulk.statuses(self.session, job))

    @overload
    def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several, and return the outcome.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return self.run(calls.cancel(self.session, job))
        return self.run(bulk.cancel_many(self.session, job))

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end and return its result."""
        reply: object = None
        while True:
            try:
                action = plan.send(reply)
            except StopIteration as ended:
                value: T = ended.value
                return value
            reply = self._perform(action)

    def iterate(self, stream: Stream[T]) -> Iterator[T]:
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
                    yield from action.items
                    reply = None
                    continue
                reply = self._perform(action)
                if isinstance(reply, StreamOpened) and reply.reader is not None:
                    opened = [reply.reader]
        finally:
            # Also if the caller stops early.
            for reader in opened:
                reader.close()

    def _perform(
        self, action: Action
    ) -> HttpResponse | ConnectionFailed | TakenInput | StreamOpened | bytes | None:
        if isinstance(action, HttpRequest):
            return self._send(action)
        if isinstance(action, Pause):
            time.sleep(action.seconds)
            return None
        if isinstance(action, OpenStream):
            return self._open_stream(action.request)
        if isinstance(action, ReadStream):
            chunk: bytes | ConnectionFailed = action.reader.read()
            return chunk
        if isinstance(action, CloseStream):
            action.reader.close()
            return None
        return self._take_inputs(action)

    def _open_stream(self, request: HttpRequest) -> StreamOpened:
        try:
            built = self._http.build_request(**self._arguments(request))
            response = self._http.send(built, stream=True)
            if is_stream(response):
                return StreamOpened(
                    HttpResponse(200, response.headers, b""), _EventReader(response)
                )
            try:
                response.read()
            finally:
                response.close()
        except httpx2.TransportError as error:
            return StreamOpened(connection_failed(error))
        return StreamOpened(response_of(response))

    def _take_inputs(self, action: NextInput) -> TakenInput:
        if not isinstance(action.source, Iterator):
            raise InvalidRequest(
                "Client cannot read an asynchronous iterator",
                hint="Use AsyncClient, or give a list or a generator.",
            )
        return take_inputs(action.source, action)

    def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        try:
            answer = self._http.request(**self._arguments(request))
        except httpx2.TransportError as error:
            return connection_failed(error)
        return response_of(answer)


def send_once(client: Client, request: HttpRequest) -> HttpResponse | ConnectionFailed:
    """Send one request without retries, for callers that run a plan's actions themselves."""
    return client._send(request)
