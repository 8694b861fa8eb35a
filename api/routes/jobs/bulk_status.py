"""Many jobs by their ids: `POST /api/v1/jobs/{status,cancel,outcomes,forget}`.

`outcomes` and `forget` are for clients that read results as fast as the workers produce them. They
read and return only what a row of results needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.bodies import read_body, require_json
from api.http.messages import NO_STORE, Reply, Request, json_reply
from api.routes.jobs.job import Cancellation
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.access.api_key import Caller
from headrace.jobs.ids import is_id
from headrace.jobs.job import Count, Job, JobFailure, State, Status, error_of, stored_result
from headrace.queue.job_queue import OUTCOMES_MAX_JOBS, VIEW_MAX_JOBS
from headrace.redis.scripts import pages_of
from headrace.schema.jobs import JobObject, Timings
from headrace.schema.serialization import job_object, result_member, timings_member

IDS_MAX: Final = 1000
NULL: Final = b"null"
_STATUS: Final = {state.value.encode(): state.status.encode() for state in State}
_SUCCEEDED: Final = State.SUCCEEDED.value.encode()


class StatusQuery(msgspec.Struct):
    """The query of a read."""

    results: Annotated[Literal["0", "1"], Meta(description="0 leaves the results out.")] = "1"


class Ids(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of jobs."""

    ids: Annotated[list[str], Meta(max_length=IDS_MAX)]


_IDS: Final = JsonDecoder(Ids)


# The answers, which are built as bytes.
class Jobs(msgspec.Struct):
    """In the order of the ids; null for an unknown job."""

    jobs: list[JobObject | None]


class Cancellations(msgspec.Struct):
    """In the order of the ids; null for an unknown job."""

    jobs: list[Cancellation | None]


class OutcomeError(JobFailure, frozen=True):
    """The error of a job, and where its handler raised."""

    where: (
        Annotated[
            str,
            Meta(description="The line of the handler's own code that raised: `words.py:7`."),
        ]
        | UnsetType
    ) = UNSET


class Outcome(msgspec.Struct):
    """The members of the job object; before the job's end the status alone."""

    status: Status
    attempts: Count | UnsetType = UNSET
    timings: Timings | UnsetType | None = UNSET
    result: Any = UNSET
    result_size: Count | UnsetType = UNSET
    error: OutcomeError | UnsetType = UNSET


class Outcomes(msgspec.Struct):
    """In the order of the ids; null for an unknown job."""

    outcomes: list[Outcome | None]


class Forgotten(msgspec.Struct):
    """How many jobs were forgotten."""

    forgotten: Annotated[Count, Meta(description="The number of ended jobs that were forgotten.")]


async def read_many(services: Services, request: Request) -> Reply:
    """Return the job objects in the order of the ids; null for an unknown job."""
    with_results = read_query(request, StatusQuery).results == "1"
    ids = await read_ids(services, request)
    known = [job_id for job_id in ids if is_id(job_id)]
    jobs: dict[str, Job | None] = {}
    for page in pages_of(known, VIEW_MAX_JOBS):
        page_jobs = await services.queue.view(page, results=with_results)
        visible = (job if job and request.caller.may_see(job.key) else None for job in page_jobs)
        jobs.update(zip(page, visible, strict=True))
    objects = [await job_or_null(services, jobs.get(job_id), with_results) for job_id in ids]
    return Reply(200, b'{"jobs":[%s]}' % b",".join(objects), headers=(NO_STORE,))


async def cancel_many(services: Services, request: Request) -> Reply:
    """Cancel jobs and return what became of each, in the order of the ids; null if unknown."""
    request.query()
    ids = await read_ids(services, request)
    cancelled: dict[str, Cancellation] = {}
    # Each id once: a second cancel would find the job ended.
    valid = [job_id for job_id in dict.fromkeys(ids) if is_id(job_id)]
    for page in pages_of(valid, VIEW_MAX_JOBS):
        cancelled.update(await _cancel(services, page, request.caller))
    request.noted = f"{len(cancelled)} jobs"
    return json_reply(Cancellations([cancelled.get(job_id) for job_id in ids]))


