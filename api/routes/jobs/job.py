"""One job: `GET` and `DELETE /api/v1/jobs/{id}`, `GET /api/v1/jobs/{id}/result`."""

from __future__ import annotations

from typing import Final

import msgspec

from api.http.messages import NO_STORE, Header, Reply, Request, StreamingReply
from api.http.problems import job_problem
from api.routes.jobs.submit import RETRY_AFTER
from api.services import Services
from api.submission.results import result_reply
from api.submission.submit import wait_for_end
from api.submission.waiting import preferred_wait_s, query_wait_s
from headrace.access.api_key import Caller
from headrace.errors import JobNotFound
from headrace.jobs.failure import error_of
from headrace.jobs.ids import is_id
from headrace.jobs.job import Job, State
from headrace.jobs.serialization import job_object

_QUERY: Final = frozenset({"wait"})
_NONE: Final[frozenset[str]] = frozenset()


async def get_job(services: Services, request: Request, job_id: str) -> Reply:
    """Return the job object; with a wait, once the job has ended or the wait is over."""
    job, applied = await _read(services, request, job_id)
    if job.state.final:
        return Reply(200, job_object(job), headers=(NO_STORE, *applied))
    return await _not_yet(services, job, applied)


async def get_result(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Return the output of the handler; for a failed job, its problem."""
    job, applied = await _read(services, request, job_id)
    if not job.state.final:
        return await _not_yet(services, job, applied)
    failure = error_of(job)
    if failure is not None:
        return job_problem(job, failure, request.path)
    return await result_reply(services, request, job, applied)


async def cancel_job(services: Services, request: Request, job_id: str) -> Reply:
    """Cancel a job; `outcome` in the answer is the effect."""
    request.query(_NONE)
    outcome = await services.queue.cancel_one(_checked(job_id), request.caller.only)
    if outcome == "unknown":
        raise _unknown(job_id)
    if outcome == "removed":
        status = State.CANCELLED.status
    else:
        job = await services.queue.read(job_id)
        if job is None or not request.caller.may_see(job.key):
            raise _unknown(job_id)
        status = job.state.status
    body = msgspec.json.encode({"id": job_id, "outcome": outcome, "status": status})
    return Reply(202 if outcome == "asked" else 200, body, headers=(NO_STORE,))


async def _read(
    services: Services, request: Request, job_id: str
) -> tuple[Job, tuple[Header, ...]]:
    """Read the job, and wait for its end if the request wants that."""
    max_wait_s = services.settings.max_wait_s
    wait_s = query_wait_s(request.query(_QUERY).get("wait"), max_wait_s)
    if wait_s is None:
        wait_s = preferred_wait_s(request.header(b"prefer"), max_wait_s)
    applied: tuple[Header, ...] = ()
    if wait_s is not None:
        applied = ((b"preference-applied", b"wait=%g" % wait_s),)
    job = await visible_job(services, request.caller, job_id)
    if wait_s and not job.state.final:
        job = await wait_for_end(services, job, request.receive, wait_s)
    return job, applied


async def _not_yet(services: Services, job: Job, applied: tuple[Header, ...]) -> Reply:
    has_replica = await services.model_statuses.has_ready(job.model)
    body = job_object(job, has_replica=has_replica)
    return Reply(202, body, headers=(NO_STORE, RETRY_AFTER, *applied))


async def visible_job(services: Services, caller: Caller, job_id: str) -> Job:
    """Return the job of an id.

    Raises:
        JobNotFound: no job has this id, or the caller may not see it.
        BrokerUnavailable: Redis does not answer.
    """
    job = await services.queue.read(_checked(job_id))
    if job is None or not caller.may_see(job.key):
        raise _unknown(job_id)
    return job


def _checked(job_id: str) -> str:
    if not is_id(job_id):
        raise _unknown(job_id)
    return job_id


def _unknown(job_id: str) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job_id[:128]!r}",
        hint="It never existed, or its result_ttl has passed since it ended.",
    )
