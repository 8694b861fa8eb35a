"""The client's calls for jobs, models and queues, as plans that both clients run (sansio.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from typing_extensions import Unpack

from headrace.client.http.retries import Session, decoded, exchange, fetch, job_error
from headrace.client.inputs import (
    JOBS,
    JSON_HEADERS,
    InputRef,
    Options,
    job_line,
    job_request,
    plain_parameters,
    trace_headers,
)
from headrace.client.models import Cancelled, Job, Model, decode_output
from headrace.client.sansio import HttpRequest, HttpResponse, Pause, Plan, Stream, Yield
from headrace.errors import InvalidRequest, WaitTimeout
from headrace.jobs.ids import check_key, new_id
from headrace.schema.operation import Demand, Queue, Queues
from headrace.schema.overview import Finding, Findings, Overview, Series

MODELS: Final = "/api/v1/models"
#: Seconds of the first long poll, after which a reason that no worker can load the model is known.
FIRST_POLL_S: Final = 5.0
#: Seconds of one long poll. The server limits it to its max_wait_s.
POLL_S: Final = 30.0
#: A poll that returns sooner without an end did not wait: the server is stopping, for example.
TOO_SOON_S: Final = 0.5
#: Number of items in one page of a list.
PAGE: Final = 1000

T = TypeVar("T")
#: The items of a page, and the cursor of the next one.
Page: TypeAlias = tuple[list[T], str | None]


class _JobPage(msgspec.Struct):
    jobs: list[Job]
    cursor: str | None = None


class _Models(msgspec.Struct):
    models: list[Model]


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
    parameters: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Plan[Job]:
    """Submit one job; repeat the request with the same id until the server answers.

    Args:
        input: JSON, str, bytes, a pathlib.Path, a Pillow image, a numpy array, or an `InputRef`.
        input_ref: instead of `input`, a file or object that the server reads:
            `file:/folder/name` or `s3://bucket/key`. The operator allows folders and buckets.
        id: the job's id; default a new one.
        idempotency_key: instead of `id`: the same key returns the same job.
        content_type: media type of the input, if its Python type or its name does not imply it.
        version: required version of the model.
        parameters: values for the parameters that the model declares, by name.
        options: priority, expires, countdown, timeout, result_ttl, max_retries,
            retry_backoff, retry_backoff_max, metadata.

    Returns:
        The job as it was enqueued; as it is now if its id or key was already used.

    Raises:
        RequestError: the input was refused or cannot be sent, and there is no job.
        BrokerError: Redis cannot accept the job.
        ServerUnreachable: the server does not answer.
    """
    headers = {**JSON_HEADERS, **trace_headers()}
    if idempotency_key is not None:
        headers["idempotency-key"] = check_key(idempotency_key)
    elif id is None:
        # If the answer is lost, the repeated request must name the same job.
        id = new_id()
    if (input is msgspec.UNSET) == (input_ref is None):
        raise InvalidRequest("give either input or input_ref")
    value = input if input_ref is None else InputRef(input_ref)
    sent = plain_parameters(parameters)
    body = job_line(model, value, content_type, version, options, id, sent)
    request = HttpRequest("POST", JOBS, body=body, headers=headers)
    return (yield from fetch(session, request, Job))


def status(session: Session, job: str | Job) -> Plan[Job]:
    """Return a job's present status.

    Raises:
        JobNotFound: no job has this id, or its result_ttl has passed.
    """
    return (yield from fetch(session, job_request("GET", job), Job))


def wait(session: Session, job: str | Job, timeout_s: float | None = None) -> Plan[Job]:
    """Wait until a job has succeeded or failed, also while the server restarts.

    Args:
        timeout_s: maximum wait; None for no limit.

    Raises:
        WaitTimeout: the job has not ended in time. It continues, and can be waited for again.
        JobNotFound: no job has this id.
        ServerUnreachable: the server was unreachable for longer than `retry_s`, or at the end.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    most_s = FIRST_POLL_S
    while True:
        started = time.monotonic()
        poll_s = most_s if deadline is None else max(0.0, min(most_s, deadline - started))
        most_s = POLL_S
        request = job_request("GET", job, wait_s=poll_s)
        answer = yield from exchange(session, request, until=deadline)
        found = decoded(answer, Job)
        if found.ended:
            return found
        if found.waiting_reason:
            session.on_waiting(found.waiting_reason)
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            why = f"; its model: {found.waiting_reason}" if found.waiting_reason else ""
            error = WaitTimeout(
                f"job {found.id} is {found.status} and has not ended within {timeout_s:g} s{why}",
                hint="The job continues; wait for it again, or get its result later.",
            )
            error.job_id = found.id
            raise error
        if now - started < min(TOO_SOON_S, poll_s):
            yield Pause(TOO_SOON_S if deadline is None else min(TOO_SOON_S, deadline - now))


def result(session: Session, job: str | Job, timeout_s: float | None = None) -> Plan[Any]:
    """Wait for a job and return its result: a JSON value, str for text/*, else bytes.

    Args:
        timeout_s: maximum wait; None for no limit.

    Raises:
        JobError: the job failed; the class shows how.
        WaitTimeout: the job has not ended in time.
        JobNotFound: no job has this id.
    """
    ended = yield from wait(session, job, timeout_s)
    if not ended.succeeded:
        raise job_error(ended)
    return (yield from output(session, ended))