async def read_outcomes(services: Services, request: Request) -> Reply:
    """Return the outcomes in the order of the ids; null for an unknown job."""
    request.query()
    ids = await read_ids(services, request)
    # An invalid id must not reach Redis, where it could form the key of another record.
    valid = [job_id if is_id(job_id) else "" for job_id in ids]
    only = request.caller.only

    async def read(page: Sequence[str]) -> list[bytes]:
        rows = await services.queue.outcomes(page, only)
        return [_outcome(job_id, row) for job_id, row in zip(page, rows, strict=True)]

    # Redis reads the next page while the previous one is encoded.
    pages = pages_of(valid, OUTCOMES_MAX_JOBS)
    outcomes = chain.from_iterable(await asyncio.gather(*map(read, pages)))
    return Reply(200, b'{"outcomes":[%s]}' % b",".join(outcomes), headers=(NO_STORE,))


async def forget_many(services: Services, request: Request) -> Reply:
    """Forget those of these jobs that have ended, and return their number."""
    request.query()
    ids = await read_ids(services, request)
    forgotten = 0
    valid = [job_id for job_id in ids if is_id(job_id)]
    for page in pages_of(valid, OUTCOMES_MAX_JOBS):
        forgotten += await services.queue.forget(page, request.caller.only)
    return Reply(200, b'{"forgotten":%d}' % forgotten, headers=(NO_STORE,))


async def job_or_null(services: Services, job: Job | None, with_result: bool) -> bytes:
    """Return the job object of one of several jobs, or null."""
    if job is None:
        return NULL
    waiting_for = None
    if job.state is State.QUEUED:
        waiting_for = await services.model_statuses.waiting_for(job.model, job.asked_version)
    return job_object(
        job, waiting_for=waiting_for, with_result=with_result, with_traceback=with_result
    )


async def read_ids(services: Services, request: Request) -> list[str]:
    """Return the ids in the body; raise InvalidRequest if it is not `{"ids": [...]}`."""
    require_json(request)
    return _IDS.decode(await read_body(request, services.settings.body_limit_bytes)).ids


async def _cancel(
    services: Services, ids: Sequence[str], caller: Caller
) -> dict[str, Cancellation]:
    outcomes = dict(zip(ids, await services.queue.cancel(ids, caller.only), strict=True))
    cancelled = {
        job_id: Cancellation(job_id, outcome, State.CANCELLED.status)
        for job_id, outcome in outcomes.items()
        if outcome == "removed"
    }
    others = [job_id for job_id in ids if outcomes[job_id] not in ("removed", "unknown")]
    for job in await services.queue.view(others, results=False) if others else ():
        if job is not None and caller.may_see(job.key):
            cancelled[job.id] = Cancellation(job.id, outcomes[job.id], job.state.status)
    return cancelled


def _outcome(job_id: str, row: Any) -> bytes:
    """Return an outcome as JSON; `row` is what records/outcomes.lua returns for one job."""
    if isinstance(row, int):
        return NULL
    if isinstance(row, bytes):
        return b'{"status":"%s"}' % _STATUS[row]
    state, attempts, timings, created, ended, waited, *rest = row
    total_us = int(ended or 0) - int(created or 0)
    times = timings_member(timings, waited, total_us) if timings else NULL
    head = b'{"status":"%s","attempts":%d,"timings":%s' % (
        _STATUS[state], int(attempts or 0), times,
    )  # fmt: skip
    if len(rest) == 1:
        return b'%s,"result":%s}' % (head, rest[0])
    result_type, error, stored, meta = rest
    if state != _SUCCEEDED:
        return b"%s,%s" % (head, _error_member(job_id, state, error))
    if stored:
        size = stored_result(stored.decode())
        return b'%s,"result_size":%d}' % (head, size.size if size else 0)
    return b'%s,"result":%s}' % (head, result_member(meta, result_type.decode()) or NULL)


_ERROR: Final = msgspec.json.Decoder(OutcomeError)


def _error_member(job_id: str, state: bytes, error: bytes) -> bytes:
    """Return the end of the outcome of a job that did not succeed."""
    job = Job(job_id, "", "", State(state.decode()), 0, error_json=error.decode("utf-8", "replace"))
    shown = error_of(job)
    if shown is not None:
        with suppress(msgspec.MsgspecError):
            shown = _ERROR.decode(error)
    return b'"error":%s}' % msgspec.json.encode({} if shown is None else shown)
