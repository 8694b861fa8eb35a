"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.prom import read_snapshot
from api.replies import services_of

router = APIRouter(tags=["health"])


@router.get("/metrics", summary="Metrics in Prometheus' text format")
async def metrics(request: Request) -> Response:
    """Queues, workers and the API's processes as Redis has them now."""
    services = services_of(request)
    snapshot = await read_snapshot(services)
    body = generate_latest(snapshot)
    return Response(body, media_type=CONTENT_TYPE_LATEST)
