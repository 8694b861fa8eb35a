"""What a run asks of the API: packs of lines, how their jobs have ended, and to forget them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headrace.client.errors import Problem, decoded, problem_error
from headrace.client.models import Failure
from headrace.client.requests import JOBS, JSON_HEADERS, NDJSON_HEADERS, job_request
from headrace.client.retries import PASSING, RetryDeadline, Session, exchange
from headrace.client.sansio import HttpRequest, HttpResponse, Plan
from headrace.errors import HeadraceError, UnexpectedAnswer
from headrace.jobs.encoding import binary_input, strict_json
from headrace.jobs.media_types import is_json

#: The server may hold a pack back for so long while a queue is full; a stop waits for no longer.
HOLD_S: Final = 2.0
NO_JSON: Final = msgspec.Raw(b"")


class Outcome(msgspec.Struct, gc=False):
    """How a job has ended, or its status alone where it has not.

    Attributes:
        timings: JSON as it came, as `result`; empty where there is none.
    """

    status: str
    attempts: int = 0
    timings: msgspec.Raw = NO_JSON
    result: msgspec.Raw = NO_JSON
    result_size: int | None = None
    error: Failure | None = None


class _Outcomes(msgspec.Struct):
    outcomes: list[Outcome | None]


class _Line(msgspec.Struct):
    accepted: int = 0
    error: Problem | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


class ServerLimits:
    """How often the server has had room for some of a run, whichever of its packs that was.

    Packs that wait for the same full queue get what comes free by chance: one that got nothing of
    it has no cause to give up.
    """

    def __init__(self) -> None:
        self.found = 0


def submit(
    session: Session, lines: Sequence[bytes], quiet: bool = False, room: ServerLimits | None = None
) -> Plan[list[HeadraceError | None]]:
    """Submit lines; what fails for a reason that passes is said again, under the same ids.

    Args:
        session: the server.
        lines: a job each.
        quiet: nobody else is to hear of their ends, which spares the server some work.
        room: what the run's other packs have found.

    Returns:
        For each line None where its job is there, else why it is not.

    Raises:
        HeadraceError: the server was away, or had no room for any pack, for longer than `retry_s`.
    """
    room = room or ServerLimits()
    found: list[HeadraceError | None] = [None] * len(lines)
    open_ = list(range(len(lines)))
    patience, seen = RetryDeadline(session), room.found
    while True:
        answer = yield from exchange(session, _bulk([lines[at] for at in open_], quiet))
        answers = list(_answers(answer))
        # An API process that is stopped answers what it has read, and no more.
        left = open_[len(answers) :]
        for at, error in zip(open_, answers, strict=False):
            found[at] = error
            if isinstance(error, PASSING):
                left.append(at)
        if not left:
            return found
        if len(left) < len(open_):
            patience = RetryDeadline(session)
            room.found += 1
        elif room.found != seen:
            patience.renew()
        seen = room.found
        open_ = sorted(left)
        pause = patience.pause()
        if pause is None:
            raise found[open_[0]] or _unanswered()
        yield pause


def outcomes(session: Session, ids: Sequence[str]) -> Plan[list[Outcome | None]]:
    """How jobs have ended, in order; None where there is no such job."""
    found = decoded((yield from exchange(session, _named("outcomes", ids))), _Outcomes).outcomes
    if len(found) != len(ids):
        raise _unanswered()
    return found


def forget(session: Session, ids: Sequence[str]) -> Plan[None]:
    """Forget those of these jobs that have ended."""
    yield from exchange(session, _named("forget", ids))


def long_result(session: Session, job_id: str) -> Plan[msgspec.Raw]:
    """A result that is too long for an outcome, in the form that it would have there.

    Raises:
        HeadraceError: it cannot be had any more.
    """
    answer = yield from exchange(session, job_request("GET", job_id, below="/result"))
    kind = answer.headers.get("content-type", "")
    if not is_json(kind.partition(";")[0].strip().lower()):
        return msgspec.Raw(binary_input(answer.body, kind))
    try:
        text = strict_json(answer.body)
    except ValueError:
        # A handler's Response says what it likes; a row is JSON all the same.
        return msgspec.Raw(binary_input(answer.body, kind))
    has_lines = b"\n" in text or b"\r" in text
    return msgspec.Raw(msgspec.json.format(text, indent=-1) if has_lines else text)


def _named(verb: str, ids: Sequence[str]) -> HttpRequest:
    body = msgspec.json.encode({"ids": ids})
    return HttpRequest("POST", f"{JOBS}/{verb}", body=body, headers=JSON_HEADERS)


def _bulk(lines: list[bytes], quiet: bool) -> HttpRequest:
    query = {"brief": "1", "quiet": str(int(quiet)), "hold": f"{HOLD_S:g}"}
    body = b"\n".join([*lines, b""])
    return HttpRequest("POST", f"{JOBS}/bulk", query, body, NDJSON_HEADERS, wait_s=HOLD_S)


def _answers(answer: HttpResponse) -> Iterator[HeadraceError | None]:
    for line in filter(None, answer.body.split(b"\n")):
        try:
            said = _LINE.decode(line)
        except msgspec.DecodeError:
            raise _unanswered() from None
        if said.error is not None:
            yield problem_error(said.error)
        else:
            yield from (None for _ in range(said.accepted))


def _unanswered() -> UnexpectedAnswer:
    return UnexpectedAnswer(
        "the server has answered for another number of jobs than it was asked",
        hint="Is the address that of Headrace's API, and is the client not newer than it?",
    )
