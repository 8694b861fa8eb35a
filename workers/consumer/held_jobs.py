"""The jobs that a worker holds: renews their leases, cancels jobs, and drops those it has lost.

Redis publishes a cancel to the worker that holds the job. The renewal of the leases finds a cancel
that was missed, and a job that another worker has claimed since.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.observability import worker_report
from headrace.redis.scripts.jobs import CANCEL_REQUESTED, FENCED, read_cancel_notices
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)


class HeldJobs:
    """Renews, cancels and drops the jobs of one worker.

    Args:
        models: the models.
        leases: settles cancelled jobs.
    """

    def __init__(self, models: Sequence[ServedModel], leases: LeaseManager) -> None:
        self._models = {model.config.name: model for model in models}
        self._leases = leases
        self._in_doubt: dict[str, ServedModel] = {}
        self._turned_at: float | None = None

    def leases_in_doubt(self, now: float) -> bool:
        """Return whether leases may have expired unnoticed, so that nothing may be dispatched.

        This is so after the worker was paused for most of a lease, until its leases are renewed.
        It is not so after an outage of Redis, because then no worker could claim the jobs.

        Args:
            now: the current time, at the beginning of a turn of the loop.
        """
        turned_at, self._turned_at = self._turned_at, now
        if not self._leases.connected:
            self._in_doubt.clear()
            return False
        if turned_at is not None and now - turned_at > self._leases.limits.lease_ttl_s * 2 / 3:
            # If the whole host was suspended, its other workers have yet to renew their leases.
            self._leases.delay_reaping(now)
            self._in_doubt = dict(self._models)
            for model in self._models.values():
                self.renew(model)
        return any(model.held for model in self._in_doubt.values())

    def renew(self, model: ServedModel) -> None:
        """Renew the leases of a model, and handle the cancelled and lost jobs that this finds."""

        def answered(jobs: list[LeasedJob], codes: list[Any]) -> None:
            self._in_doubt.pop(model.config.name, None)
            model.stats.count(worker_report.RENEWED, sum(int(code) != FENCED for code in codes))
            for job, code in zip(jobs, codes, strict=True):
                if model.held.get(job.id) is not job or job.dropped:
                    continue
                if int(code) == CANCEL_REQUESTED:
                    self._cancel(model, job.id, job.token)
                elif int(code) == FENCED:
                    model.lose(job)

        self._leases.renew(model, answered)

    def read_cancels(self, messages: Sequence[bytes]) -> bool:
        """Read the messages that jobs/cancel.lua published; return whether there were any."""
        for message in messages:
            try:
                notices = read_cancel_notices(message)
            except ValueError as error:
                # The renewal of the leases finds these cancels too.
                logger.warning("cancel message cannot be read: %s", error)
                continue
            for name, job_id, token in notices:
                if name in self._models:
                    self._cancel(self._models[name], job_id, token)
        return bool(messages)

    def _cancel(self, model: ServedModel, job_id: str, token: str) -> None:
        self._leases.settle(model, model.cancel(job_id, token))
