"""When a job is tried again: exponential backoff with full jitter.

The n-th retry comes after a time drawn evenly from 0 to `base * 2^(n-1)`, at the most `most`, so
that jobs which failed together do not come back together (AWS architecture blog, 2015). The waiting
itself is Redis'. For jobs that were lost with their process, `lib/release.lua` draws by the same
rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from headrace.config.model_options import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S
from headrace.jobs.message import Message
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import DEAD

_CHANCE: Final = random.Random()  # noqa: S311 - jitter


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a job is tried again.

    Attributes:
        max_retries: how often after an error that says that another try can help.
        base_s: the bound of the first wait.
        max_s: the bound of all.
    """

    max_retries: int = 0
    base_s: float = RETRY_BACKOFF_S
    max_s: float = RETRY_BACKOFF_MAX_S

    def for_job(self, message: Message | None) -> RetryPolicy:
        """The policy of a job, whose own wishes win."""
        if message is None:
            return self
        asked = (message.max_retries, message.retry_backoff_s, message.retry_backoff_max_s)
        if asked == (None, None, None):
            return self
        own = (self.max_retries, self.base_s, self.max_s)
        retries, base_s, most_s = (
            mine if theirs is None else theirs for theirs, mine in zip(asked, own, strict=True)
        )
        return RetryPolicy(int(retries), base_s, most_s)

    def bound_s(self, retries: int) -> float:
        """The longest wait of a job that was tried again so often before."""
        return min(self.max_s, self.base_s * 2.0**retries)

    def retry_us(self, retries: int, chance: random.Random = _CHANCE) -> str:
        """What jobs/settle.lua is told: the wait in microseconds, or DEAD.

        Args:
            retries: how often the job was tried again before.
            chance: where the jitter comes from.
        """
        if retries >= self.max_retries:
            return DEAD
        return str(int(chance.uniform(0, self.bound_s(retries)) * US_PER_S))

    def loss_arguments(self, max_deliveries: int) -> str:
        """What the scripts are told that give lost jobs back; see lib/release.lua."""
        base_us, most_us = self.backoff_us
        return f"{max_deliveries} {base_us} {most_us}"

    @property
    def backoff_us(self) -> tuple[int, int]:
        """Base and bound of the waits, in microseconds."""
        return int(self.base_s * US_PER_S), int(self.max_s * US_PER_S)
