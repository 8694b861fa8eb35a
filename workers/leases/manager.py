"""A worker's leases in Redis: claims, settlements, releases, renewals and sweeps of its models.

Settlements and releases are resent after an outage; the fencing token makes a duplicate harmless.
If the reply to a claim was lost, the jobs that it leased are released on reconnect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.redis.backoff import MAX_S, Backoff
from headrace.redis.clock import US_PER_S
from headrace.redis.outages import DISCONNECTED
from headrace.redis.scripts import Command
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts.jobs import EXPIRE_MAX_JOBS, FENCED, POSTPONED, SETTLED, ClaimReply
from headrace.redis.traffic import TRAFFIC
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement
from workers.leases.connection import PipelinedConnection
from workers.leases.outbox import ANSWER_MAX_S, Outbox
from workers.leases.reap_clock import ReapClock
from workers.models.claiming import yield_us
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """The settings that the leases of a worker follow.

    Attributes:
        lease_ttl_s: how long a lease lasts without renewal.
        max_deliveries: how many model processes a job may crash while it runs alone.
        drain_timeout_s: how long a stop waits for running batches.
        result_ttl_s: how long the results of jobs from stock Celery clients are kept.
        job_index_max: how many of a model's newest jobs are indexed for lists; 0 for none.
    """

    lease_ttl_s: float
    max_deliveries: int
    drain_timeout_s: float
    result_ttl_s: int
    job_index_max: int = 0


class SettlementObserver(Protocol):
    """Gets what Redis has confirmed, while the model still holds the jobs."""

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        """Take the replies of jobs/settle.lua, one per settlement."""

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """Take the replies of jobs/release.lua, one per job."""


class LeaseManager:
    """The leases of one worker, over one connection.

    Args:
        owner: the name of this incarnation of the worker, written into each lease.
        connection: to Redis, not connected yet.
        limits: the settings.
        observer: gets the ends of jobs.

    Attributes:
        reconnect_at: when to try to connect again.
    """

    def __init__(
        self,
        owner: str,
        connection: PipelinedConnection,
        limits: LeaseLimits,
        observer: SettlementObserver,
    ) -> None:
        self.owner = owner
        self.limits = limits
        self._observer = observer
        self._connection = connection
        self._outbox = Outbox(connection)
        self._claim_lost = False
        # Fast enough to renew the leases before workers that are back already may reap them.
        self._backoff = Backoff(min(MAX_S, limits.lease_ttl_s / 3))
        self.reconnect_at = 0.0
        self._reap_clock = ReapClock(limits.lease_ttl_s)
        self._restored = False

    @property
    def connected(self) -> bool:
        """Whether Redis can be reached."""
        return self._restored and self._connection.connected

    @property
    def busy(self) -> bool:
        """Whether calls wait to be sent or for a reply."""
        return self._outbox.busy

    @property
    def reply_due_at(self) -> float:
        """When the oldest unanswered call counts as lost."""
        return self._outbox.reply_due_at

    def connect(self) -> None:
        """Connect, which may take seconds; then call `connection_restored` on the loop's thread.

        Raises:
            redis.RedisError, OSError: Redis is away.
        """
        self._connection.connect()

    def connection_restored(self, models: Iterable[ServedModel], now: float) -> None:
        """Go on after an outage, or begin."""
        self._restored = True
        self._reap_clock.connected(now)
        logger.info("connected to Redis")
        if self._claim_lost:
            for model in models:
                model.claim_ended()
                known = [job.token for job in model.held.values()]
                losses = self._losses(model)
                self.send(
                    job_scripts.release_owner(model.queue, "free", losses, self.owner, *known)
                )
        self._claim_lost = False

    def connection_lost(self, now: float, error: Exception) -> None:
        """Keep what must be resent, and plan the next attempt to connect."""
        TRAFFIC.errors += 1
        delay_s = self._backoff.next_s()
        logger.warning("Redis is away, next try in %.2f s: %s", delay_s, error)
        self._claim_lost = True
        self._outbox.reset()
        self._restored = False
        self._connection.close()
        self.reconnect_at = now + delay_s

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def claim(self, model: ServedModel, room: Sequence[int], now: float) -> None:
        """Claim jobs for the room that `claim_request` returned."""

        def claimed(reply: Any, at: float) -> None:
            model.claim_answered(ClaimReply(reply), at)

        model.claim_sent(room, now)
        claim = job_scripts.claim(
            model.queue, model.config.name, model.config.version, room,
            lease_us=self._lease_us, owner=self.owner, result_ttl_s=self.limits.result_ttl_s,
            job_index_max=self.limits.job_index_max, yield_us=yield_us(model),
        )  # fmt: skip
        self._outbox.add(claim, claimed, model.claim_ended)

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        """End jobs, which stay held (and renewed) until Redis has replied.

        Jobs with callbacks are held back until these are sent.
        """
        settlements = model.hold_back(settlements)
        if not settlements:
            return

        def settled(reply: Any, now: float) -> None:
            self._observer.settled(model, settlements, reply)
            for settlement, code in zip(settlements, reply, strict=True):
                if code != SETTLED:
                    self._unusual(model, settlement, int(code), now)
            model.forget(settlements)

        def refused() -> None:
            # The outcome is unknown, as if another worker had the jobs.
            self._observer.settled(model, settlements, [FENCED] * len(settlements))
            model.forget(settlements)

        settle = job_scripts.settle(model.queue, settlements)
        self._outbox.add(settle, settled, refused, resend=True)

    @staticmethod
    def _unusual(model: ServedModel, settlement: Settlement, code: int, now: float) -> None:
        if code == FENCED:
            logger.warning(
                "lease lost: another worker has claimed the job; result discarded",
                extra={"model": model.config.name, "job": settlement.id},
            )
        elif code == POSTPONED:
            model.postponed_until(now + int(settlement.retry_us) / US_PER_S)

    def release(self, model: ServedModel, jobs: list[LeasedJob], mode: str) -> None:
        """Return jobs to the head of their queue, in the order in which they were claimed.

        Args:
            model: the model that holds the jobs.
            jobs: the jobs, in the order of their claim.
            mode: `free` (an orderly release), `alone` or `crash`; see `job_scripts.release`.
        """
        if not jobs:
            return

        last_first = list(reversed(jobs))

        def released(reply: Any, _now: float) -> None:
            self._observer.released(last_first, reply)
            model.released(jobs)

        def refused() -> None:
            self._observer.released(last_first, [b"fenced"] * len(jobs))
            model.forget(jobs)

        release = job_scripts.release(model.queue, mode, self._losses(model), last_first)
        self._outbox.add(release, released, refused, resend=True)

    def renew(
        self, model: ServedModel, answered: Callable[[list[LeasedJob], list[Any]], None]
    ) -> None:
        """Renew all leases of the model.

        Args:
            model: the model.
            answered: called with the jobs and, for each, RENEWED, CANCEL_REQUESTED or FENCED.
        """
        jobs = list(model.held.values())

        def renewed(reply: Any, _now: float) -> None:
            answered(jobs, reply)

        if jobs:
            renew = job_scripts.renew(model.queue, self._lease_us, jobs)
            self._outbox.add(renew, renewed, lambda: answered([], []))

    def sweep(self, model: ServedModel, now: float) -> None:
        """Promote delayed jobs that are due, and reap expired leases."""

        def swept(reply: Any, at: float) -> None:
            result = queue_scripts.read_sweep(reply)
            self._reap_clock.set_server_time(result.now_us, at)
            model.swept(result, at)

        sweep = queue_scripts.sweep(
            model.queue, reap_until_us=self._reap_clock.until_us(now),
            losses=self._losses(model), orphaned_max=model.begin_sweep(),
        )  # fmt: skip
        self._outbox.add(sweep, swept)

    def expire_waiting(self) -> None:
        """End the waiting jobs of all models whose `expires` has passed."""

        def ended(reply: Any, _now: float) -> None:
            looked_at, _ = job_scripts.read_expire(reply)
            if looked_at == EXPIRE_MAX_JOBS:
                self.expire_waiting()

        self._outbox.add(job_scripts.expire(), ended)

    def delay_reaping(self, now: float) -> None:
        """Reap nothing for one lease_ttl: other workers may have been paused as this one was."""
        self._reap_clock.delay(now)

    def send(self, command: Command) -> None:
        """Send a command with the next write; its reply is ignored, and it is not resent."""
        self._outbox.add(command)

    def socket(self) -> Any:
        """Return the socket for a selector; None without a connection."""
        return self._connection.socket() if self.connected else None

    def check_timeout(self, now: float) -> None:
        """Give the connection up if a reply is overdue; a half-open one reports no error."""
        if now >= self.reply_due_at:
            self.connection_lost(now, TimeoutError(f"no answer in {ANSWER_MAX_S:g} s"))

    def flush(self, now: float) -> None:
        """Send the calls that wait, unless enough writes are unanswered."""
        if not self.connected:
            return
        try:
            self._outbox.flush(now)
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def read_replies(self, now: float) -> None:
        """Read the replies that have come, and handle them."""
        try:
            while (took_s := self._outbox.receive(now)) is not None:
                self._backoff.reset()
                if took_s > self.limits.lease_ttl_s / 3:
                    # A server this slow has kept the other workers from renewing too.
                    self._reap_clock.delay(now)
                if not self._outbox.more:
                    return
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def _losses(self, model: ServedModel) -> str:
        return model.retry_policy.loss_arguments(self.limits.max_deliveries)

    @property
    def _lease_us(self) -> int:
        return int(self.limits.lease_ttl_s * US_PER_S)
