"""The blocking shell: runs plans on httpx2.Client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from headrace.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    """A plan as a method."""

    @wraps(plan)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """A stream as a method."""

    @wraps(stream)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.iterate(stream(self.session, *args, **kwargs))

    return call


class _EventReader:
    """An answer whose body is read as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.iter_bytes()

    def hear(self) -> bytes | ConnectionFailed:
        try:
            return next(self._chunks, b"")
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return ConnectionFailed(str(error) or type(error).__name__, refused=False)

    def close(self) -> None:
        self._response.close()


class Client(Transport):
    """Submits jobs, waits for them and reads their results. May be shared by threads."""

    @override
    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Jobs are not touched."""
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
    runs = _blocking(offline.runs)
    run_record = _blocking(offline.run_record)
    cancel_run = _blocking(offline.cancel_run)
    webhooks = _blocking(hooks.webhooks)
    redeliver_webhook = _blocking(hooks.redeliver_webhook)

    @overload
    def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """A job as it is now; of several, None stands for what is unknown.

        Raises:
            JobNotFound: there is none of that id. Not of several.
        """
        if isinstance(job, (str, Job)):
            return self.run(calls.status(self.session, job))
        return self.run(bulk.statuses(self.session, job))

    @overload
    def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several; what that did.

        Raises:
            JobNotFound: there is none of that id. Not of several.
        """
        if isinstance(job, (str, Job)):
            return self.run(calls.cancel(self.session, job))
        return self.run(bulk.cancel_many(self.session, job))

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        came: object = None
        while True:
            try:
                step = plan.send(came)
            except StopIteration as ended:
                value: T = ended.value
                return value
            came = self._perform(step)

    def iterate(self, stream: Stream[T]) -> Iterator[T]:
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
                    yield from step.items
                    came = None
                    continue
                came = self._perform(step)
                if isinstance(came, StreamOpened) and came.ear is not None:
                    opened = [came.ear]
        finally:
            # Also where the caller has had enough of it.
            for ear in opened:
                ear.close()

    def _perform(
        self, step: Step
    ) -> HttpResponse | ConnectionFailed | TakenInput | StreamOpened | bytes | None:
        if isinstance(step, HttpRequest):
            return self._send(step)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, OpenStream):
            return self._listen(step.request)
        if isinstance(step, ReadStream):
            heard: bytes | ConnectionFailed = step.ear.hear()
            return heard
        if isinstance(step, CloseStream):
            step.ear.close()
            return None
        return self._take(step)

    def _listen(self, request: HttpRequest) -> StreamOpened:
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
            return StreamOpened(broken_by(error))
        return StreamOpened(answer_of(response))

    def _take(self, step: NextInput) -> TakenInput:
        if not isinstance(step.source, Iterator):
            raise InvalidRequest(
                "inputs that are iterated over asynchronously cannot be read here",
                hint="Use AsyncClient, or give a list or a generator.",
            )
        return taken_from(step.source, step)

    def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        try:
            answer = self._http.request(**self._arguments(request))
        except httpx2.TransportError as error:
            return broken_by(error)
        return answer_of(answer)


def send_once(client: Client, request: HttpRequest) -> HttpResponse | ConnectionFailed:
    """Send one request as it is, for who runs a plan's steps by himself."""
    return client._send(request)
