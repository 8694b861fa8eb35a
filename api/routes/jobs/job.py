"""One job: `GET` and `DELETE /api/v1/jobs/{id}`, `GET /api/v1/jobs/{id}/result`."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta

from api.http.messages import (
    NO_CONTENT,
    NO_STORE,
    ByteRange,
    Header,
    Reply,
    Request,
    StreamingReply,
    UnsatisfiableRange,
    json_reply,
    requested_range,
    write_nothing,
)
from api.http.problems import job_problem, problem
from api.routes.jobs.submission import wait_for_end
from api.services import Services
from api.submission.decoding import read_query
from api.submission.waiting import WaitQuery, preferred_wait_s
from headrace.access.api_key import Caller
from headrace.errors import JobNotFound, RangeNotSatisfiable, ResultFreed
from headrace.jobs.ids import is_id
from headrace.jobs.job import Job, State, Status, StoredResult, error_of
from headrace.response import split_details
from headrace.schema.serialization import job_object, raw_result


class JobQuery(WaitQuery):
    """The query of a job, and of its result."""

    traceback: Annotated[
        Literal["0", "1"], Meta(description="0 leaves out the traceback of a failed job.")
    ] = "1"


#: The header of requests from the console.
_CLIENT: Final = b"headrace-client"
_CONSOLE: Final = b"console"
#: The detail of a cancel in the audit log.
_NOTED: Final = {"removed": "it will not run", "asked": "it ran; its result is discarded"}
RETRY_AFTER: Final[Header] = (b"retry-after", b"1")


class Cancellation(msgspec.Struct):
    """The effect of a cancel on one job."""

    id: str
    outcome: Annotated[
        str,
        Meta(
            description="`removed`: it will not run. `asked`: it runs; its result will be "
            "discarded. `ended`: it had ended before.",
            extra_json_schema={"enum": ["removed", "asked", "ended"]},
        ),
    ]
    status: Status


async def get_job(services: Services, request: Request, job_id: str) -> Reply:
    """Return a job; with a wait, once the job has ended or the wait is over."""
    query = read_query(request, JobQuery)
    job, applied = await _read(services, request, job_id, query)
    if job.state.final:
        body = job_object(job, with_traceback=query.traceback == "1")
        return Reply(200, body, headers=(NO_STORE, *applied))
    return await _not_yet(services, job, applied)


async def get_result(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Return the output of the handler; for a failed job, its problem."""
    query = read_query(request, JobQuery)
    job, applied = await _read(services, request, job_id, query)
    if not job.state.final:
        return await _not_yet(services, job, applied)
    if (failure := error_of(job)) is not None:
        wanted = query.traceback == "1"
        return job_problem(job, failure, request.path, with_traceback=wanted)
    return await _result_reply(services, request, job, applied)


async def cancel_job(services: Services, request: Request, job_id: str) -> Reply:
    """Cancel a job."""
    request.query()
    caller = request.caller
    request.noted = None
    known = is_id(job_id)
    outcome = await services.queue.cancel_one(job_id, caller.only) if known else "unknown"
    if outcome == "unknown":
        raise _unknown(job_id)
    # Without keys everybody may manage: then only the console is an operator for sure.
    if outcome != "ended" and (caller.key_id or request.header(_CLIENT) == _CONSOLE):
        request.noted = _NOTED[outcome]
    status = State.CANCELLED.status
    if outcome != "removed":
        status = (await visible_job(services, caller, job_id)).state.status
    return json_reply(Cancellation(job_id, outcome, status), 202 if outcome == "asked" else 200)


async def _read(
    services: Services, request: Request, job_id: str, query: JobQuery
) -> tuple[Job, tuple[Header, ...]]:
    """Read the job, and wait for its end if the request wants that."""
    max_wait_s = services.settings.max_wait_s
    if query.wait is UNSET:
        wait_s = preferred_wait_s(request.header(b"prefer"), max_wait_s)
    else:
        wait_s = min(query.wait, max_wait_s)
    applied = () if wait_s is None else ((b"preference-applied", b"wait=%g" % wait_s),)
    job = await visible_job(services, request.caller, job_id)
    if wait_s and not job.state.final:
        job = await wait_for_end(services, job, request.receive, wait_s)
    return job, applied


