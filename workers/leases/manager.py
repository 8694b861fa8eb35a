"""A worker's account with Redis: claims, settlements, releases, renewals and sweeps of its lanes.

Calls are gathered and leave in one write. What must not be lost (a settlement, a release) is said
again after an outage, which the token makes harmless; a claim whose answer was lost is undone by
giving back what this worker does not know that it holds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redis.exceptions import ResponseError

from headrace.redis.backoff import MAX_S, Backoff
from headrace.redis.clock import US_PER_S
from headrace.redis.outages import DISCONNECTED
from headrace.redis.scripts import Command
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts.jobs import (
    EXPIRE_MAX_JOBS,
    FENCED,
    POSTPONED,
    SETTLED,
    ClaimReply,
)
from headrace.redis.traffic import TRAFFIC
from workers.batching.batcher import STEP_PLACE
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement
from workers.leases.connection import PipelinedConnection
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)

#: How many writes may be unanswered.
IN_FLIGHT_MAX: Final = 2
#: An answer that takes longer than this, in seconds, is an outage.
ANSWER_MAX_S: Final = 5.0

Handle = Callable[[Any, float], None]


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """What a worker is held to.

    Attributes:
        lease_ttl_s: how long a lease lasts without renewal.
        max_deliveries: how many model processes a job may take with it while it runs alone.
        drain_timeout_s: how long a stop waits for running batches.
        result_ttl_s: how long results are kept of jobs that a stock client sent.
        job_index_max: how many of a model's newest jobs are indexed, to be listed.
    """

    lease_ttl_s: float
    max_deliveries: int
    drain_timeout_s: float
    result_ttl_s: int
    job_index_max: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: what to do with its answer, what if Redis refuses it, and whether to repeat it."""

    command: Command
    handle: Handle
    refused: Callable[[], None]
    resend: bool


def _ignore(_reply: Any, _now: float) -> None:
    pass


def _nothing() -> None:
    pass


class SettlementObserver(Protocol):
    """Hears what Redis has confirmed, while the lane still holds the jobs."""

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        """The answers of jobs/settle.lua, one per settlement."""

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """The answers of jobs/release.lua, one per item."""


