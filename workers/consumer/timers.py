"""When a lane has something to do next, and of which changes in Redis it wants to hear."""

from __future__ import annotations

from typing import Final

from headrace.redis.keys import STEPS
from workers.models.served_model import ServedModel
from workers.scheduling.staging import ends_in_s, stage_at

#: A batch expected to end sooner than this needs no wake-up meanwhile: its end claims anyway.
SHORT_BATCH_S: Final = 0.005


def wants_notification(model: ServedModel, place: int, now: float) -> bool:
    """Whether a lane is to be told of the next change of one of its lists.

    Args:
        model: the model.
        place: which of the steps of priority the list is, 0 being the best.
        now: the time.
    """
    known = model.backlog
    # The answer to a claim that is under way says what waits; to ask beside it is to wait for it.
    if known.claiming or known.waiting[place] or known.paused:
        return False
    if not model.serving or not model.room[place]:
        return False
    # What is better than all that is here must not wait for a batch that is not running yet.
    offline_next = place < len(STEPS) - 1 and len(model.batcher) and not model.batcher.online
    return model.idle or bool(offline_next) or ends_in_s(model, now) > SHORT_BATCH_S


def model_due_times(model: ServedModel, now: float, *, held: bool) -> list[float]:
    """The times at which something is to be done for a lane.

    Args:
        model: the model.
        now: the time.
        held: whether its batch waits for nothing but company: only then can a hold be over.
    """
    hold_until = model.hold_until if held else None
    at_times = (hold_until, model.next_due_at, stage_at(model, now), model.deadlines.next_at)
    moments = [at for at in at_times if at is not None]
    moments += [r.batch.deadline for r in model.replicas if r.batch is not None]
    return moments
