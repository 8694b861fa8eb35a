"""What the protocols over HTTP share: bodies with a coding; answers that are a job or an error."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from api.http.bodies import read_body
from api.http.messages import NO_STORE, Header, Reply, Request
from api.http.problems import error_headers
from api.routes.jobs.job import RETRY_AFTER
from api.routes.jobs.submission import location
from api.services import Services
from api.submission.job_request import idempotency_key, request_trace
from api.submission.waiting import ASYNC_APPLIED, prefers_async
from extensions.inference_protocols.jobs.inference import Call
from extensions.inference_protocols.tensors.requests import Unsupported
from headrace.errors import (
    HeadraceError,
    InputError,
    InvalidRequest,
    JobExpired,
    JobTimeout,
    MethodNotAllowed,
    PayloadTooLarge,
    RequestError,
    Throttled,
    drop_tracebacks,
)
from headrace.jobs.job import Job
from headrace.schema.serialization import job_object

#: Codings, with the windows by which zlib knows them: of a gzip member, and of a zlib stream.
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
#: A body of this length takes some 5 ms to read.
LONG_BYTES: Final = 128 * 1024
#: A compressed body of zeros becomes a thousand times as long, and zlib writes 1 MB in 1 ms.
_GROWTH: Final = 32
Parsed = TypeVar("Parsed")
#: Statuses of requests that Triton's clients know; any other is 400.
_KEPT: Final = frozenset({401, 403, 404, 405, 408, 413, 431, 501, 503})


def call_of(request: Request, at: int = 0) -> Call:
    """Return where a request comes from; its job `at` has an idempotency key of its own."""
    key = idempotency_key(request)
    return Call(
        request.caller, request.header, f"{key}-{at}" if key and at else key, request.receive,
        waits=not prefers_async(request.header(b"prefer")), trace=request_trace(request),
    )  # fmt: skip


async def body_of(services: Services, request: Request) -> bytes:
    """Read a body, without the coding that its request names.

    Raises:
        Unsupported: the coding is unknown.
        InvalidRequest: the body has another.
        PayloadTooLarge: it is, or becomes, longer than `body_limit_bytes`.
    """
    limit_bytes = services.settings.body_limit_bytes
    body = await read_body(request, limit_bytes)
    coding = request.header(b"content-encoding").strip().lower().decode("latin-1")
    if coding in ("", "identity"):
        return body
    return await parsed(decompressed, body, coding, limit_bytes, long=LONG_BYTES // _GROWTH)


async def parsed(
    read: Callable[..., Parsed], body: bytes, *more: Any, long: int = LONG_BYTES
) -> Parsed:
    """Return what `read` makes of a body; a long one is read in a thread."""
    if len(body) < long:
        return read(body, *more)
    return await asyncio.to_thread(read, body, *more)


def decompressed(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Return the bytes of a body with a content coding; errors as for `body_of`."""
    window = _WINDOWS.get(coding)
    if window is None:
        raise Unsupported("Unsupported compression type")
    stream = zlib.decompressobj(window)
    try:
        found = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding}: {error}") from None
    if len(found) > limit_bytes:
        raise PayloadTooLarge(
            f"the body has more than {limit_bytes} bytes once it is decompressed",
            hint="Send a smaller input, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
        )
    if not stream.eof:
        raise InvalidRequest(f"the body is not {coding}: it is not complete")
    return found


def compressed(body: bytes, coding: str) -> bytes:
    """Return a body in a content coding."""
    stream = zlib.compressobj(1, wbits=_WINDOWS[coding])
    return stream.compress(body) + stream.flush()


async def accepted(services: Services, job: Job, headers: tuple[Header, ...]) -> Reply:
    """Return the answer to a client that prefers not to wait: the job."""
    waiting_for = None
    if not job.state.final:
        waiting_for = await services.model_statuses.waiting_for(job.model, job.asked_version)
    body = job_object(job, waiting_for=waiting_for)
    return Reply(202, body, headers=(NO_STORE, location(job), ASYNC_APPLIED, RETRY_AFTER, *headers))


def status_of(error: HeadraceError) -> int:
    """Return the status of an error, as Triton would answer it."""
    if isinstance(error, (Throttled, JobExpired)):
        return 503
    if isinstance(error, RequestError):
        return error.status if error.status in _KEPT else 400
    if isinstance(error, InputError):
        return 400
    return 504 if isinstance(error, JobTimeout) else error.status


def error_reply(error: HeadraceError, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer for an error, which loses its traceback."""
    drop_tracebacks(error)
    text = error.message_with_hint
    if isinstance(error, MethodNotAllowed):
        text = "Method Not Allowed"
    elif isinstance(error, JobExpired):
        text = f"Request timeout expired: {text}"
    body = msgspec.json.encode({"error": text})
    return Reply(status_of(error), body, headers=(NO_STORE, *error_headers(error), *headers))
