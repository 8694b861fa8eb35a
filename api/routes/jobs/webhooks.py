"""The webhooks of one job: `/api/v1/jobs/{id}/webhooks`."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from api.fastapi_bridge import caller_of, json_response, services_of
from api.http import messages
from api.http.bodies import read_body
from api.routes.jobs.job import visible_job
from headrace.errors import Conflict, InvalidRequest, WebhookNotFound
from headrace.jobs.ids import is_id
from headrace.jobs.job import iso
from headrace.queue.webhook_deliveries import Attempt, Change, Delivery, PendingDelivery
from headrace.redis.clock import US_PER_S
from headrace.webhooks.endpoint import shown

router = APIRouter(tags=["jobs"])

PATH: Final = "/api/v1/jobs/{job_id}/webhooks"
BODY_LIMIT_BYTES: Final = 4096
#: A delivery that is tried at that moment changes; it is looked at again.
TRIES: Final = 5


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None


_NAMED: Final = msgspec.json.Decoder(_Named)


@router.get(PATH, summary="What webhooks were told of a job")
async def list_deliveries(request: Request, job_id: str) -> Response:
    """Each delivery with its tries, the oldest first."""
    found = await _visible(request, job_id)
    said = sorted((one.delivery for one in found.values()), key=lambda one: one.created_us)
    return json_response({"job": job_id, "deliveries": [_said(delivery) for delivery in said]})


@router.post(PATH + "/redeliver", summary="Tell a webhook again")
async def redeliver(request: Request, job_id: str) -> Response:
    """The one that is named, or the newest: with the same id, and time for retries anew."""
    wanted = await _wanted(request)
    services = services_of(request)
    for _ in range(TRIES):
        found = await _visible(request, job_id)
        name = wanted or max(found, key=lambda name: found[name].delivery.created_us, default="")
        if name not in found:
            raise WebhookNotFound(
                f"job {job_id[:128]} has no webhook delivery {name[:64]!r}"
                if name
                else f"no webhook was told of job {job_id[:128]} yet",
                hint=f"GET {PATH.replace('{job_id}', job_id[:128])} lists them.",
            )
        now_us = time.time_ns() // 1000
        again = msgspec.structs.replace(
            found[name].delivery.becoming("pending", now_us),
            until_us=now_us + services.settings.webhook_retry_s * US_PER_S,
        )
        ttl_s = services.settings.webhook_retry_s + services.settings.webhook_log_ttl_s
        if (
            await services.webhook_deliveries.save(
                found[name], Change(again, delay_s=0), ttl_s=ttl_s
            )
            is None
        ):
            return json_response(_said(again), 202)
    raise Conflict("the webhook is being told at the moment", hint="Look what came of it.")


async def _wanted(request: Request) -> str:
    """The delivery that the body names; "" for none."""
    body = await read_body(messages.Request(request.scope, request.receive), BODY_LIMIT_BYTES)
    if not body.strip():
        return ""
    try:
        return _NAMED.decode(body).id or ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the body cannot be read: {error}", hint='Send {"id": "msg_…"}, or nothing.'
        ) from None


async def _visible(request: Request, job_id: str) -> dict[str, PendingDelivery]:
    """The job's deliveries that exist for whoever asks; they outlive its record.

    Raises:
        JobNotFound: there are none, and no such job.
    """
    services, caller = services_of(request), caller_of(request)
    log = await services.webhook_deliveries.read(job_id) if is_id(job_id) else None
    found = {
        name: kept
        for name, kept in (log.deliveries if log is not None else {}).items()
        if caller.may_see(kept.delivery.owner)
    }
    if not found:
        await visible_job(services, caller, job_id)
    return found


def _said(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "type": delivery.type,
        "url": shown(delivery.url),
        "state": delivery.state,
        "created_at": iso(delivery.created_us),
        "next_attempt_at": iso(delivery.next_us) if delivery.next_us else None,
        "tries": delivery.tries,
        "attempts": [_attempt(attempt) for attempt in delivery.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "at": iso(attempt.at_us),
        "duration_ms": attempt.ms,
        "status": attempt.status or None,
        "error": attempt.error or None,
    }
