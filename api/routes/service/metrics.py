"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from api.http.messages import ChunkedReply, Request
from api.observability.metrics import metrics_of
from api.services import Services

_TYPE: Final = CONTENT_TYPE_LATEST.encode()


async def get_metrics(services: Services, _: Request) -> ChunkedReply:
    """Return the metrics of queues, workers and API processes as Redis has them now.

    The answer is not compressed: even at zlib's fastest level that would take two thirds of the
    time of all the rest.
    """
    return ChunkedReply(200, services.exposition.text(await metrics_of(services)), _TYPE)
