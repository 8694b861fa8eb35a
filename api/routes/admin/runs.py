"""Offline runs: `/api/v1/runs`."""

from __future__ import annotations

from typing import Final

import msgspec

from api.http.bodies import read_body
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.errors import InvalidRequest
from headrace.jobs.ids import check_id
from headrace.runs.records import RunStatus

BODY_MAX_BYTES: Final = 64 * 1024
_QUERY: Final = frozenset({"begun"})
_STATUS: Final = msgspec.json.Decoder(RunStatus)


async def list_runs(services: Services, request: Request) -> Reply:
    """List the 1,000 runs that reported last, each as it reported."""
    return json_reply({"runs": await services.runs.all(request.caller)})


async def get_run(services: Services, request: Request, run_id: str) -> Reply:
    """Return a run as it last reported."""
    return json_reply(await services.runs.one(run_id, request.caller))


async def put_run(services: Services, request: Request, run_id: str) -> Reply:
    """Record a run's report; the answer has whether its cancellation is requested."""
    check_id(run_id)
    begun = request.query(_QUERY, ignore_unknown=True).get("begun", "0")
    if begun not in ("0", "1"):
        raise InvalidRequest("query parameter begun is neither 0 nor 1")
    body = await read_body(request, BODY_MAX_BYTES, fixed=True)
    try:
        status = _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the record of a run cannot be read: {error}") from None
    cancelled = await services.runs.save_status(run_id, status, request.caller, begun=begun == "1")
    return json_reply({"id": run_id, "cancel_requested": cancelled})


async def cancel_run(services: Services, request: Request, run_id: str) -> Reply:
    """Request the end of a run; its process stops within seconds and cancels its jobs."""
    return json_reply(await services.runs.cancel(run_id, request.caller))
