"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from api.prom import metrics_of
from api.replies import services_of

router = APIRouter(tags=["health"])


class InParts(Response):
    """An answer whose body is there, in parts that are sent one after the other.

    Starlette's own stream watches for the end of the client meanwhile, which costs more than this.
    """

    def __init__(self, parts: list[bytes], media_type: str) -> None:
        length = {"content-length": str(sum(map(len, parts)))}
        super().__init__(None, headers=length, media_type=media_type)
        self._parts = parts

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@router.get("/metrics", summary="Metrics in Prometheus' text format", response_class=Response)
async def metrics(request: Request) -> InParts:
    """Queues, workers and the API's processes as Redis has them now."""
    services = services_of(request)
    parts = services.exposition.text(await metrics_of(services))
    return InParts(parts, CONTENT_TYPE_LATEST)