def output(session: Session, job: Job) -> Plan[Any]:
    """Return the decoded result of a job that succeeded."""
    answer = yield from exchange(session, job_request("GET", job, below="/result"))
    if answer.status == 204:
        return None
    return decode_output(answer.body, answer.headers.get("content-type", ""))


def cancel(session: Session, job: str | Job) -> Plan[Cancelled]:
    """Cancel a job.

    Raises:
        JobNotFound: no job has this id.
    """
    return (yield from fetch(session, job_request("DELETE", job), Cancelled))


def jobs(
    session: Session,
    *,
    model: str | None = None,
    status: str | Sequence[str] | None = None,
    since: datetime | float | str | None = None,
    until: datetime | float | str | None = None,
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    error: str | None = None,
    group: str | None = None,
    limit: int | None = None,
) -> Stream[Job]:
    """List or search jobs, newest first, page by page.

    Args:
        model: only jobs of this model.
        status: only jobs with this status, or with one of these.
        since: only jobs created at this time or later: a datetime, RFC 3339, or seconds since 1970.
        until: only jobs created before this time.
        key: only jobs of the API key with this id.
        metadata: only jobs whose metadata has these members.
        error: only failed jobs with this text in their error.
        group: only the failures of this group; see `failures`.
        limit: maximum number; None for all.
    """
    query = query_of(
        model=model,
        status=status if status is None or isinstance(status, str) else ",".join(status),
        since=since,
        until=until,
        key=key,
        metadata=msgspec.json.encode(metadata).decode() if metadata else None,
        error=error,
        group=group,
    )

    def read(answer: HttpResponse) -> Page[Job]:
        page = decoded(answer, _JobPage)
        return page.jobs, page.cursor

    return list_pages(session, JOBS, read, limit=limit, query=query)


def query_of(**values: datetime | float | str | None) -> dict[str, str]:
    """Return the query with the values that are not None, each as the API takes it."""
    return {
        name: value.astimezone().isoformat() if isinstance(value, datetime) else str(value)
        for name, value in values.items()
        if value is not None
    }


def models(session: Session) -> Plan[list[Model]]:
    """Return the registered models and their states."""
    return (yield from fetch(session, HttpRequest("GET", MODELS), _Models)).models


def model(session: Session, name: str) -> Plan[Model]:
    """Return one model with its configuration and its workers.

    Raises:
        ModelNotFound: no model has this name.
    """
    path = f"{MODELS}/{quote(name, safe='')}"
    return (yield from fetch(session, HttpRequest("GET", path), Model))


def demand(session: Session, model: str) -> Plan[Demand]:
    """Return how much work a model has now.

    Raises:
        ModelNotFound: no model has this name.
    """
    path = f"{MODELS}/{quote(model, safe='')}/demand"
    return (yield from fetch(session, HttpRequest("GET", path), Demand))


def series(
    session: Session,
    model: str,
    *,
    since: datetime | float | str | None = None,
    until: datetime | float | str | None = None,
    step: Literal["minute", "hour"] | None = None,
) -> Plan[Series]:
    """Return what a model did by minute (of 24 hours) or by hour (of 30 days), 1,440 at most.

    Args:
        since: by default 60 steps before `until`.
        until: by default, and at most, the end of the last full step.
        step: by default hours if `since` is longer ago than minutes are kept.

    Raises:
        ModelNotFound: no model has this name.
    """
    path = f"{MODELS}/{quote(model, safe='')}/series"
    query = query_of(since=since, until=until, step=step)
    return (yield from fetch(session, HttpRequest("GET", path, query), Series))


def overview(session: Session) -> Plan[Overview]:
    """Return all models in numbers, and what is wrong."""
    return (yield from fetch(session, HttpRequest("GET", "/api/v1/overview"), Overview))


def findings(session: Session) -> Plan[list[Finding]]:
    """Return what is wrong with the deployment now, the worst first."""
    return (yield from fetch(session, HttpRequest("GET", "/api/v1/findings"), Findings)).findings


def queues(session: Session) -> Plan[list[Queue]]:
    """Return every queue with its depth, its age and its jobs in flight."""
    return (yield from fetch(session, HttpRequest("GET", "/api/v1/queues"), Queues)).queues


def ready(session: Session, *, all_models: bool = False) -> Plan[dict[str, Any]]:
    """Return the body of `/ready`, with the models' states, if the server accepts jobs.

    Args:
        all_models: require a loaded replica of every model.

    Raises:
        ModelsNotReady: with `all_models`, a model has no loaded replica.
        BrokerUnavailable: Redis does not answer.
    """
    query = {"models": "all"} if all_models else {}
    return (yield from fetch(session, HttpRequest("GET", "/ready", query), dict[str, Any]))


def list_pages(
    session: Session,
    path: str,
    read: Callable[[HttpResponse], Page[T]],
    *,
    limit: int | None,
    query: Mapping[str, str] | None = None,
) -> Stream[T]:
    """Yield all items of a list, in its order, page by page."""
    parameters = {"limit": str(PAGE if limit is None else min(PAGE, limit)), **(query or {})}
    left = limit
    while left is None or left > 0:
        items, cursor = read(
            (yield from exchange(session, HttpRequest("GET", path, dict(parameters))))
        )
        yield Yield(items if left is None else items[:left])
        if left is not None:
            left -= len(items)
        if not cursor:
            return
        parameters["cursor"] = cursor
