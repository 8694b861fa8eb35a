"""The webhooks of one job: `/api/v1/jobs/{id}/webhooks`."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from api.http.bodies import read_body
from api.http.messages import Reply, Request, json_reply
from api.routes.jobs.job import visible_job
from api.services import Services
from api.submission.decoding import JsonDecoder, read_query
from headrace.access.api_key import Caller
from headrace.errors import Conflict, WebhookNotFound
from headrace.jobs.ids import is_id
from headrace.queue.webhook_deliveries import Change, Delivery, PendingDelivery
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import DELIVERIES_LISTED
from headrace.schema.members import time_of
from headrace.schema.operation import (
    RecentDeliveries,
    RecentDelivery,
    WebhookAttempt,
    WebhookDeliveries,
    WebhookDelivery,
)
from headrace.webhooks.endpoint import shown

PATH: Final = "/api/v1/jobs/{job_id}/webhooks"
RECENT: Final = "/api/v1/webhooks"
BODY_LIMIT_BYTES: Final = 4096
#: A delivery may change at the same time; it is then read again, at most this often.
TRIES: Final = 5


class WebhookRedelivery(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a redeliver."""

    id: Annotated[str | None, Meta(description="The delivery; by default the newest.")] = None


class RecentQuery(msgspec.Struct):
    """The query of the deliveries of all jobs."""

    state: Annotated[
        Literal["delivered", "failed", "pending"] | UnsetType,
        Meta(description="Only deliveries in this state."),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


_REDELIVERY: Final = JsonDecoder(WebhookRedelivery)


async def list_deliveries(services: Services, request: Request, job_id: str) -> Reply:
    """List the job's deliveries with their attempts, the oldest first."""
    visible = await _visible(services, request.caller, job_id)
    deliveries = [pending.delivery for pending in visible.values()]
    deliveries.sort(key=lambda delivery: delivery.created_us)
    return json_reply(WebhookDeliveries(job_id, [_shown(delivery) for delivery in deliveries]))


async def list_recent(services: Services, request: Request) -> Reply:
    """List the webhooks of all jobs that were sent last: failing ones first, then the newest."""
    query = read_query(request, RecentQuery)
    # Where none is left out, no more are read than are shown.
    whole = query.state is UNSET and request.caller.sees_all
    count = query.limit if whole else DELIVERIES_LISTED
    found: list[Delivery] = []
    for failing in (True, False):
        newest = await services.webhook_deliveries.newest(count, failing=failing)
        found += [delivery for delivery in newest if request.caller.may_see(delivery.owner)]
    if query.state is not UNSET:
        found = [delivery for delivery in found if delivery.state == query.state]
    shown = [
        RecentDelivery(job=one.job, model=one.model, **structs.asdict(_shown(one)))
        for one in found[: query.limit]
    ]
    return json_reply(RecentDeliveries(shown))


async def redeliver(services: Services, request: Request, job_id: str) -> Reply:
    """Send a delivery again within a second, under the same id and with all its retries."""
    body = await read_body(request, BODY_LIMIT_BYTES, fixed=True)
    wanted = _REDELIVERY.decode(body).id if body.strip() else None
    for _ in range(TRIES):
        visible = await _visible(services, request.caller, job_id)
        name = wanted or max(
            visible, key=lambda name: visible[name].delivery.created_us, default=""
        )
        if name not in visible:
            raise WebhookNotFound(
                f"job {job_id[:128]} has no webhook delivery {name[:64]!r}"
                if name
                else f"job {job_id[:128]} has no webhook delivery yet",
                hint=f"GET {PATH.replace('{job_id}', job_id[:128])} lists them.",
            )
        now_us = time.time_ns() // 1000
        again = msgspec.structs.replace(
            visible[name].delivery.becoming("pending", now_us),
            until_us=now_us + services.settings.webhook_retry_s * US_PER_S,
            by_hand=True,
        )
        ttl_s = services.settings.webhook_retry_s + services.settings.webhook_log_ttl_s
        saved = await services.webhook_deliveries.save(
            visible[name], Change(again, delay_s=0), ttl_s=ttl_s
        )
        if isinstance(saved, PendingDelivery):
            return json_reply(_shown(again), 202)
    raise Conflict("the webhook is being sent at the moment", hint="Read its outcome.")


async def _visible(services: Services, caller: Caller, job_id: str) -> dict[str, PendingDelivery]:
    """Return the job's deliveries that the caller may see; they outlive its record."""
    log = await services.webhook_deliveries.read(job_id) if is_id(job_id) else None
    visible = {
        name: pending
        for name, pending in (log.deliveries if log is not None else {}).items()
        if caller.may_see(pending.delivery.owner)
    }
    if not visible:
        await visible_job(services, caller, job_id)
    return visible


def _shown(delivery: Delivery) -> WebhookDelivery:
    return WebhookDelivery(
        id=delivery.id,
        type=delivery.type,
        url=shown(delivery.url),
        state=delivery.state,
        created_at=time_of(delivery.created_us),
        next_attempt_at=time_of(delivery.next_us) if delivery.next_us else None,
        tries=delivery.tries,
        attempts=[
            WebhookAttempt(
                at=time_of(tried.at_us),
                duration_ms=tried.ms,
                status=tried.status or None,
                error=tried.error or None,
            )
            for tried in delivery.attempts
        ],
    )
