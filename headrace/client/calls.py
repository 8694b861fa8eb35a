"""The calls of the client, each a plan that both shells run. See steps.py for what a plan is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
from typing_extensions import Unpack

from headrace.client.errors import decoded, job_error
from headrace.client.inputs import InputRef
from headrace.client.models import Cancelled, Job, Model, Queue, decode_output
from headrace.client.pages import Page, listed
from headrace.client.requests import (
    JOBS,
    JSON_HEADERS,
    Options,
    job_line,
    job_request,
    trace_headers,
)
from headrace.client.retries import Session, exchange
from headrace.client.sansio import HttpRequest, HttpResponse, Pause, Plan, Stream
from headrace.errors import InvalidRequest, WaitTimeout
from headrace.jobs.ids import check_key
from headrace.jobs.job import new_id

MODELS: Final = "/api/v1/models"
#: One long poll. The server caps it at its max_wait_s.
POLL_S: Final = 30.0
#: A "not yet" that came sooner than this was no wait: the server is stopping, say.
TOO_SOON_S: Final = 0.5


class _Page(msgspec.Struct):
    jobs: list[Job]
    cursor: str | None = None


class _Models(msgspec.Struct):
    models: list[Model]


class _Queues(msgspec.Struct):
    queues: list[Queue]


def submit(
    session: Session,
    model: str,
    input: Any = msgspec.UNSET,
    *,
    input_ref: str | None = None,
    id: str | None = None,
    idempotency_key: str | None = None,
    content_type: str | None = None,
    version: str | None = None,
    **options: Unpack[Options],
) -> Plan[Job]:
    """Submit one job; it is said again, under the same id, until the server has answered.

    Args:
        session: the server.
        model: the model's name.
        input: JSON, str, bytes, a pathlib.Path, a Pillow image, a numpy array, or an `InputRef`.
        input_ref: in its place a file or object that the server is to read: `file:/folder/name` or
            `s3://bucket/key`. The operator says which folders and buckets clients may name.
        id: the job's id; by default a new one.
        idempotency_key: the same key gives the same job, instead of an id.
        content_type: what the input is, where its kind or its name does not say so.
        version: only for this version of the model.
        options: priority, expires, countdown, timeout, result_ttl, max_retries,
            retry_backoff, retry_backoff_max, metadata.

    Returns:
        The job as it was enqueued; where its id or key was known, as it is now.

    Raises:
        RequestError: it was refused, or cannot be sent, and no job was made.
        BrokerError: Redis cannot take it.
        ServerUnreachable: nothing answers.
    """
    headers = {**JSON_HEADERS, **trace_headers()}
    if idempotency_key is not None:
        headers["idempotency-key"] = check_key(idempotency_key)
    elif id is None:
        # The server may have taken the job when its answer is lost: the repeat names the same one.
        id = new_id()
    if (input is msgspec.UNSET) == (input_ref is None):
        raise InvalidRequest("give an input or an input_ref, and not both")
    value = input if input_ref is None else InputRef(input_ref)
    body = job_line(model, value, content_type, version, options, id)
    answer = yield from exchange(session, HttpRequest("POST", JOBS, body=body, headers=headers))
    return decoded(answer, Job)


def status(session: Session, job: str | Job) -> Plan[Job]:
    """A job as it is now.

    Raises:
        JobNotFound: there is none of that id, or its result_ttl has passed.
    """
    answer = yield from exchange(session, job_request("GET", job))
    return decoded(answer, Job)


def wait(session: Session, job: str | Job, timeout_s: float | None = None) -> Plan[Job]:
    """Wait for a job's end, well or not, also while the server is restarted.

    Args:
        session: the server.
        job: the job, or its id.
        timeout_s: how long; None for as long as it takes.

    Raises:
        WaitTimeout: it has not ended by then. It goes on, and can be waited for again.
        JobNotFound: there is none of that id.
        ServerUnreachable: the server was away for longer than `retry_s`, or at the end.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        started = time.monotonic()
        poll_s = POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - started))
        request = job_request("GET", job, wait_s=poll_s)
        answer = yield from exchange(session, request, until=deadline)
        found = decoded(answer, Job)
        if found.ended:
            return found
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            error = WaitTimeout(
                f"job {found.id} is {found.status} and has not ended within {timeout_s:g} s",
                hint="It goes on; wait for it again, or ask for its result later.",
            )
            error.job_id = found.id
            raise error
        if now - started < min(TOO_SOON_S, poll_s):
            yield Pause(TOO_SOON_S if deadline is None else min(TOO_SOON_S, deadline - now))


