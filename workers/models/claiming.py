"""Which claims and which notifications a model needs now.

A claim prepares at most one batch, or two if the model has batch keys. What is claimed beyond that
would wait here while another worker is free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from headrace.redis.clock import US_PER_S
from headrace.redis.keys import STEPS
from workers.models.served_model import ServedModel
from workers.models.timing import batch_ends_in_s

#: A batch that ends sooner than this needs no notification meanwhile: its end claims anyway.
SHORT_BATCH_S: Final = 0.005


def claim_request(model: ServedModel) -> list[int]:
    """Return the room for jobs of each step, best first; empty if nothing should be claimed."""
    if not model.backlog.claimable or not model.serving:
        return []
    room = model.room
    return room if model.backlog.fills(room) else []


def whole_batch_waits(model: ServedModel, room: Sequence[int]) -> bool:
    """Return whether a whole batch is known to wait in Redis for this room."""
    size = model.batch_size_limit
    waiting = zip(room, model.backlog.waiting, strict=False)
    return max(room, default=0) >= size <= sum(left for free, left in waiting if free)


def whole_batch_unread(model: ServedModel) -> bool:
    """Return whether the unread claims are surely one full batch that can run at once.

    This is known only for models without costs and keys.
    """
    policy = model.batcher.policy
    bounded = policy.max_batch_cost is not None or policy.keyed
    others = model.prepared or model.pending_payloads.in_transfer
    return model.unread_jobs >= policy.max_batch_size and not bounded and not others


def needs_better(model: ServedModel) -> bool:
    """Return whether a claim would return better jobs than all that are prepared."""
    return not model.online and (not model.prepared or model.backlog.online)


def expects_online(model: ServedModel) -> bool:
    """Return whether online jobs will come that an idle replica could run at once."""
    if not model.idle:
        return False
    if model.backlog.claiming:
        return model.backlog.online_awaited
    return model.backlog.online and any(claim_request(model)[:-1])


def yield_us(model: ServedModel) -> int:
    """Return after which wait a claim takes a job before better ones, in us; 0 for never."""
    if model.overdue(time.monotonic()):
        return 0  # One such job is prepared already.
    return int(model.config.max_yield_s * US_PER_S)


def wants_notification(model: ServedModel, place: int, now: float) -> bool:
    """Return whether the next change of a queue list should wake the worker.

    Args:
        model: the model.
        place: the place in `STEPS` of the list's priority step, 0 for the best.
        now: the current time.
    """
    backlog = model.backlog
    # The reply to a pending claim counts what waits.
    if backlog.claiming or backlog.waiting[place] or backlog.paused:
        return False
    if not model.serving or not model.room[place]:
        return False
    # An online job must not wait for an offline batch that has not started.
    offline_next = place < len(STEPS) - 1 and model.prepared and not model.online
    return model.idle or bool(offline_next) or batch_ends_in_s(model, now) > SHORT_BATCH_S
