"""An ended job as the answer to a prediction: the handler's own bytes, or its error."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from api.http.messages import BODILESS, Answer, ByteRange, Header, Reply, Request
from api.routes.jobs.job import stream_result
from api.services import Services
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.replies import (
    NO_TYPE,
    REQUEST_ID,
    Kind,
    TorchServeError,
    answer_of_failure,
    error_reply,
)
from headrace.jobs.job import Job, JobFailure, State, error_of
from headrace.jobs.values.encoding import kombu_base64
from headrace.jobs.values.media_types import BINARY_TYPE, JSON_TYPE
from headrace.response import HEADER_NAME, ResponseDetails, error_response, split_details
from headrace.schema.serialization import JOBS_PATH

#: The header with the id of the job that a request has made.
JOB: Final = b"headrace-job"
CONTENT_TYPE: Final = "content-type"
#: Headers that are the server's: of the connection, and those of every answer.
_RESERVED: Final = frozenset(
    {
        "cache-control", "connection", "content-length", "date", "expires", "keep-alive", "pragma",
        "te", "trailer", "transfer-encoding", "upgrade", "x-request-id",
    }
)  # fmt: skip
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
#: The types of results whose handler has not chosen one.
_NOT_CHOSEN: Final = frozenset({"", JSON_TYPE, BINARY_TYPE})
_STATUS_MIN, _STATUS_MAX = 200, 599
#: The longest form of one byte of a text in JSON, such as \u0007, and the quotes around the text.
_ESCAPED, _QUOTES = 6, 2


def job_headers(job_id: str) -> tuple[Header, ...]:
    """Return the headers by which a client finds the job of its request."""
    name = job_id.encode()
    return ((REQUEST_ID, name), (JOB, name))


def reply_head(job_id: str, details: ResponseDetails) -> tuple[int, bytes, tuple[Header, ...]]:
    """Return the status, the content type and the headers of an answer in pieces."""
    status = details.status if _STATUS_MIN <= details.status <= _STATUS_MAX else 500
    headers = (*job_headers(job_id), *_headers(details.headers))
    return status, _chosen_type(details.headers, ""), headers


async def answer_with(
    services: Services, request: Request, job: Job, *, native: bool = False
) -> Answer:
    """Return the answer to a request whose job has ended, or does not end while it waits.

    Args:
        native: the handler is one of Headrace. Then the type of its result is the one of the
            answer. A handler of TorchServe sets a header if it wants one.

    Raises:
        TorchServeError: the job has failed or has not ended, or its result is too large.
        JobNotFound, StoreError, BrokerError: its result cannot be read.
    """
    if job.state is State.SUCCEEDED:
        return await _result(services, request, job, native=native)
    if not job.state.final:
        raise TorchServeError(
            Kind.UNAVAILABLE,
            f"the server stops before the job {job.id} has ended. "
            f"Read its result at {JOBS_PATH}{job.id}/result",
            job_headers(job.id),
        )
    failure = error_of(job) or JobFailure()
    response = error_response(job.error_json)
    if response is None:
        raise TorchServeError(answer_of_failure(failure), failure.message, job_headers(job.id))
    status = response.status if _STATUS_MIN <= response.status <= _STATUS_MAX else 500
    headers = (*job_headers(job.id), *_headers(response.headers))
    if response.body is None:
        return error_reply(Kind.INTERNAL, failure.message, headers, status)
    return Reply(status, response.body, _chosen_type(response.headers, ""), headers)


async def _result(services: Services, request: Request, job: Job, *, native: bool) -> Answer:
    limit_bytes = config_of(services).max_response_size
    stored = job.stored
    kind, details = split_details(job.result_type if stored is None else stored.content_type)
    headers = job_headers(job.id)
    if details.headers:
        headers = (*headers, *_headers(details.headers))
    status = details.status if _STATUS_MIN <= details.status <= _STATUS_MAX else 500
    content_type = _chosen_type(details.headers, kind if native else "")
    if status in BODILESS:
        return Reply(status, b"", content_type, headers)
    if stored is not None:
        raw = kind != JSON_TYPE or bool(details.headers)
        # A text is stored with quotes and escapes, which are not sent.
        most = limit_bytes if raw else _ESCAPED * limit_bytes + _QUOTES
        if stored.size > most:
            raise _too_large(job, stored.size, limit_bytes)
        if raw:
            headers = (*headers, (b"content-length", b"%d" % stored.size))
            span = ByteRange(0, stored.size)
            return await stream_result(
                services, request, stored, span, status, content_type, headers
            )
        body = shown(await services.input_store.read_whole(stored))
    else:
        text = job.result_json or b""
        body = base64.b64decode(kombu_base64(text)) if job.result_type else shown(text)
    if len(body) > limit_bytes:
        raise _too_large(job, len(body), limit_bytes)
    return Reply(status, body, content_type, headers)


def shown(text: bytes) -> bytes:
    """Return a result in JSON as a client receives it: a string as its text, all else indented."""
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str).encode()
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        # Bytes that the handler calls JSON, with NaN in them.
        return text


def _too_large(job: Job, size: int, limit_bytes: int) -> TorchServeError:
    return TorchServeError(
        Kind.INTERNAL,
        f"the result has {size} bytes, more than max_response_size ({limit_bytes}). "
        f"Read it at {JOBS_PATH}{job.id}/result, or raise max_response_size",
        job_headers(job.id),
    )


def _chosen_type(headers: Mapping[str, str], kind: str) -> bytes:
    """Return the content type that a handler has chosen; NO_TYPE if it has chosen none."""
    for name, value in headers.items():
        if name.lower() == CONTENT_TYPE:
            return _safe(value)
    return NO_TYPE if kind in _NOT_CHOSEN else _safe(kind)


def _headers(given: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the headers that a handler has set, without those that are the server's."""
    return tuple(
        (name.lower().encode(), _safe(value))
        for name, value in given.items()
        if (key := name.lower()) not in _RESERVED
        and key != CONTENT_TYPE
        and HEADER_NAME.fullmatch(name)
    )


def _safe(value: str) -> bytes:
    return _CONTROL.sub(" ", value).encode()
