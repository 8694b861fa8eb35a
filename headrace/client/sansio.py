"""What a plan asks of its shell, and what it is told.

Every call of the client is a plan: a generator that yields steps and is sent what came of them. It
does no I/O, so that one plan serves both shells (sync.py, aio.py). Knows no httpx2.
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
    """Send this, and give the `HttpResponse`, or `ConnectionFailed`.

    Attributes:
        method: in capitals.
        path: below the server's address, percent-encoded.
        query: the query's parameters.
        body: the body; None for none.
        headers: beside those that every request has.
        wait_s: seconds that the server may take on purpose (`?wait=`), before its timeout counts.
        within_s: seconds that the answer may take, in place of the client's timeout; None for that.
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
    """What the server answered; header names are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The connection was refused, or broke before the answer was complete.

    Attributes:
        why: for the error message.
        refused: no connection came about, so that the server has seen nothing of the request.
    """

    why: str
    refused: bool


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Send this and return `StreamOpened`; `ReadStream` reads an answer that is a stream."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """What came of a `OpenStream`.

    Attributes:
        outcome: the answer, without its body where that is a stream.
        ear: the shell's own, for `ReadStream` and `CloseStream`; None where it is no stream.
    """

    outcome: HttpResponse | ConnectionFailed
    ear: Any = None


@dataclass(frozen=True, slots=True)
class ReadStream:
    """Return the next bytes of a stream: none at its end, `ConnectionFailed` where it broke."""

    ear: Any


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream."""

    ear: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Let so many seconds pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NextInput:
    """Take inputs from the caller's source, and give them as `TakenInput`.

    Attributes:
        source: the caller's iterator.
        count: at the most.
        within_s: once this has passed, give those that there are, and at least one.
    """

    source: Iterator[Any] | AsyncIterator[Any]
    count: int
    within_s: float


@dataclass(frozen=True, slots=True)
class TakenInput:
    """What the source gave.

    Attributes:
        inputs: in order.
        ended: there are no more.
        error: what the source raised, in place of more.
    """

    inputs: list[Any]
    ended: bool
    error: Exception | None = None


def taken_from(source: Iterator[Any], step: NextInput) -> TakenInput:
    """Take from a source that blocks."""
    inputs: list[Any] = []
    late = time.monotonic() + step.within_s
    try:
        for value in islice(source, step.count):
            inputs.append(value)
            if time.monotonic() > late:
                return TakenInput(inputs, ended=False)
    except Exception as error:  # noqa: BLE001 - raised again once its elders' results are out
        return TakenInput(inputs, ended=True, error=error)
    return TakenInput(inputs, ended=len(inputs) < step.count)


def source_of(
    inputs: Iterable[T] | AsyncIterable[T],
) -> Iterator[T] | AsyncIterator[T]:
    """The iterator over the caller's inputs.

    Raises:
        InvalidRequest: they cannot be iterated over.
    """
    if isinstance(inputs, Iterable):
        return iter(inputs)
    if isinstance(inputs, AsyncIterable):
        return aiter(inputs)
    raise InvalidRequest(
        f"inputs are to be an iterable, not a {type(inputs).__name__}",
        hint="Give a list, a generator, or the like; of one input, give [input].",
    )


@dataclass(frozen=True, slots=True)
class Yield(Generic[T]):
    """Hand these to the caller, one after the other."""

    items: list[T]


Step: TypeAlias = HttpRequest | Pause | NextInput | OpenStream | ReadStream | CloseStream
Plan: TypeAlias = Generator[Step, Any, T]
Stream: TypeAlias = Generator[Step | Yield[T], Any, None]
