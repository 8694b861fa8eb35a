"""The queues: `GET /api/v1/queues`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.replies import json_response, services_of

router = APIRouter(tags=["queues"])


@router.get("/api/v1/queues", summary="Depth, age and jobs in flight of every queue")
async def list_queues(request: Request) -> Response:
    """One queue a model; `name` is what a Celery client gives as `queue=`."""
    services = services_of(request)
    models = list(services.catalog.models.values())
    depths = await services.queue.depths([model.queue for model in models])
    return json_response(
        {
            "queues": [
                {
                    "name": depth.queue,
                    "model": model.name,
                    "version": model.version,
                    "depth": {str(step): count for step, count in depth.waiting.items()},
                    "scheduled": depth.scheduled,
                    "in_flight": depth.in_flight,
                    "dead_letters": depth.dead,
                    "max_queue_depth": model.max_queue_depth,
                    "oldest_age_s": depth.oldest_age_s,
                }
                for model, depth in zip(models, depths, strict=True)
            ]
        }
    )
