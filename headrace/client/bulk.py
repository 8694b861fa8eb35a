"""Many jobs in one request: submitted, looked up and cancelled by the hundred."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from typing_extensions import Unpack

from headrace.client.errors import Problem, decoded, problem_error
from headrace.client.models import Cancelled, Job
from headrace.client.requests import (
    JOBS,
    JSON_HEADERS,
    NDJSON_HEADERS,
    Options,
    job_line,
    trace_headers,
)
from headrace.client.retries import PASSING, RetryDeadline, Session, exchange
from headrace.client.sansio import (
    HttpRequest,
    HttpResponse,
    NextInput,
    Plan,
    Stream,
    TakenInput,
    Yield,
    source_of,
)
from headrace.errors import HeadraceError, InvalidRequest, RequestError, UnexpectedAnswer
from headrace.jobs.job import new_id

#: So many jobs go in one request at the most, and so many bytes, unless one is larger by itself.
CHUNK_JOBS: Final = 250
CHUNK_BYTES: Final = 4 * 1024 * 1024
#: A source that is slower than this is not waited for to fill a request.
GATHER_S: Final = 0.05
#: The server holds lines back for so long while a queue is full (its bulk_hold_s), and some more.
HOLD_S: Final = 60.0
#: Ids in one lookup, or in one cancellation.
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
    """One input on its way.

    Attributes:
        index: its place among the inputs.
        input: as the caller gave it.
        job_id: the id that its job has, however often it is said.
        line: its line, until the server has it.
        error: why it cannot be sent.
        lost: how often the server did not know the job that it had accepted.
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
    **options: Unpack[Options],
) -> Stream[Outcome]:
    """Submit a job for each input, in order, by the hundred.

    Args:
        session: the server.
        model: the model's name.
        inputs: any number of them; they are taken as they are sent.
        ids: the id of each job, in step with the inputs, or what makes it from an input, so that
            the caller knows it before it is sent; by default new ones.
        content_type: what every input is, where its kind does not say so.
        version: only for this version of the model.
        options: as for `submit`, for every job.

    Yields:
        For each input its job, or the error why it was refused.

    Raises:
        ServerUnreachable: the server was away for longer than `retry_s`.
    """

    def line(entry: BulkEntry) -> bytes:
        return job_line(model, entry.input, content_type, version, options, entry.job_id)

    source, name = source_of(inputs), namer(ids)
    while True:
        taken: TakenInput = yield NextInput(source, CHUNK_JOBS, GATHER_S)
        waiting = deque(BulkEntry(0, value, name(value)) for value in taken.inputs)
        while waiting:
            yield Yield((yield from send(session, next_pack(waiting, line))))
        if taken.error is not None:
            raise taken.error
        if taken.ended:
            return


def namer(ids: Ids[In]) -> Callable[[In], str]:
    """What gives each input the id of its job."""
    if ids is None:
        return lambda _: new_id()
    if callable(ids):
        return ids
    given = iter(ids)

    def following(_: In) -> str:
        try:
            return next(given)
        except StopIteration:
            raise InvalidRequest(
                "there are more inputs than ids", hint="Give an id for every input, or none."
            ) from None

    return following


def next_pack(
    waiting: deque[BulkEntry], line: Callable[[BulkEntry], bytes], most: int = CHUNK_JOBS
) -> list[BulkEntry]:
    """Take as many from the left as go in one request, with their lines."""
    pack: list[BulkEntry] = []
    size = 0
    while waiting and len(pack) < most:
        entry = waiting[0]
        if not entry.line:
            try:
                entry.line = line(entry)
            except RequestError as error:
                entry.error = error
        size += len(entry.line)
        if pack and size > CHUNK_BYTES:
            break
        pack.append(waiting.popleft())
    return pack


def send(
    session: Session,
    pack: list[BulkEntry],
    *,
    hold_s: float | None = None,
    passing: tuple[type[HeadraceError], ...] = PASSING,
) -> Plan[list[Outcome]]:
    """Submit a pack; what fails for a reason that passes is said again, under the same ids.

    Args:
        session: the server.
        pack: entries with their lines.
        hold_s: how long a full queue may hold the pack back; None for as long as the server likes.
        passing: what is said again, until nothing has moved for `retry_s`; every other problem is
            an outcome.

    Raises:
        ServerUnreachable: the server was away for longer than `retry_s`.
    """
    outcomes: list[Outcome | None] = [entry.error for entry in pack]
    open_ = [at for at, outcome in enumerate(outcomes) if outcome is None]
    patience = RetryDeadline(session)
    while open_:
        answer = yield from exchange(session, _bulk([pack[at].line for at in open_], hold_s))
        for at, outcome in zip(open_, _outcomes(answer), strict=False):
            outcomes[at] = outcome
        left = [at for at in open_ if outcomes[at] is None or isinstance(outcomes[at], passing)]
        if len(left) < len(open_):
            patience = RetryDeadline(session)
        open_ = left
        pause = patience.pause() if open_ else None
        if pause is None:
            break
        yield pause
    return [outcome or _unanswered() for outcome in outcomes]


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


def _unanswered() -> UnexpectedAnswer:
    return UnexpectedAnswer(
        "the server has answered for another number of jobs than it was asked",
        hint="Is the address that of Headrace's API, and does a proxy stand before it?",
    )


def statuses(session: Session, jobs: Iterable[str | Job]) -> Plan[list[Job | None]]:
    """Many jobs as they are now, in order; None where there is none."""
    found: list[Job | None] = []
    for ids in _lookups(jobs):
        found += (yield from _ask(session, "status", ids, _Jobs)).jobs
    return found


def cancel_many(session: Session, jobs: Iterable[str | Job]) -> Plan[list[Cancelled]]:
    """Cancel many jobs, in order; the outcome is `unknown` where there is none."""
    outcomes: list[Cancelled] = []
    for ids in _lookups(jobs):
        answered = (yield from _ask(session, "cancel", ids, _Cancellations)).jobs
        outcomes += [
            one or Cancelled(id=job_id, outcome="unknown")
            for job_id, one in zip(ids, answered, strict=True)
        ]
    return outcomes


def _lookups(jobs: Iterable[str | Job]) -> Iterator[list[str]]:
    ids = [job if isinstance(job, str) else job.id for job in jobs]
    for at in range(0, len(ids), LOOKUP_JOBS):
        yield ids[at : at + LOOKUP_JOBS]


def _ask(session: Session, verb: str, ids: Sequence[str], shape: type[Shape]) -> Plan[Shape]:
    body = msgspec.json.encode({"ids": ids})
    request = HttpRequest("POST", f"{JOBS}/{verb}", body=body, headers=JSON_HEADERS)
    found = decoded((yield from exchange(session, request)), shape)
    if len(found.jobs) != len(ids):
        raise _unanswered()
    return found
