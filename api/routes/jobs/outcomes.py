"""How many jobs have ended, said briefly: `POST /api/v1/jobs/outcomes`; and `.../forget`.

For whoever reads as many as the workers can end: no more is read of a record, and said, than what a
row of results needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from api.http.messages import NO_STORE, Reply, Request
from api.routes.jobs.bulk_status import NULL, parts_of, read_ids
from api.services import Services
from headrace.jobs.failure import failure_of
from headrace.jobs.ids import are_ids, is_id
from headrace.jobs.job import Job, State, stored_result
from headrace.jobs.serialization import result_member, timings_member
from headrace.queue.job_queue import OUTCOMES_MAX_JOBS

_NONE: Final[frozenset[str]] = frozenset()
_STATUS: Final = {state.value.encode(): state.status.encode() for state in State}
_SUCCEEDED: Final = State.SUCCEEDED.value.encode()


async def read_outcomes(services: Services, request: Request, _: str) -> Reply:
    """The outcomes in the order of the ids; null where there is no such job."""
    request.query(_NONE)
    ids = await read_ids(services, request)
    named = ids
    if not are_ids(ids):
        # An id that none can have is unknown to Redis too, unless it reads another's key.
        named = [job_id if is_id(job_id) else "" for job_id in ids]
    only = request.caller.only

    async def read(part: Sequence[str]) -> list[bytes]:
        rows = await services.queue.outcomes(part, only)
        return [_outcome(job_id, row) for job_id, row in zip(part, rows, strict=True)]

    # Redis reads the next while the last are put into words.
    parts = parts_of(named, OUTCOMES_MAX_JOBS)
    said = chain.from_iterable(await asyncio.gather(*map(read, parts)))
    return Reply(200, b'{"outcomes":[%s]}' % b",".join(said), headers=(NO_STORE,))


async def forget_many(services: Services, request: Request, _: str) -> Reply:
    """Forget those of these jobs that have ended; how many they were."""
    request.query(_NONE)
    ids = await read_ids(services, request)
    forgotten = 0
    named = ids if are_ids(ids) else [job_id for job_id in ids if is_id(job_id)]
    for part in parts_of(named, OUTCOMES_MAX_JOBS):
        forgotten += await services.queue.forget(part, request.caller.only)
    return Reply(200, b'{"forgotten":%d}' % forgotten, headers=(NO_STORE,))


def _outcome(job_id: str, row: Any) -> bytes:
    if isinstance(row, int):
        return NULL
    if isinstance(row, bytes):
        return b'{"status":"%s"}' % _STATUS[row]
    state, attempts, timings, created, ended, *rest = row
    times = timings_member(timings, int(ended or 0) - int(created or 0)) if timings else NULL
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


def _error_member(job_id: str, state: bytes, error: bytes) -> bytes:
    """The rest of the object of a job that did not succeed."""
    job = Job(job_id, "", "", State(state.decode()), 0, error_json=error.decode("utf-8", "replace"))
    failure = failure_of(job)
    said = {} if failure is None else failure._asdict()
    return b'"error":%s}' % msgspec.json.encode(said)
