"""Offline runs: `/api/v1/runs`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.jobs.ids import check_id
from headrace.schema.runs import RunReceipt, Runs, RunStatus

BODY_MAX_BYTES: Final = 64 * 1024
_STATUS: Final = JsonDecoder(RunStatus)


class RunQuery(msgspec.Struct):
    """The query of a report."""

    begun: Annotated[
        Literal["0", "1"],
        Meta(
            description="1 when a process has just started it: an earlier cancellation is dropped."
        ),
    ] = "0"


async def list_runs(services: Services, request: Request) -> Reply:
    """List the 1,000 runs that reported last, each as it reported."""
    return json_reply(Runs(await services.runs.all(request.caller)))


async def get_run(services: Services, request: Request, run_id: str) -> Reply:
    """Return a run as it last reported."""
    return json_reply(await services.runs.one(run_id, request.caller))


async def put_run(services: Services, request: Request, run_id: str) -> Reply:
    """Record a run's report; the answer has whether its cancellation is requested."""
    check_id(run_id)
    begun = read_query(request, RunQuery, ignore_unknown=True).begun == "1"
    status = await _STATUS.read(request, BODY_MAX_BYTES)
    cancelled = await services.runs.save_status(run_id, status, request.caller, begun=begun)
    return json_reply(RunReceipt(run_id, cancelled))


async def cancel_run(services: Services, request: Request, run_id: str) -> Reply:
    """Request the end of a run; its process stops within seconds and cancels its jobs."""
    return json_reply(await services.runs.cancel(run_id, request.caller))
