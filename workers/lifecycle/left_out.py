"""Sweeps the queues of the models that this worker leaves out.

All workers that run may leave out the same model. Then no other worker returns the jobs of a lost
one to their queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.config.model.catalog import ModelConfig
from workers.jobs.settlement import RetryPolicy
from workers.leases.manager import LeaseManager

#: How often. Workers that serve a model sweep its queues each second.
LEFT_OUT_SWEEP_S: Final = 5.0


class LeftOutModels:
    """The models that one worker leaves out."""

    def __init__(self, leases: LeaseManager) -> None:
        self._leases = leases
        self._losses: dict[str, str] = {}
        self._sweep_at = 0.0

    def want(self, configs: Iterable[ModelConfig]) -> None:
        """Set the versions that are left out, one of each model."""
        settings = self._leases.settings
        self._losses = {
            config.queue: RetryPolicy(
                base_s=config.retry_backoff_s, max_s=config.retry_backoff_max_s
            ).loss_arguments(settings.max_deliveries, settings.failures_kept)
            for config in configs
        }

    def sweep(self, now: float) -> None:
        """Sweep the queues of all versions, if that is due."""
        if self._losses and now >= self._sweep_at:
            self._sweep_at = now + LEFT_OUT_SWEEP_S
            for queue, losses in self._losses.items():
                self._leases.sweep_left_out(queue, losses, now)
