"""Many jobs by their ids: `POST /api/v1/jobs/status` and `POST /api/v1/jobs/cancel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from api.http.bodies import not_json, read_body, require_json
from api.http.messages import NO_STORE, Reply, Request
from api.services import Services
from api.submission.options import reworded
from headrace.access.api_key import Caller
from headrace.errors import InvalidRequest
from headrace.jobs.ids import is_id
from headrace.jobs.job import Job, State
from headrace.jobs.serialization import job_object
from headrace.queue.job_queue import VIEW_MAX_JOBS

IDS_MAX: Final = 1000
NULL: Final = b"null"
_NONE: Final[frozenset[str]] = frozenset()
_RESULTS: Final = frozenset({"results"})
_SAID: Final = {"0": False, "1": True}


class _Ids(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


_IDS: Final = msgspec.json.Decoder(_Ids)


class _Cancelled(msgspec.Struct):
    """What became of one job, as `DELETE` says it."""

    id: str
    outcome: str
    status: str


async def read_many(services: Services, request: Request, _: str) -> Reply:
    """The job objects in the order of the ids; null where there is no such job."""
    with_results = is_said(request.query(_RESULTS).get("results"), "results", default=True)
    ids = await read_ids(services, request)
    known = [job_id for job_id in ids if is_id(job_id)]
    jobs: dict[str, Job | None] = {}
    for part in parts_of(known):
        found = await services.queue.view(part, results=with_results)
        seen = (job if job and request.caller.may_see(job.key) else None for job in found)
        jobs.update(zip(part, seen, strict=True))
    said = [await said_of(services, jobs.get(job_id), with_results) for job_id in ids]
    return listed(said)


async def cancel_many(services: Services, request: Request, _: str) -> Reply:
    """What became of each job, in the order of the ids; null where there is no such job."""
    request.query(_NONE)
    ids = await read_ids(services, request)
    fates: dict[str, _Cancelled] = {}
    # Said once of each: the second word would be that it had ended.
    for part in parts_of([job_id for job_id in dict.fromkeys(ids) if is_id(job_id)]):
        fates.update(await _cancel(services, part, request.caller))
    said = [msgspec.json.encode(fates[i]) if i in fates else NULL for i in ids]
    return listed(said)


async def _cancel(services: Services, ids: Sequence[str], caller: Caller) -> dict[str, _Cancelled]:
    outcomes = dict(zip(ids, await services.queue.cancel(ids, caller.only), strict=True))
    fates = {}
    others = []
    for job_id, outcome in outcomes.items():
        if outcome == "removed":
            fates[job_id] = _Cancelled(job_id, outcome, State.CANCELLED.status)
        elif outcome != "unknown":
            others.append(job_id)
    for job in await services.queue.view(others, results=False) if others else ():
        if job is not None and caller.may_see(job.key):
            fates[job.id] = _Cancelled(job.id, outcomes[job.id], job.state.status)
    return fates


def is_said(text: str | None, name: str, *, default: bool) -> bool:
    """What a query parameter says that is 0 or 1.

    Raises:
        InvalidRequest: it is neither.
    """
    if text is None:
        return default
    if text not in _SAID:
        raise InvalidRequest(
            f"query parameter {name}: {text[:32]!r} is neither 0 nor 1",
            hint=f"Leave it out for {int(default)}.",
        )
    return _SAID[text]


async def said_of(services: Services, job: Job | None, with_result: bool) -> bytes:
    """The job object of a job among others, or null."""
    if job is None:
        return NULL
    has_replica = job.state is not State.QUEUED or await services.model_statuses.has_ready(
        job.model
    )
    return job_object(job, has_replica=has_replica, with_result=with_result)


def listed(said: Sequence[bytes]) -> Reply:
    """The answer with these jobs."""
    return Reply(200, b'{"jobs":[%s]}' % b",".join(said), headers=(NO_STORE,))


def parts_of(ids: Sequence[str], most: int = VIEW_MAX_JOBS) -> Iterator[Sequence[str]]:
    """The ids in parts, each of which a script may take at once."""
    for at in range(0, len(ids), most):
        yield ids[at : at + most]


async def read_ids(services: Services, request: Request) -> list[str]:
    """The ids that the body names.

    Raises:
        InvalidRequest: it is not `{"ids": [...]}`, or has too many.
    """
    require_json(request)
    body = await read_body(request, services.settings.body_limit_bytes)
    try:
        ids = _IDS.decode(body).ids
    except msgspec.ValidationError as error:
        raise reworded(error, "member", frozenset({"ids"})) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    if len(ids) > IDS_MAX:
        raise InvalidRequest(
            f"ids has {len(ids)} ids; at most {IDS_MAX} are taken at once",
            hint="Ask in several requests.",
        )
    return ids
