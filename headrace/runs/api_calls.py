"""The requests of a run to the API: submit lines, read outcomes, delete jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from headrace.client.http.retries import (
    TRANSIENT,
    Problem,
    RetryDeadline,
    Session,
    exchange,
    fetch,
    known_wait_s,
    limit_of,
    problem_error,
)
from headrace.client.inputs import JOBS, NDJSON_HEADERS, job_request, json_request
from headrace.client.offline import RowError
from headrace.client.sansio import HttpRequest, HttpResponse, Plan
from headrace.errors import HeadraceError, UnexpectedAnswer
from headrace.jobs.tokens import DEADLINE_HEADER
from headrace.jobs.values.encoding import binary_input, strict_json
from headrace.jobs.values.media_types import is_json

#: How long the server may hold a request while a queue is full. A stop waits at most this long.
HOLD_S: Final = 2.0
NO_JSON: Final = msgspec.Raw(b"")


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Outcome(msgspec.Struct, gc=False):
    """How a job has ended, `timings` as unparsed JSON, or only its status if it has not."""

    status: str
    attempts: int = 0
    timings: msgspec.Raw = NO_JSON
    result: msgspec.Raw = NO_JSON
    result_size: int | None = None
    error: RowError | None = None


class _Outcomes(msgspec.Struct):
    outcomes: list[Outcome | None]


class _Line(msgspec.Struct):
    accepted: int = 0
    error: Problem | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


class AcceptCount:
    """How often the server has accepted jobs of a run, in any of its requests.

    Requests that wait for the same full store get free places by chance. As long as one of them
    makes progress, the others must not give up.
    """

    def __init__(self) -> None:
        self.count = 0


def submit(
    session: Session,
    lines: Sequence[bytes],
    quiet: bool = False,
    accepts: AcceptCount | None = None,
    deadline_s: int | None = None,
    accepted: Callable[[list[int]], None] = lambda _: None,
) -> Plan[list[HeadraceError | None]]:
    """Submit lines; lines that fail for a transient reason are sent again with the same ids.

    Lines that a limit refuses (429) wait for it without end. Then no more are sent than may fit.

    Args:
        quiet: publish no events of their ends, which saves the server work.
        accepts: what the run's other requests share.
        deadline_s: by when the results are wanted, in seconds since 1970.
        accepted: receives the places of lines whose jobs now exist, as soon as that is known.

    Returns:
        For each line None if its job exists, else why it does not.

    Raises:
        HeadraceError: for longer than `retry_s` the server was away, or its stores had no room.
    """
    accepts = accepts or AcceptCount()
    found: list[HeadraceError | None] = [None] * len(lines)
    unsent, most = list(range(len(lines))), len(lines)
    deadline, seen = RetryDeadline(session), accepts.count
    while True:
        page = unsent[:most]
        sent = [lines[at] for at in page]
        response = yield from exchange(session, _bulk(sent, quiet, deadline_s))
        results = list(_line_results(response))
        for at, error in zip(page, results, strict=False):
            found[at] = error
        accepted([at for at, error in zip(page, results, strict=False) if error is None])
        # An API process that is stopped answers only the lines that it has read.
        left = [at for at in page[: len(results)] if isinstance(found[at], TRANSIENT)]
        left += page[len(results) :]
        unsent = left + unsent[most:]
        if not unsent:
            return found
        if len(left) < len(page):
            deadline = RetryDeadline(session)
            accepts.count += 1
        elif accepts.count != seen:
            deadline.renew()
        seen = accepts.count
        if not left:
            most *= 2
            continue
        limit = limit_of([found[at] for at in left])
        if limit is not None:
            most = max(1, 2 * (len(page) - len(left)))
            yield deadline.limit_pause(known_wait_s(limit), limit.code)
            continue
        pause = deadline.pause()
        if pause is None:
            raise found[left[0]] or _unexpected()
        yield pause


def outcomes(session: Session, ids: Sequence[str]) -> Plan[list[Outcome | None]]:
    """Return how jobs have ended, in order; None for a job that does not exist."""
    request = json_request("POST", f"{JOBS}/outcomes", {"ids": ids})
    found = (yield from fetch(session, request, _Outcomes)).outcomes
    if len(found) != len(ids):
        raise _unexpected()
    return found


def forget(session: Session, ids: Sequence[str]) -> Plan[None]:
    """Delete those of these jobs that have ended."""
    yield from exchange(session, json_request("POST", f"{JOBS}/forget", {"ids": ids}))


def long_result(session: Session, job_id: str) -> Plan[msgspec.Raw]:
    """Return a result too long for an outcome, in that form; raise HeadraceError if it is gone."""
    response = yield from exchange(session, job_request("GET", job_id, below="/result"))
    content_type = response.headers.get("content-type", "")
    if not is_json(content_type.partition(";")[0].strip().lower()):
        return msgspec.Raw(binary_input(response.body, content_type))
    try:
        text = strict_json(response.body)
    except ValueError:
        # A handler's Response may contain anything; a row must be JSON.
        return msgspec.Raw(binary_input(response.body, content_type))
    has_lines = b"\n" in text or b"\r" in text
    return msgspec.Raw(msgspec.json.format(text, indent=-1) if has_lines else text)


def _bulk(lines: list[bytes], quiet: bool, deadline_s: int | None) -> HttpRequest:
    query = {"brief": "1", "quiet": str(int(quiet)), "hold": f"{HOLD_S:g}"}
    headers = dict(NDJSON_HEADERS)
    if deadline_s is not None:
        headers[DEADLINE_HEADER] = str(deadline_s)
    body = b"\n".join([*lines, b""])
    return HttpRequest("POST", f"{JOBS}/bulk", query, body, headers, wait_s=HOLD_S)


def _line_results(response: HttpResponse) -> Iterator[HeadraceError | None]:
    for text in filter(None, response.body.split(b"\n")):
        try:
            line = _LINE.decode(text)
        except msgspec.DecodeError:
            raise _unexpected() from None
        if line.error is not None:
            yield problem_error(line.error)
        else:
            yield from (None for _ in range(line.accepted))


def _unexpected() -> UnexpectedAnswer:
    return UnexpectedAnswer(
        "the server's response is about another number of jobs than the request",
        hint="Check that the address is that of Headrace's API, and that the client is not newer.",
    )
