"""The queues: `GET /api/v1/queues`; pause, resume and purge one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.fastapi_bridge import json_response, services_of
from api.services import Services
from headrace.config.suggestions import did_you_mean
from headrace.errors import QueueNotFound

router = APIRouter(tags=["queues"])


@router.get("/api/v1/queues", summary="Depth, age and jobs in flight of every queue")
async def list_queues(request: Request) -> Response:
    """One queue a model; `name` is what a Celery client gives as `queue=`."""
    services = services_of(request)
    models = services.catalog.served
    depths = await services.queue.depths([model.queue for model in models])
    paused = await services.queue.paused()
    return json_response(
        {
            "queues": [
                {
                    "name": depth.queue,
                    "model": model.name,
                    "version": model.version,
                    "depth": {str(step): count for step, count in depth.waiting.items()},
                    "paused": model.queue in paused,
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


@router.post("/api/v1/queues/{name}/pause", summary="Let no worker claim from a queue")
async def pause_queue(request: Request, name: str) -> Response:
    """Jobs that run go on; submits are taken as long as there is room."""
    return await _pause(services_of(request), name, paused=True)


@router.post("/api/v1/queues/{name}/resume", summary="Let workers claim from a queue again")
async def resume_queue(request: Request, name: str) -> Response:
    """Workers see it within a second."""
    return await _pause(services_of(request), name, paused=False)


@router.post("/api/v1/queues/{name}/purge", summary="Cancel all that waits in a queue")
async def purge_queue(request: Request, name: str) -> Response:
    """Also what is scheduled; jobs that run go on."""
    services = services_of(request)
    return json_response(
        {"name": name, "cancelled": await services.queue.purge(_known(services, name))}
    )


async def _pause(services: Services, name: str, *, paused: bool) -> Response:
    await services.queue.pause(_known(services, name), paused)
    return json_response({"name": name, "paused": paused})


def _known(services: Services, name: str) -> str:
    """The queue's name, where a registered model is served from it.

    Raises:
        QueueNotFound: there is none.
    """
    queues = [model.queue for model in services.catalog.served]
    if name not in queues:
        raise QueueNotFound(
            f"there is no queue {name[:128]!r}{did_you_mean(name[:128], queues)}",
            hint="GET /api/v1/queues lists them.",
        )
    return name
