"""Submits, looks up and cancels many jobs in one request, as plans (sansio.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from typing_extensions import Unpack

from headrace.client.http.retries import (
    TRANSIENT,
    Problem,
    RetryDeadline,
    Session,
    decoded,
    exchange,
    fetch,
    known_wait_s,
    limit_of,
    problem_error,
)
from headrace.client.inputs import (
    JOBS,
    NDJSON_HEADERS,
    Options,
    job_line,
    json_request,
    plain_parameters,
    trace_headers,
)
from headrace.client.models import Cancelled, Job
from headrace.client.sansio import (
    HttpRequest,
    HttpResponse,
    NextInput,
    Plan,
    Stream,
    TakenInput,
    Yield,
    input_iterator,
)
from headrace.errors import HeadraceError, InvalidRequest, RequestError, UnexpectedAnswer
from headrace.jobs.ids import new_id

#: Maximum number of jobs and bytes in one request; a larger single job is sent alone.
CHUNK_JOBS: Final = 250
CHUNK_BYTES: Final = 4 * 1024 * 1024
#: Seconds to wait for a slow source before a partly filled request is sent.
GATHER_S: Final = 0.05
#: Seconds that the server may hold lines while a queue is full: its bulk_hold_s and a margin.
HOLD_S: Final = 60.0
#: Number of ids in one lookup or cancellation.
LOOKUP_JOBS: Final = 1000

In = TypeVar("In")
Outcome: TypeAlias = Job | HeadraceError
Ids: TypeAlias = Iterable[str] | Callable[[In], str] | None


class _Jobs(msgspec.Struct):
    jobs: list[Job | None]


class _Cancellations(msgspec.Struct):
    jobs: list[Cancelled | None]


Shape = TypeVar("Shape", _Jobs, _Cancellations)


class _Refused(msgspec.Struct):
    error: Problem


@dataclass(slots=True)
class BulkEntry:
    """One input of a bulk submit.

    Attributes:
        job_id: the id of its job, the same for every attempt.
        line: its request line, until the server has accepted it.
        lost: how often the server did not know the job after accepting it.
    """

    index: int
    input: Any
    job_id: str
    line: bytes = b""
    error: HeadraceError | None = None
    lost: int = 0


def submit_many(
    session: Session,
    model: str,
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    ids: Ids[Any] = None,
    content_type: str | None = None,
    version: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Stream[Outcome]:
    """Submit a job for each input, in order, many per request.

    An input that a limit refuses waits as the server asks. If the server does not know for how
    long, as with a full queue, the input is refused after `retry_s` without progress. With a
    `retry_s` of 0 nothing waits: such an input is refused at once.

    Args:
        inputs: any number of inputs; they are taken as they are sent.
        ids: the id of each job, in the order of the inputs, or a function that makes it from an
            input. The caller then knows the ids before they are sent. By default the ids are new.
        content_type: media type of every input, if its Python type does not imply it.
        version: required version of the model.
        parameters: the parameters of every job, as for `submit`.
        options: options of every job, as for `submit`.

    Yields:
        For each input its job, or the error if it was refused.

    Raises:
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    sent = plain_parameters(parameters)

    def line(entry: BulkEntry) -> bytes:
        return job_line(model, entry.input, content_type, version, options, entry.job_id, sent)

    source, next_id = input_iterator(inputs), id_source(ids)
    while True:
        taken: TakenInput = yield NextInput(source, CHUNK_JOBS, GATHER_S)
        waiting = deque(BulkEntry(0, value, next_id(value)) for value in taken.inputs)
        while waiting:
            yield Yield((yield from send(session, next_chunk(waiting, line))))
        if taken.error is not None:
            raise taken.error
        if taken.ended:
            return


def id_source(ids: Ids[In]) -> Callable[[In], str]:
    """Return a function that returns the job id for each input."""
    if ids is None:
        return lambda _: new_id()
    if callable(ids):
        return ids
    iterator = iter(ids)

    def next_id(_: In) -> str:
        try:
            return next(iterator)
        except StopIteration:
            raise InvalidRequest(
                "there are more inputs than ids", hint="Give an id for every input, or no ids."
            ) from None

    return next_id


