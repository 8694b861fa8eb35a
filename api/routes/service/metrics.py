"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from api.http.messages import ChunkedReply, Request
from api.observability.metrics import metrics_of
from api.services import Services

_TYPE: Final = CONTENT_TYPE_LATEST.encode()


async def get_metrics(services: Services, _request: Request, _name: str) -> ChunkedReply:
    """Queues, workers and the API's processes as Redis has them now.

    Nothing is compressed, though Prometheus would take it: at zlib's fastest that takes two thirds
    of what all the rest does.
    """
    return ChunkedReply(200, services.exposition.text(await metrics_of(services)), _TYPE)
