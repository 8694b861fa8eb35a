"""When a job is tried again: exponential backoff with full jitter.

The n-th retry comes after a random time between 0 and `base * 2^(n-1)`, at most `max_s`, so that
jobs which failed together do not return together (AWS architecture blog, 2015). The job waits in
Redis. For jobs that were lost with their process, `lib/release.lua` uses the same rule.
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
        max_retries: how often a job is retried after retryable errors.
        base_s: the limit of the first wait.
        max_s: the limit of every wait.
    """

    max_retries: int = 0
    base_s: float = RETRY_BACKOFF_S
    max_s: float = RETRY_BACKOFF_MAX_S

    def for_job(self, message: Message | None) -> RetryPolicy:
        """Return the policy of a job: the options in its message, else this policy."""
        if message is None:
            return self
        own = (message.max_retries, message.retry_backoff_s, message.retry_backoff_max_s)
        if own == (None, None, None):
            return self
        default = (self.max_retries, self.base_s, self.max_s)
        retries, base_s, most_s = (
            fallback if value is None else value
            for value, fallback in zip(own, default, strict=True)
        )
        return RetryPolicy(int(retries), base_s, most_s)

    def bound_s(self, retries: int) -> float:
        """Return the longest wait of a job that was retried `retries` times before."""
        return min(self.max_s, self.base_s * 2.0**retries)

    def retry_us(self, retries: int, chance: random.Random = _CHANCE) -> str:
        """Return the wait in microseconds, or DEAD if no retries are left, for jobs/settle.lua.

        Args:
            retries: how often the job was retried before.
            chance: the source of the jitter.
        """
        if retries >= self.max_retries:
            return DEAD
        return str(int(chance.uniform(0, self.bound_s(retries)) * US_PER_S))

    def loss_arguments(self, max_deliveries: int) -> str:
        """Return the `losses` argument of the scripts that release lost jobs."""
        base_us, most_us = self.backoff_us
        return f"{max_deliveries} {base_us} {most_us}"

    @property
    def backoff_us(self) -> tuple[int, int]:
        """The limits of the first wait and of every wait, in microseconds."""
        return int(self.base_s * US_PER_S), int(self.max_s * US_PER_S)