def next_chunk(
    waiting: deque[BulkEntry], line: Callable[[BulkEntry], bytes], most: int = CHUNK_JOBS
) -> list[BulkEntry]:
    """Take as many entries from the left as fit in one request, with their lines."""
    chunk: list[BulkEntry] = []
    size = 0
    while waiting and len(chunk) < most:
        entry = waiting[0]
        if not entry.line:
            try:
                entry.line = line(entry)
            except RequestError as error:
                entry.error = error
        size += len(entry.line)
        if chunk and size > CHUNK_BYTES:
            break
        chunk.append(waiting.popleft())
    return chunk


def send(
    session: Session,
    chunk: list[BulkEntry],
    *,
    hold_s: float | None = None,
    transient: tuple[type[HeadraceError], ...] = TRANSIENT,
) -> Plan[list[Outcome]]:
    """Submit a chunk; entries that fail with a transient error are sent again with the same ids.

    Args:
        hold_s: how long the server may hold the chunk while the queue is full; None for its limit.
        transient: errors that are retried until there is no progress for `retry_s`; every other
            error is an outcome. The wait that a limit asks for does not count, unless `retry_s` is
            0, which forbids any wait.

    Raises:
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    outcomes: list[Outcome | None] = [entry.error for entry in chunk]
    pending = [at for at, outcome in enumerate(outcomes) if outcome is None]
    deadline = RetryDeadline(session)
    while pending:
        answer = yield from exchange(session, _bulk([chunk[at].line for at in pending], hold_s))
        for at, outcome in zip(pending, _outcomes(answer), strict=False):
            outcomes[at] = outcome
        left = [at for at in pending if outcomes[at] is None or isinstance(outcomes[at], transient)]
        if len(left) < len(pending):
            deadline = RetryDeadline(session)
        pending = left
        limit = limit_of([outcomes[at] for at in pending])
        wait_s = known_wait_s(limit) if limit is not None and session.retry_s else 0
        if limit is not None and wait_s:
            yield deadline.limit_pause(wait_s, limit.code)
            continue
        pause = deadline.pause() if pending else None
        if pause is None:
            break
        yield pause
    return [outcome or _unexpected_count() for outcome in outcomes]


def _bulk(lines: list[bytes], hold_s: float | None) -> HttpRequest:
    return HttpRequest(
        "POST",
        f"{JOBS}/bulk",
        {} if hold_s is None else {"hold": f"{hold_s:g}"},
        b"\n".join([*lines, b""]),
        {**NDJSON_HEADERS, **trace_headers()},
        wait_s=HOLD_S if hold_s is None else hold_s,
    )


def _outcomes(answer: HttpResponse) -> Iterator[Outcome]:
    for line in filter(None, answer.body.split(b"\n")):
        try:
            yield msgspec.json.decode(line, type=Job)
        except msgspec.DecodeError:
            refused = decoded(HttpResponse(answer.status, answer.headers, line), _Refused)
            yield problem_error(refused.error)


def _unexpected_count() -> UnexpectedAnswer:
    return UnexpectedAnswer(
        "the server answered for a different number of jobs than were sent",
        hint="Check that the address is Headrace's API, and check any proxy in front of it.",
    )


def statuses(session: Session, jobs: Iterable[str | Job]) -> Plan[list[Job | None]]:
    """Return the present status of many jobs, in order; None for an unknown id."""
    found: list[Job | None] = []
    for ids in _id_chunks(jobs):
        found += (yield from _post_ids(session, "status", ids, _Jobs)).jobs
    return found


def cancel_many(session: Session, jobs: Iterable[str | Job]) -> Plan[list[Cancelled]]:
    """Cancel many jobs, in order; the outcome for an unknown id is `unknown`."""
    outcomes: list[Cancelled] = []
    for ids in _id_chunks(jobs):
        results = (yield from _post_ids(session, "cancel", ids, _Cancellations)).jobs
        outcomes += [
            one or Cancelled(id=job_id, outcome="unknown")
            for job_id, one in zip(ids, results, strict=True)
        ]
    return outcomes


def _id_chunks(jobs: Iterable[str | Job]) -> Iterator[list[str]]:
    ids = [job if isinstance(job, str) else job.id for job in jobs]
    for at in range(0, len(ids), LOOKUP_JOBS):
        yield ids[at : at + LOOKUP_JOBS]


def _post_ids(session: Session, verb: str, ids: Sequence[str], shape: type[Shape]) -> Plan[Shape]:
    request = json_request("POST", f"{JOBS}/{verb}", {"ids": ids})
    found = yield from fetch(session, request, shape)
    if len(found.jobs) != len(ids):
        raise _unexpected_count()
    return found