class LeaseManager:
    """What one worker says to Redis, and what is still to be said.

    Args:
        owner: this incarnation's name, written into each lease.
        observer: hears how jobs have ended.
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
        self._outbox: list[_Call] = []
        # What is unanswered, and when it was sent.
        self._in_flight: deque[tuple[float, list[_Call]]] = deque()
        self.reply_due_at = float("inf")
        self._claim_lost = False
        # Fast enough to renew its leases before workers that are back already reap them.
        self._backoff = Backoff(min(MAX_S, limits.lease_ttl_s / 3))
        self.reconnect_at = 0.0
        self._reap_after = float("inf")
        self._joined = False
        # Redis' clock at the worker's second 0, by the last answer that told it.
        self._server_zero_us: int | None = None

    @property
    def connected(self) -> bool:
        """Whether Redis answered last."""
        return self._joined and self._connection.connected

    @property
    def busy(self) -> bool:
        """Whether something is still to be said."""
        return bool(self._outbox or self._in_flight)

    def connect(self) -> None:
        """Connect. It may take seconds: a thread of its own calls it, and then `joined` is called.

        Raises:
            redis.RedisError, OSError: Redis is away.
        """
        self._connection.connect()

    def connection_restored(self, models: Iterable[ServedModel], now: float) -> None:
        """It is connected: take up where the outage began."""
        self._joined = True
        self._server_zero_us = None
        # Workers cut off by the same outage need one lease's time to renew theirs, so nothing is
        # reaped before one lease_ttl after this connection, and so after the server's own start.
        self._reap_after = now + self.limits.lease_ttl_s
        logger.info("connected to Redis")
        if self._claim_lost:
            for model in models:
                model.backlog.end_claim()
                known = [job.token for job in model.held.values()]
                losses = self._loss_policy(model)
                self._call(
                    job_scripts.release_owner(model.queue, "free", losses, self.owner, *known)
                )
        self._claim_lost = False

    def connection_lost(self, now: float, error: Exception) -> None:
        """The connection broke: keep what must be said, and try again later."""
        TRAFFIC.errors += 1
        delay_s = self._backoff.next_s()
        logger.warning("Redis is away, next try in %.2f s: %s", delay_s, error)
        self._claim_lost = True
        unanswered = [call for _, sent in self._in_flight for call in sent]
        self._outbox = [call for call in (*unanswered, *self._outbox) if call.resend]
        self._in_flight.clear()
        self.reply_due_at = float("inf")
        self._joined = False
        self._connection.close()
        self.reconnect_at = now + delay_s

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def claim(self, model: ServedModel, rooms: Sequence[int]) -> None:
        """Ask for jobs, as `lane.claimable` says."""

        def claimed(reply: Any, now: float) -> None:
            model.claim_answered(ClaimReply(reply), now)

        model.backlog.begin_claim()
        claim = job_scripts.claim(
            model.queue, model.config.name, model.config.version, rooms,
            lease_us=self._lease_us, owner=self.owner, result_ttl_s=self.limits.result_ttl_s,
            job_index_max=self.limits.job_index_max, yield_us=model.yield_us,
        )  # fmt: skip
        self._call(claim, handle=claimed, refused=model.backlog.end_claim)

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        """End jobs; they stay held (and renewed) until Redis has said that it knows.

        Those that others follow are kept back in the lane's sequels, until these were told.
        """
        if model.callbacks.linked:
            settlements = model.callbacks.hold_back(settlements)
        if not settlements:
            return

        def settled(reply: Any, now: float) -> None:
            self._observer.settled(model, settlements, reply)
            for settlement, code in zip(settlements, reply, strict=True):
                if code != SETTLED:
                    self._unusual(model, settlement, int(code), now)
            model.forget(settlements)

        def refused() -> None:
            # Of their end nothing is known, as if they were another's.
            self._observer.settled(model, settlements, [FENCED] * len(settlements))
            model.forget(settlements)

        settle = job_scripts.settle(model.queue, settlements)
        self._call(settle, handle=settled, refused=refused, again=True)

    @staticmethod
    def _unusual(model: ServedModel, settlement: Settlement, code: int, now: float) -> None:
        if code == FENCED:
            logger.warning(
                "the job is another's by now; this answer is dropped",
                extra={"model": model.config.name, "job": settlement.id},
            )
        elif code == POSTPONED:
            model.note_due(now + int(settlement.retry_us) / US_PER_S)

    def release(self, model: ServedModel, jobs: list[LeasedJob], mode: str) -> None:
        """Give jobs back to the head of their queue, the first claimed in front.

        Args:
            model: the model whose jobs they are.
            jobs: the jobs, in the order of their claim.
            mode: `free` (an orderly release), `alone` or `crash`; see `job_scripts.release`.
        """
        if not jobs:
            return

        last_first = list(reversed(jobs))

        def released(reply: Any, _now: float) -> None:
            self._observer.released(last_first, reply)
            model.forget(jobs)
            for job in jobs:
                model.backlog.waiting[STEP_PLACE[job.step]] += 1

        def refused() -> None:
            self._observer.released(last_first, [b"fenced"] * len(jobs))
            model.forget(jobs)

        release = job_scripts.release(model.queue, mode, self._loss_policy(model), last_first)
        self._call(release, handle=released, refused=refused, again=True)

    def renew(
        self, model: ServedModel, answered: Callable[[list[LeasedJob], list[Any]], None]
    ) -> None:
        """Renew the leases of all that the lane holds.

        Args:
            model: the model whose jobs they are.
            answered: called with the jobs and, for each, RENEWED, CANCEL_REQUESTED or FENCED.
        """
        jobs = list(model.held.values())

        def renewed(reply: Any, _now: float) -> None:
            answered(jobs, reply)

        if jobs:
            renew = job_scripts.renew(model.queue, self._lease_us, jobs)
            self._call(renew, handle=renewed, refused=lambda: answered([], []))

    def sweep(self, model: ServedModel, now: float) -> None:
        """Promote what is due and reap what has run out."""

        def swept(reply: Any, at: float) -> None:
            result = queue_scripts.read_sweep(reply)
            self._server_zero_us = result.now_us - int(at * US_PER_S)
            due_in_us = result.due_in_us
            model.next_due_at = None if due_in_us is None else at + due_in_us / US_PER_S
            model.backlog.raise_waiting(result.waiting)
            if result.orphaned:
                model.callbacks.add_orphaned(model.queue, result.orphaned)

        # Told anew by the answer; left as it is, it would ask again in each turn until then.
        model.next_due_at = None
        sweep = queue_scripts.sweep(
            model.queue, reap_until_us=self._reap_until_us(now),
            losses=self._loss_policy(model), orphaned_max=model.callbacks.orphaned_room,
        )  # fmt: skip
        self._call(sweep, handle=swept)

    def expire_waiting(self) -> None:
        """End jobs of any model that wait though they must have begun by now."""

        def ended(reply: Any, _now: float) -> None:
            looked_at, _ = job_scripts.read_expire(reply)
            if looked_at == EXPIRE_MAX_JOBS:
                self.expire_waiting()

        self._call(job_scripts.expire(), handle=ended)

    def delay_reaping(self, now: float) -> None:
        """This worker was stopped for a while: so may others have been, who have yet to renew."""
        self._reap_after = max(self._reap_after, now + self.limits.lease_ttl_s)

    def _reap_until_us(self, now: float) -> int:
        """Until when, by Redis' clock, a sweep that is said now may reap; 0 for not at all.

        What is said into a network that is cut or to a server that hangs may arrive after a minute,
        when every lease has run out and nobody could renew his.
        """
        if now < self._reap_after or self._server_zero_us is None:
            return 0
        return self._server_zero_us + int((now + self.limits.lease_ttl_s / 3) * US_PER_S)

    def send(self, command: Command) -> None:
        """Send a command with the rest; its answer is not looked at, and it is not said again."""
        self._call(command)

    def socket(self) -> Any:
        """The socket on which answers come, for a selector; None without a connection."""
        return self._connection.socket() if self.connected else None

    def check_timeout(self, now: float) -> None:
        """An answer that is overdue is an outage: a half-open connection never says so itself."""
        if self._in_flight and now >= self.reply_due_at:
            self.connection_lost(now, TimeoutError(f"no answer in {ANSWER_MAX_S:g} s"))

    def flush(self, now: float) -> None:
        """Send all that was gathered, unless enough writes are unanswered.

        Waiting for them gathers more for the next write, and the worker goes on meanwhile; one
        more than Redis works at is sent, so that it need not wait for this worker either.
        """
        if len(self._in_flight) >= IN_FLIGHT_MAX or not self._outbox or not self.connected:
            return
        sent, self._outbox = self._outbox, []
        self._in_flight.append((now, sent))
        TRAFFIC.round_trips += 1
        if len(self._in_flight) == 1:
            self.reply_due_at = now + ANSWER_MAX_S
        try:
            self._connection.send([call.command for call in sent])
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def read_replies(self, now: float) -> None:
        """Read the answers that are there, and act on them."""
        try:
            if not self._in_flight:
                self._connection.more()  # readable without a question: the server hung up
            while self._in_flight:
                sent_at, answered = self._in_flight[0]
                replies = self._connection.receive([call.command for call in answered])
                self._in_flight.popleft()
                self._backoff.reset()
                if now - sent_at > self.limits.lease_ttl_s / 3:
                    # So slow a server has kept the others from renewing too.
                    self._reap_after = now + self.limits.lease_ttl_s
                self.reply_due_at = now + ANSWER_MAX_S if self._in_flight else float("inf")
                self._act(answered, replies, now)
                if not self._in_flight or not self._connection.more():
                    return
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def _act(self, answered: list[_Call], replies: list[Any], now: float) -> None:
        for call, reply in zip(answered, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._refused(call, reply)
            else:
                call.handle(reply, now)

    def _loss_policy(self, model: ServedModel) -> str:
        return model.retry_policy.loss_arguments(self.limits.max_deliveries)

    @property
    def _lease_us(self) -> int:
        return int(self.limits.lease_ttl_s * US_PER_S)

    def _call(
        self,
        command: Command,
        handle: Handle = _ignore,
        refused: Callable[[], None] = _nothing,
        again: bool = False,
    ) -> None:
        self._outbox.append(_Call(command, handle, refused, again))

    @staticmethod
    def _refused(call: _Call, error: ResponseError) -> None:
        # A script errs before its first write, so that nothing is half done. What the call was
        # about is held no longer: its lease runs out, and it is run again.
        TRAFFIC.errors += 1
        logger.error("Redis refused a call: %s", error)
        call.refused()
