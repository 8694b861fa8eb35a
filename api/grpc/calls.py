"""One call: who makes it, its messages, and an error as the status of its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from api.auth.authenticator import Needs, Open
from api.grpc.room import OPEN_ROOM, ROOM, Room
from api.http.messages import Message, Request
from api.http.problems import error_headers, internal_error
from api.routes.admission import admit
from api.routes.event_stream import take_stream
from api.services import Services
from headrace.config.settings import Settings
from headrace.errors import (
    HeadraceError,
    InvalidRequest,
    JobCancelled,
    JobExpired,
    QueueFull,
    RequestTimeout,
    drop_tracebacks,
)

#: By the status that HTTP has for an error; others below 500 are INVALID_ARGUMENT.
_CODES: Final = {
    401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND, 408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED, 502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
#: The text of a status is in the trailers, which clients limit to 8 KiB; a letter may take 12.
TEXT_MAX: Final = 600
#: A stream is read no further while it has this many messages in progress.
IN_FLIGHT_MAX: Final = 256

#: Answers a call: its request, its message or the iterator of its messages, and grpcio's context.
Answer = Callable[[Services, Request, Any, Any], Awaitable[Any]]
#: Refuses a call by its metadata, before a message is read; takes what an answer does.
Check = Callable[[Services, Request, Any], Awaitable[None]]
Free = Callable[[], None]
T = TypeVar("T")


class Method(NamedTuple):
    """A method of a service, and what it requires of its caller.

    Attributes:
        check: what it requires besides an API key, such as another server's token.
        room: for its messages; None for that of its kind.
    """

    answer: Answer
    needs: Needs
    check: Check | None = None
    room: Room | None = None


def code_of(error: HeadraceError) -> Any:
    """Return the status code of an error."""
    if isinstance(error, (QueueFull, JobExpired)):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, JobCancelled):
        return grpc.StatusCode.CANCELLED
    other = grpc.StatusCode.INVALID_ARGUMENT if error.status < 500 else grpc.StatusCode.INTERNAL
    return _CODES.get(error.status, other)


def text_of(error: HeadraceError) -> str:
    """Return the text of an error for a client."""
    return error.message_with_hint[:TEXT_MAX]


def request_of(path: str, context: Any) -> Request:
    """Return a call as a request of HTTP: its metadata are the headers."""
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata() or ()
    ]
    scope = {"method": "POST", "path": path, "query_string": b"", "headers": headers}
    return Request(scope, _never)


async def _never() -> Message:
    """Receive nothing: grpcio cancels the task of a call whose client goes."""
    await asyncio.Event().wait()
    raise AssertionError


def handler(
    services: Services, path: str, method: Method, message: Any, *, stream: bool
) -> Callable[..., Any]:
    """Return how grpcio calls a method. It reads its messages itself, each once there is room."""
    is_open = method.needs is Open.ALWAYS and method.check is None
    room = method.room or (OPEN_ROOM if is_open else ROOM)

    async def answer(_messages: Any, context: Any) -> Any:
        request, failure, size = request_of(path, context), None, 0
        try:
            await admit(services, request, method.needs)
            if method.check is not None:
                await method.check(services, request, context)
            if stream:
                take_stream(services, request)
                try:
                    messages = _each(services, message, context, room, in_time=is_open)
                    reply = await method.answer(services, request, messages, context)
                finally:
                    services.stream_limit.leave(request.caller.key_id)
            else:
                host = context.peer().rpartition(":")[0]
                reading = room.read(partial(_read, context), host, services.settings)
                raw = await (_in_time(reading, services.settings) if is_open else reading)
                size = len(raw)
                given, raw = [decoded(message, raw)], b""
                # Only the method has the message, so that it can let go of it.
                reply = await method.answer(services, request, given.pop(), context)
        except grpc.aio.AbortError:
            raise  # it has its status
        except HeadraceError as error:
            drop_tracebacks(error)
            failure = error
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            failure, _ = internal_error(error, path)
        finally:
            room.free(size)
        if failure is None:
            services.counters.answered(path, "POST", 200)
            return reply
        services.counters.answered(path, "POST", failure.status)
        trailers = tuple((name.decode(), value.decode()) for name, value in error_headers(failure))
        return await context.abort(code_of(failure), text_of(failure), trailers)

    return answer


async def _in_time(reading: Awaitable[T], settings: Settings) -> T:
    """Read a message of a call that needs no API key, so that silent ones do not last."""
    try:
        async with asyncio.timeout(settings.request_timeout_s):
            return await reading
    except TimeoutError:
        raise RequestTimeout(
            f"no message has come within {settings.request_timeout_s:g} s, its wait for others "
            "included",
            hint="Send it sooner, or raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
        ) from None


async def _read(context: Any) -> bytes:
    raw = await context.read()
    if raw is grpc.aio.EOF:
        raise InvalidRequest("the call has ended without a message", hint="Send one message.")
    return cast("bytes", raw)


async def _each(
    services: Services, message: Any, context: Any, room: Room, *, in_time: bool
) -> AsyncGenerator[tuple[Any, Free]]:
    """Yield the messages of a stream, each once there is room for it, and how to free that.

    With `in_time`, each must come within `request_timeout_s`.
    """

    async def next_message() -> Any:
        reading = context.read()
        return await (_in_time(reading, services.settings) if in_time else reading)

    while (raw := await next_message()) is not grpc.aio.EOF:
        size, given = len(raw), [decoded(message, raw)]
        del raw
        await room.wait(size, services.settings)
        yield given.pop(), partial(room.free, size)


async def answer_each(
    messages: AsyncIterator[tuple[Any, Free]],
    answer: Callable[[Any], Coroutine[Any, Any, None]],
    at_once: int = IN_FLIGHT_MAX,
) -> None:
    """Answer the messages of a stream, each in a task, until all are answered.

    Their tasks begin in the order of the messages, and `at_once` run at a time. The first error of
    a task ends all, and is raised.
    """
    places = asyncio.Semaphore(at_once)

    def over(free: Free) -> Callable[[Any], None]:
        def end(_: Any) -> None:
            free()
            places.release()

        return end

    try:
        async with asyncio.TaskGroup() as group:
            await places.acquire()
            async for message, free in messages:
                # A task that is cancelled before it begins ends as well.
                group.create_task(answer(message)).add_done_callback(over(free))
                await places.acquire()
    except ExceptionGroup as errors:
        error: Exception = errors
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def decoded(message: Any, raw: bytes) -> Any:
    """Return a message; raise InvalidRequest if the bytes are none."""
    try:
        return message.FromString(raw)
    except DecodeError as error:
        name = message.DESCRIPTOR.name
        raise InvalidRequest(
            f"the message is no {name}: {error}",
            hint="Encode it by the .proto file of the service.",
        ) from None
