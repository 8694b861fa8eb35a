"""Jobs that this worker holds and that nothing is to come of any more: cancelled, or another's.

Who is not handed over yet leaves its batcher or its fetch at once, and its mates run without it. Of
who is, the model process is told, which leaves it out where it can; the rest is decided when it is
settled. What a cancel could not tell is learnt from the renewal of the leases.
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


class Cancellation:
    """Lets go of jobs.

    Args:
        models: the models.
        leases: where a cancelled job is settled.
    """

    def __init__(self, models: Sequence[ServedModel], leases: LeaseManager) -> None:
        self._models = {model.config.name: model for model in models}
        self._leases = leases
        self._unsure: dict[str, ServedModel] = {}
        self._turned_at: float | None = None

    def leases_in_doubt(self, now: float) -> bool:
        """Whether leases may have run out unseen, so that nothing is to be handed over now.

        So it is after this worker was stopped for a while, until the answers to the next renewal
        are here. An outage of Redis is no such while: nobody else can have claimed anything.

        Args:
            now: the time, at the begin of a turn of the loop.
        """
        turned_at, self._turned_at = self._turned_at, now
        if not self._leases.connected:
            self._unsure.clear()
            return False
        if turned_at is not None and now - turned_at > self._leases.limits.lease_ttl_s * 2 / 3:
            # Of a host that was suspended no worker is to reap what its neighbours go on with.
            self._leases.delay_reaping(now)
            self._unsure = {model.config.name: model for model in self._models.values()}
            for model in self._models.values():
                self.renew(model)
        return any(model.held for model in self._unsure.values())

    def renew(self, model: ServedModel) -> None:
        """Renew the leases of a lane, and let go of what that shows to be over."""

        def answered(jobs: list[LeasedJob], codes: list[Any]) -> None:
            self._unsure.pop(model.config.name, None)
            model.stats.count(worker_report.RENEWED, sum(int(code) != FENCED for code in codes))
            for job, code in zip(jobs, codes, strict=True):
                if model.held.get(job.id) is not job or job.dropped:
                    continue
                if int(code) == CANCEL_REQUESTED:
                    self._cancel(model, job)
                elif int(code) == FENCED:
                    self._lose(model, job)

        self._leases.renew(model, answered)

    def read_cancels(self, published: Sequence[bytes]) -> bool:
        """Read what jobs/cancel.lua published: model, id and token of each job; whether it has."""
        for body in published:
            try:
                self._hear(body)
            except ValueError as error:
                # The renewal of the leases says it too.
                logger.warning("what was published of cancels cannot be read: %s", error)
        return bool(published)

    def _hear(self, body: bytes) -> None:
        for name, job_id, token in read_cancel_notices(body):
            model = self._models.get(name)
            if model is None:
                continue
            job = model.held.get(job_id)
            if job is None or job.token != token:
                if model.backlog.claiming or model.claim_replies:
                    model.cancelled_tokens.add(token)
            elif not job.dropped:
                self._cancel(model, job)

    def _cancel(self, model: ServedModel, job: LeasedJob) -> None:
        if self._taken_out(model, job):
            self._leases.settle(model, [model.cancel(job)])
        elif job.dispatched_at:
            job.dropped = "cancelled"
            for replica in model.replicas:
                replica.drop(job)

    def _lose(self, model: ServedModel, job: LeasedJob) -> None:
        logger.warning(
            "the job is another's by now; this worker lets go of it",
            extra={"model": model.config.name, "job": job.id},
        )
        taken_out = self._taken_out(model, job)
        if not taken_out and not job.dispatched_at:
            return  # its settlement or its release is under way, and says so too
        job.dropped = "lost"
        if taken_out:
            model.forget([job])
        else:
            for replica in model.replicas:
                replica.drop(job)

    @staticmethod
    def _taken_out(model: ServedModel, job: LeasedJob) -> bool:
        """Take an item out that was not handed over yet; whether it was to be."""
        if job.dispatched_at:
            return False
        if model.batcher.remove(job):
            model.deadlines.forget([job])
            return True
        if job.token in model.pending_payloads.in_transfer:
            model.pending_payloads.transfer_done(job)
            return True
        return False
