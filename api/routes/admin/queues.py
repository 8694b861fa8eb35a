"""The queues: `GET /api/v1/queues`; pause, resume and purge one."""

from __future__ import annotations

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.config.suggestions import did_you_mean
from headrace.errors import QueueNotFound


async def list_queues(services: Services, _: Request) -> Reply:
    """List one queue per model; a Celery client gives its `name` as `queue=`."""
    models = services.catalog.served
    depths = await services.queue.depths([model.queue for model in models])
    paused = await services.queue.paused()
    return json_reply(
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


async def pause_queue(services: Services, _: Request, name: str) -> Reply:
    """Stop claims from a queue; running jobs continue and submits are accepted."""
    return await _pause(services, name, paused=True)


async def resume_queue(services: Services, _: Request, name: str) -> Reply:
    """Allow claims from a queue again; workers notice it within a second."""
    return await _pause(services, name, paused=False)


async def purge_queue(services: Services, _: Request, name: str) -> Reply:
    """Cancel all waiting and scheduled jobs of a queue; running jobs continue."""
    cancelled = await services.queue.purge(_known(services, name))
    return json_reply({"name": name, "cancelled": cancelled})


async def _pause(services: Services, name: str, *, paused: bool) -> Reply:
    await services.queue.pause(_known(services, name), paused)
    return json_reply({"name": name, "paused": paused})


def _known(services: Services, name: str) -> str:
    """Return the name of a queue of a registered model.

    Raises:
        QueueNotFound: no registered model has this queue.
    """
    queues = [model.queue for model in services.catalog.served]
    if name not in queues:
        raise QueueNotFound(
            f"there is no queue {name[:128]!r}{did_you_mean(name[:128], queues)}",
            hint="GET /api/v1/queues lists them.",
        )
    return name
