"""The lines of a batch's output files, one for each request, in the format of OpenAI."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.client.models import Failure
from headrace.errors import BY_CODE, HeadraceError
from headrace.runs.interfaces import Row

EXPIRED: Final = Failure(
    type="batch_expired",
    message="the completion window ended before this request had run",
    retryable=True,
)
CANCELLED: Final = Failure(
    type="batch_cancelled",
    message="the batch was cancelled before this request had run",
    retryable=True,
)
REFUSED: Final = Failure(
    type="batch_unauthorized",
    message="the API key of the batch was revoked or expired before this request's result was read",
    retryable=False,
)
#: The errors of requests without a job that has run.
NOT_RUN: Final = frozenset({EXPIRED.type, CANCELLED.type, REFUSED.type})

_OK: Final = 200
_ENCODER: Final = msgspec.json.Encoder()


def answer_line(batch_id: str, job_id: str, row: Row) -> bytes:
    """The line of one request, with its line feed.

    `response.body` is the job object that a submit with a wait would have given, as far as it
    matters here; what has not run has no response.
    """
    error = row.error
    response: dict[str, Any] | None = None
    if row.status != "rejected" and not (error is not None and error.type in NOT_RUN):
        status = _OK if row.succeeded else _status_of(error)
        response = {"status_code": status, "request_id": job_id, "body": _body(job_id, row)}
    document = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}_{row.n}",
        "custom_id": row.key,
        "response": response,
        "error": None if error is None else {"code": error.type, "message": error.message},
    }
    return _ENCODER.encode(document) + b"\n"


def _body(job_id: str, row: Row) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": job_id,
        "model": row.carried.get("model"),
        "status": row.status,
        "attempts": row.attempts,
        "timings": row.timings,
    }
    if row.succeeded:
        body["result"] = row.result
    else:
        body["error"] = row.error
    return body


def _status_of(error: Failure | None) -> int:
    return BY_CODE.get(error.type if error else "", HeadraceError).status