def result(session: Session, job: str | Job, timeout_s: float | None = None) -> Plan[Any]:
    """Wait for a job's end and give its result: a JSON value, str for text/*, else bytes.

    Args:
        session: the server.
        job: the job, or its id.
        timeout_s: how long to wait; None for as long as it takes.

    Raises:
        JobError: the job did not succeed; the class says how.
        WaitTimeout: it has not ended by then.
        JobNotFound: there is none of that id.
    """
    ended = yield from wait(session, job, timeout_s)
    if not ended.succeeded:
        raise job_error(ended)
    return (yield from output(session, ended))


def output(session: Session, job: Job) -> Plan[Any]:
    """The result of a job that has succeeded, as the handler gave it."""
    answer = yield from exchange(session, job_request("GET", job, below="/result"))
    if answer.status == 204:
        return None
    return decode_output(answer.body, answer.headers.get("content-type", ""))


def cancel(session: Session, job: str | Job) -> Plan[Cancelled]:
    """Cancel a job.

    Raises:
        JobNotFound: there is none of that id.
    """
    answer = yield from exchange(session, job_request("DELETE", job))
    return decoded(answer, Cancelled)


def jobs(
    session: Session,
    *,
    model: str | None = None,
    status: str | Sequence[str] | None = None,
    since: datetime | float | str | None = None,
    limit: int | None = None,
) -> Stream[Job]:
    """List jobs, newest first, page by page.

    Args:
        session: the server.
        model: only this model's.
        status: only those of this status, or of these.
        since: only those that were created then or later: a datetime, RFC 3339, or seconds since
            1970.
        limit: so many at the most; None for all that are listed.
    """
    query: dict[str, str] = {}
    if model is not None:
        query["model"] = model
    if status is not None:
        query["status"] = status if isinstance(status, str) else ",".join(status)
    if since is not None:
        query["since"] = (
            since.astimezone().isoformat() if isinstance(since, datetime) else str(since)
        )

    def read(answer: HttpResponse) -> Page[Job]:
        page = decoded(answer, _Page)
        return page.jobs, page.cursor

    return listed(session, JOBS, read, limit=limit, query=query)


def models(session: Session) -> Plan[list[Model]]:
    """The registered models and their states."""
    return decoded((yield from exchange(session, HttpRequest("GET", MODELS))), _Models).models


def model(session: Session, name: str) -> Plan[Model]:
    """One model, with its configuration and its workers.

    Raises:
        ModelNotFound: there is none of that name.
    """
    path = f"{MODELS}/{quote(name, safe='')}"
    return decoded((yield from exchange(session, HttpRequest("GET", path))), Model)


def queues(session: Session) -> Plan[list[Queue]]:
    """Depth, age and jobs in flight of every queue."""
    answer = yield from exchange(session, HttpRequest("GET", "/api/v1/queues"))
    return decoded(answer, _Queues).queues


def ready(session: Session, *, all_models: bool = False) -> Plan[dict[str, Any]]:
    """Whether jobs can be taken: `/ready`'s body, with the models' states.

    Args:
        session: the server.
        all_models: ask for a loaded replica of each model too.

    Raises:
        ModelsNotReady: with `all_models`, some model has none.
        BrokerUnavailable: Redis does not answer.
    """
    query = {"models": "all"} if all_models else {}
    return decoded(
        (yield from exchange(session, HttpRequest("GET", "/ready", query))), dict[str, Any]
    )
