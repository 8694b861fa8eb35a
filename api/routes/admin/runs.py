"""Offline runs, as they tell of themselves: `/api/v1/runs`."""

from __future__ import annotations

from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from api.fastapi_bridge import caller_of, json_response, services_of
from headrace.errors import InvalidRequest, PayloadTooLarge
from headrace.jobs.ids import check_id
from headrace.runs.records import RunStatus

router = APIRouter(tags=["runs"])

BODY_MAX_BYTES: Final = 64 * 1024
_TOLD: Final = msgspec.json.Decoder(RunStatus)


@router.get("/api/v1/runs", summary="Offline runs, that told last first")
async def list_runs(request: Request) -> Response:
    """The newest 1,000; each as it told last."""
    return json_response({"runs": await services_of(request).runs.all(caller_of(request))})


@router.get("/api/v1/runs/{run_id}", summary="One offline run")
async def get_run(request: Request, run_id: str) -> Response:
    """As it told last."""
    return json_response(await services_of(request).runs.one(run_id, caller_of(request)))


@router.put("/api/v1/runs/{run_id}", summary="Tell how far a run is")
async def tell_run(request: Request, run_id: str) -> Response:
    """For the process that runs it; the answer says whether its end was asked for."""
    check_id(run_id)
    asked = request.query_params.get("begun", "0")
    if asked not in ("0", "1"):
        raise InvalidRequest("query parameter begun is neither 0 nor 1")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX_BYTES:
            raise PayloadTooLarge(f"the record of a run has more than {BODY_MAX_BYTES} bytes")
    try:
        told = _TOLD.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the record of a run cannot be read: {error}") from None
    records, caller = services_of(request).runs, caller_of(request)
    cancelled = await records.save_status(run_id, told, caller, begun=asked == "1")
    return json_response({"id": run_id, "cancel_requested": cancelled})


@router.post("/api/v1/runs/{run_id}/cancel", summary="End a run")
async def cancel_run(request: Request, run_id: str) -> Response:
    """Its process hears of it within seconds, and cancels what is under way."""
    return json_response(await services_of(request).runs.cancel(run_id, caller_of(request)))
