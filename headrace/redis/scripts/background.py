"""The script in background/: what its call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.redis import keys
from headrace.redis.scripts import Command, script


def requeue_dead(owner: str, state: bytes, dead: Iterable[str]) -> Command:
    """Report a live background worker, and requeue the tasks of dead ones; replies how many.

    Args:
        owner: the live worker; "" for none.
        state: what it reports of itself.
        dead: workers that are known to be dead.
    """
    return script("background/requeue_dead").call([], owner, state, keys.BACKGROUND_TTL_S, *dead)