async def _not_yet(services: Services, job: Job, applied: tuple[Header, ...]) -> Reply:
    waiting_for = await services.model_statuses.waiting_for(job.model, job.asked_version)
    body = job_object(job, waiting_for=waiting_for)
    return Reply(202, body, headers=(NO_STORE, RETRY_AFTER, *applied))


async def visible_job(services: Services, caller: Caller, job_id: str) -> Job:
    """Return the job of an id; raise JobNotFound if the caller sees no such job."""
    job = await services.queue.read(job_id) if is_id(job_id) else None
    if job is None or not caller.may_see(job.key):
        raise _unknown(job_id)
    return job


def _unknown(job_id: str) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job_id[:128]!r}",
        hint="It never existed, or its result_ttl has passed since it ended.",
    )


#: A handler's output has the API's own origin. A browser must not guess that it is HTML; if it is
#: HTML, the browser must run no script and load nothing.
HARMLESS: Final[tuple[Header, ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
)
_RANGES: Final[Header] = (b"accept-ranges", b"bytes")
_UNSAFE = re.compile(r"[^\x20-\x7e]")


def as_header(content_type: str) -> bytes:
    """Return a content type that a client or a handler wrote, as the value of a header."""
    return _UNSAFE.sub("?", content_type).encode()


async def _result_reply(
    services: Services, request: Request, job: Job, applied: tuple[Header, ...]
) -> Reply | StreamingReply:
    if job.freed:
        raise ResultFreed(
            f"the result of job {job.id!r} was freed: the stages of its pipeline that take it "
            "as input have ended",
            hint="Read the result of the pipeline's job, or name the stage in its `result`.",
        )
    output = raw_result(job) if job.stored is None else None
    headers = (NO_STORE, *HARMLESS, *applied)
    if job.stored is None and output is None:
        # A Celery client submitted it with `ignore_result`.
        return Reply(NO_CONTENT, b"", headers=headers)
    etag = b'"%x"' % job.ended_us
    headers = (*headers, _RANGES, (b"etag", etag))
    if job.stored is not None:
        size, kind = job.stored.size, split_details(job.stored.content_type)[0]
    elif output is not None:
        size, kind = len(output[0]), output[1]
    content_type = as_header(kind)
    try:
        span = requested_range(request.header(b"range"), request.header(b"if-range"), etag, size)
    except UnsatisfiableRange:
        error = RangeNotSatisfiable(
            f"the range is outside of the result, which has {size} bytes",
            hint="Request a range within it, or all of it.",
        )
        reply = problem(error, request.path)
        shown = b"bytes */%d" % size
        return reply._replace(headers=(*reply.headers, (b"content-range", shown)))
    status = 200 if span is None else 206
    if span is None:
        span = ByteRange(0, size)
    else:
        shown = b"bytes %d-%d/%d" % (span.start, span.end - 1, size)
        headers = (*headers, (b"content-range", shown))
    if output is not None:
        return Reply(status, output[0][span.start : span.end], content_type, headers)
    headers = (*headers, (b"content-length", b"%d" % (span.end - span.start)))
    return await stream_result(services, request, job.stored, span, status, content_type, headers)


async def stream_result(
    services: Services,
    request: Request,
    stored: StoredResult | None,
    span: ByteRange,
    status: int,
    content_type: bytes,
    headers: tuple[Header, ...],
) -> StreamingReply:
    """Return an answer that sends a part of a stored result while it is read.

    It raises a StoreError or BrokerError if the beginning cannot be read.
    """
    if stored is None or request.method == "HEAD" or span.start == span.end:
        return StreamingReply(status, write_nothing, content_type, headers)
    # Read before the answer begins, so that an error of the store is answered as a problem.
    first = await services.input_store.read(stored, span.start, span.end - span.start)
    send = partial(
        services.input_store.send,
        receive=request.receive,
        stored=stored,
        first=first,
        at=span.start,
        end=span.end,
    )
    return StreamingReply(status, send, content_type, headers)
