"""The actions of a plan and their results.

Every call of the client is a plan: a generator that yields actions and is sent their results. It
does no I/O, so one plan serves both clients (sync_client.py, async_client.py).
Independent of httpx2.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Send this request and return `HttpResponse` or `ConnectionFailed`.

    Attributes:
        path: the path below the server's address, percent-encoded.
        headers: headers in addition to those of every request.
        wait_s: seconds that the server may wait on purpose (`?wait=`) before its timeout counts.
        within_s: maximum seconds for the answer; None for the client's timeout.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The server's answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """A connection was `refused`, so the request was not seen, or broke before the answer ended."""

    why: str
    refused: bool


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Send this request and return `StreamOpened`; `ReadStream` reads a streamed answer."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The result of `OpenStream`: an answer without a body, and the client's own reader or None."""

    outcome: HttpResponse | ConnectionFailed
    reader: Any = None


@dataclass(frozen=True, slots=True)
class ReadStream:
    """Return the next bytes of a stream: b"" at its end, `ConnectionFailed` if it broke."""

    reader: Any


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream."""

    reader: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep for `seconds`, for a `limit` (the code of a 429), or "" for an outage."""

    seconds: float
    limit: str = ""


@dataclass(frozen=True, slots=True)
class NextInput:
    """Take `count` inputs at most, those so far after `within_s` seconds; return `TakenInput`."""

    source: Iterator[Any] | AsyncIterator[Any]
    count: int
    within_s: float


@dataclass(frozen=True, slots=True)
class TakenInput:
    """The inputs that the iterator gave."""

    inputs: list[Any]
    ended: bool
    error: Exception | None = None


def take_inputs(source: Iterator[Any], action: NextInput) -> TakenInput:
    """Take inputs from a blocking iterator."""
    inputs: list[Any] = []
    deadline = time.monotonic() + action.within_s
    try:
        for value in islice(source, action.count):
            inputs.append(value)
            if time.monotonic() > deadline:
                return TakenInput(inputs, ended=False)
    except Exception as error:  # noqa: BLE001 - raised again after the results of earlier inputs
        return TakenInput(inputs, ended=True, error=error)
    return TakenInput(inputs, ended=len(inputs) < action.count)


def input_iterator(
    inputs: Iterable[T] | AsyncIterable[T],
) -> Iterator[T] | AsyncIterator[T]:
    """Return an iterator over the caller's inputs; raise InvalidRequest if they have none."""
    if isinstance(inputs, Iterable):
        return iter(inputs)
    if isinstance(inputs, AsyncIterable):
        return aiter(inputs)
    raise InvalidRequest(
        f"inputs must be an iterable, not {type(inputs).__name__}",
        hint="Give a list or a generator; for one input give [input].",
    )


@dataclass(frozen=True, slots=True)
class Yield(Generic[T]):
    """Give these items to the caller, one by one."""

    items: list[T]


Action: TypeAlias = HttpRequest | Pause | NextInput | OpenStream | ReadStream | CloseStream
Plan: TypeAlias = Generator[Action, Any, T]
Stream: TypeAlias = Generator[Action | Yield[T], Any, None]
