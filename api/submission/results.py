"""Answer with a result or one range of it, from the record or from the payload store."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from api.http.messages import NO_CONTENT, NO_STORE, Header, Reply, Request, StreamingReply, Write
from api.http.problems import problem
from api.http.ranges import ByteRange, UnsatisfiableRange, requested_range
from api.services import Services
from headrace.errors import RangeNotSatisfiable, ResultFreed
from headrace.jobs.job import Job, StoredResult
from headrace.jobs.serialization import raw_result

#: A handler's output has the API's own origin. A browser must not guess that it is HTML; if it is
#: HTML, the browser must run no script and load nothing.
_HARMLESS: Final[tuple[Header, ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
)
_RANGES: Final[Header] = (b"accept-ranges", b"bytes")
_UNSAFE = re.compile(r"[^\x20-\x7e]")


async def result_reply(
    services: Services, request: Request, job: Job, applied: tuple[Header, ...]
) -> Reply | StreamingReply:
    """Return the answer to a request for the result of a job that has succeeded.

    Raises:
        JobNotFound: the result was deleted.
        ResultFreed: the result was only for later stages of a pipeline, which have ended.
        StoreUnavailable, BrokerError: the store does not answer.
    """
    if job.freed:
        raise ResultFreed(
            f"the result of job {job.id!r} was freed: the stages of its pipeline that take it "
            "as input have ended",
            hint="Read the result of the pipeline's job, or name the stage in its `result`.",
        )
    output = raw_result(job) if job.stored is None else None
    headers = (NO_STORE, *_HARMLESS, *applied)
    if job.stored is None and output is None:
        # A Celery client submitted it with `ignore_result`.
        return Reply(NO_CONTENT, b"", headers=headers)
    etag = b'"%x"' % job.ended_us
    headers = (*headers, _RANGES, (b"etag", etag))
    if job.stored is not None:
        size, kind = job.stored.size, job.stored.content_type
    elif output is not None:
        size, kind = len(output[0]), output[1]
    content_type = _UNSAFE.sub("?", kind).encode()
    try:
        span = requested_range(request.header(b"range"), request.header(b"if-range"), etag, size)
    except UnsatisfiableRange:
        return _unsatisfiable(request, size)
    status = 200 if span is None else 206
    if span is None:
        span = ByteRange(0, size)
    else:
        shown = b"bytes %d-%d/%d" % (span.start, span.end - 1, size)
        headers = (*headers, (b"content-range", shown))
    if output is not None:
        return Reply(status, output[0][span.start : span.end], content_type, headers)
    headers = (*headers, (b"content-length", b"%d" % (span.end - span.start)))
    return await _stream(services, request, job.stored, span, status, content_type, headers)


async def _stream(
    services: Services,
    request: Request,
    stored: StoredResult | None,
    span: ByteRange,
    status: int,
    content_type: bytes,
    headers: tuple[Header, ...],
) -> StreamingReply:
    if stored is None or request.method == "HEAD":
        return StreamingReply(status, _nothing, content_type, headers)
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


async def _nothing(_: Write) -> None:
    """Write no body: the answer to HEAD."""


def _unsatisfiable(request: Request, size: int) -> Reply:
    reply = problem(
        RangeNotSatisfiable(
            f"the range is outside of the result, which has {size} bytes",
            hint="Request a range within it, or all of it.",
        ),
        request.path,
    )
    return reply._replace(headers=(*reply.headers, (b"content-range", b"bytes */%d" % size)))
