"""Which prompts have a part in the next step of transformers' continuous batching.

Its own scheduler gives the rest of a step to the first long prompt, so the short ones behind it
wait until its end. If the memory runs out, it puts requests back by its own order, or fails. In
this one the oldest and the cheapest prompts go first in turns. It leaves paused prompts out, and
reports when no request can go on (transformers 5.23, generation/continuous_batching/scheduler.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from transformers.generation.continuous_batching.requests import RequestStatus
from transformers.generation.continuous_batching.scheduler import (
    SCHEDULER_MAPPING,
    FIFOScheduler,
)
from typing_extensions import override

_NUMBERS: Final = itertools.count()


@dataclass(slots=True)
class Control:
    """What an engine and the scheduler of its manager read of each other.

    Attributes:
        paused: the requests that have no part in a step.
        stuck: no request could get the memory that it needs.
    """

    paused: Set[str] = frozenset()
    stuck: bool = False


def register(control: Control) -> str:
    """Make a scheduler with this control known to transformers; return its name there."""
    name = f"headrace {next(_NUMBERS)}"
    SCHEDULER_MAPPING[name] = partial(FairScheduler, control)
    return name


class FairScheduler(FIFOScheduler):  # type: ignore[misc] # untyped
    """Gives each step to all answers that are written, and to prompts by turns."""

    def __init__(self, control: Control, *args: Any, **options: Any) -> None:
        self._control = control
        self._cheapest_next = False
        super().__init__(*args, **options)

    @override
    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[Any, bool, int, int]:
        removed: set[str] = set()
        candidates = self._candidates(token_budget)
        found, lacking, *rest = self._process_candidates(
            candidates, token_budget, cache_budget, removed
        )
        if lacking and self.cache.evict_cached_blocks() and not found:
            # Blocks of prompts that have ended were kept for others that begin alike.
            self.cache.pool.try_to_free_sectors()
            found, lacking, *rest = self._process_candidates(
                candidates, token_budget, cache_budget, removed
            )
        self._cleanup_waiting_queue(removed)
        # The manager would put some of them back; the engine's owner does.
        self.starved_requests: list[Any] = []
        self._control.stuck = bool(lacking and not found)
        fast, queries, reads = rest
        return (found, fast, queries, reads) if found else ([], fast, 0, 0)

    def _candidates(self, tokens: int) -> list[Any]:
        """Return the requests for a step of so many tokens, the first one first."""
        paused = self._control.paused
        active = [one for one in self.active_requests.values() if one.request_id not in paused]
        answers = [one for one in active if one.status == RequestStatus.DECODING]
        prompts = [one for one in active if one.status == RequestStatus.PREFILLING]
        prompts += [one for one in self._get_waiting_candidates() if one.request_id not in paused]
        if len(prompts) > 1:
            if self._cheapest_next:
                prompts = _cheapest(prompts, tokens - len(answers))
            self._cheapest_next = not self._cheapest_next
        return answers + prompts


def _cheapest(prompts: list[Any], tokens: int) -> list[Any]:
    """Return the cheapest prompts that fit whole into a step, which is then short; else all."""
    prompts = sorted(prompts, key=lambda one: len(one.remaining_prefill_tokens))
    totals = itertools.accumulate(len(one.remaining_prefill_tokens) for one in prompts)
    whole = [one for one, total in zip(prompts, totals, strict=True) if total <= tokens]
    return whole or prompts
