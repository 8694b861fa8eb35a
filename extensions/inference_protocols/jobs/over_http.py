"""What the protocols share: long bodies, and, over HTTP, codings and an answer without outputs."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from api.http.bodies import read_body
from api.http.messages import NO_STORE, Header, Reply, Request
from api.http.problems import error_headers
from api.routes.jobs.job import RETRY_AFTER
from api.routes.jobs.submission import REPLAYED, AcceptedJob, location, submit
from api.services import Services
from api.submission.job_request import ValidatedRequest
from api.submission.waiting import ASYNC_APPLIED
from extensions.inference_protocols.jobs.inference import cancel, counting_refusals
from extensions.inference_protocols.tensors.requests import Unsupported
from headrace.errors import (
    HeadraceError,
    InputError,
    InvalidRequest,
    JobExpired,
    MethodNotAllowed,
    PayloadTooLarge,
    RequestError,
    Throttled,
    drop_tracebacks,
)
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


async def body_of(services: Services, request: Request) -> bytes:
    """Read a body, without the coding that its request names.

    It raises Unsupported for an unknown coding, InvalidRequest if the body has another, and
    PayloadTooLarge if it is, or becomes, longer than `body_limit_bytes`.
    """
    limit_bytes = services.settings.body_limit_bytes
    body = await read_body(request, limit_bytes)
    coding = request.header(b"content-encoding").strip().lower().decode("latin-1")
    if coding in ("", "identity"):
        return body
    return await parsed(len(body) * _GROWTH, decompressed, body, coding, limit_bytes)


async def parsed(size: int, read: Callable[..., Parsed], *given: Any) -> Parsed:
    """Return what `read` makes of `size` bytes; long ones are read in a thread."""
    if size < LONG_BYTES:
        return read(*given)
    return await asyncio.to_thread(read, *given)


def decompressed(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Return the bytes of a body with a content coding; errors as for `body_of`."""
    window = _WINDOWS.get(coding)
    if window is None:
        raise Unsupported("Unsupported compression type")
    stream = zlib.decompressobj(window)
    try:
        whole = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding}: {error}") from None
    if len(whole) > limit_bytes:
        raise PayloadTooLarge(
            f"the body has more than {limit_bytes} bytes once it is decompressed",
            hint="Send a smaller input, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
        )
    if not stream.eof:
        raise InvalidRequest(f"the body is not {coding}: it is not complete")
    return whole


def compressed(body: bytes, coding: str) -> bytes:
    """Return a body in a content coding."""
    return zlib.compress(body, 1, wbits=_WINDOWS[coding])


async def leave(
    services: Services, requests: Sequence[ValidatedRequest], headers: tuple[Header, ...]
) -> Reply:
    """Submit jobs whose client does not wait. If one is refused, the others are cancelled.

    The answer is the only job, or all of them as `jobs`.
    """

    async def submitted(request: ValidatedRequest) -> AcceptedJob:
        with counting_refusals(services, request.model):
            return await submit(services, request)

    outcomes = await asyncio.gather(*map(submitted, requests), return_exceptions=True)
    accepted = [outcome for outcome in outcomes if isinstance(outcome, AcceptedJob)]
    if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        if accepted:
            await asyncio.gather(*(cancel(services, request) for request in requests))
        raise failures[0]
    headers = (NO_STORE, ASYNC_APPLIED, *headers)
    if len(accepted) > 1:
        jobs = b",".join(job_object(job, replayed=replayed) for job, replayed in accepted)
        return Reply(202, b'{"jobs":[%s]}' % jobs, headers=headers)
    job, replayed = accepted[0]
    if replayed:
        headers = (*headers, REPLAYED)
    waiting_for = None
    if not job.state.final:
        waiting_for = await services.model_statuses.waiting_for(job.model, job.asked_version)
    body = job_object(job, waiting_for=waiting_for)
    return Reply(202, body, headers=(*headers, location(job), RETRY_AFTER))


def error_reply(error: HeadraceError, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer for an error, as Triton would give it. The error loses its traceback."""
    drop_tracebacks(error)
    status, text = error.status, error.message_with_hint
    if isinstance(error, (Throttled, JobExpired)):
        status = 503
    elif isinstance(error, InputError) or (isinstance(error, RequestError) and status not in _KEPT):
        status = 400
    if isinstance(error, MethodNotAllowed):
        text = "Method Not Allowed"
    elif isinstance(error, JobExpired):
        text = f"Request timeout expired: {text}"
    body = msgspec.json.encode({"error": text})
    return Reply(status, body, headers=(NO_STORE, *error_headers(error), *headers))
