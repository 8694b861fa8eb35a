"""The queues: `GET /api/v1/queues`; pause, resume and purge one."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.config.suggestions import did_you_mean
from headrace.errors import QueueNotFound
from headrace.jobs.ids import VERSION
from headrace.queue.job_queue import Depth
from headrace.redis import keys
from headrace.schema.operation import Queue, QueuePurge, Queues, VersionQueue

_VERSION: Final = re.compile(VERSION)


class QueuePause(msgspec.Struct):
    """Whether a queue is paused."""

    name: str
    paused: bool


async def list_queues(services: Services, _: Request) -> Reply:
    """List one queue per model; a Celery client gives its `name` as `queue=`."""
    models = services.catalog.served
    depths = await services.queue.depths([model.queue for model in models])
    paused = await services.queue.paused()
    versions = await _version_queues(services, paused)
    queues = [
        Queue(
            **_waiting(depth),
            model=model.name,
            version=model.version,
            paused=model.queue in paused,
            max_queue_depth=model.max_queue_depth,
            tokens=depth.tokens if model.counts_tokens else None,
            max_queued_tokens=model.max_queued_tokens,
            versions=versions[model.name],
        )
        for model, depth in zip(models, depths, strict=True)
    ]
    return json_reply(Queues(queues))


async def _version_queues(services: Services, paused: set[str]) -> dict[str, list[VersionQueue]]:
    """Return the queues of versions in use, by model."""
    names = [model.name for model in services.catalog.served]
    found: dict[str, list[VersionQueue]] = {name: [] for name in names}
    versions = zip(names, await services.queue.versions(names), strict=True)
    pairs = [(name, version) for name, several in versions for version in several]
    queues = [keys.version_queue(name, version) for name, version in pairs]
    for (name, version), depth in zip(pairs, await services.queue.depths(queues), strict=True):
        is_paused = bool(paused & {depth.queue, keys.queue_name(name)})
        found[name].append(VersionQueue(**_waiting(depth), version=version, paused=is_paused))
    return found


def _waiting(depth: Depth) -> dict[str, Any]:
    return {
        "name": depth.queue,
        "depth": {str(step): count for step, count in depth.waiting.items()},
        "scheduled": depth.scheduled,
        "in_flight": depth.in_flight,
        "dead_letters": depth.dead,
        "oldest_age_s": depth.oldest_age_s,
    }


async def pause_queue(services: Services, _: Request, name: str) -> Reply:
    """Stop claims from a queue; running jobs continue and submits are accepted."""
    return await _pause(services, name, paused=True)


async def resume_queue(services: Services, _: Request, name: str) -> Reply:
    """Allow claims from a queue again; workers notice it within a second."""
    return await _pause(services, name, paused=False)


async def purge_queue(services: Services, request: Request, name: str) -> Reply:
    """Cancel all waiting and scheduled jobs of a queue; running jobs continue."""
    cancelled = await services.queue.purge(_known(services, name))
    request.noted = f"{cancelled} jobs cancelled"
    return json_reply(QueuePurge(name, cancelled))


async def _pause(services: Services, name: str, *, paused: bool) -> Reply:
    await services.queue.pause(_known(services, name), paused)
    return json_reply(QueuePause(name, paused))


def _known(services: Services, name: str) -> str:
    """Return the name of a queue; raise QueueNotFound if no registered model has it."""
    queues = [model.queue for model in services.catalog.served]
    model, version = keys.model_of(name)
    # A version that has no queue yet, because no job has asked for it, may be paused before.
    own = keys.queue_name(model) if _VERSION.fullmatch(version) else name
    if own not in queues:
        raise QueueNotFound(
            f"there is no queue {name[:128]!r}{did_you_mean(name[:128], queues)}",
            hint="GET /api/v1/queues lists them.",
        )
    return name
