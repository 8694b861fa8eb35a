"""What one worker holds of one model: its jobs, its batcher, its replicas and its limits.

`ServedModel` decides and keeps the state. The consumer talks to Redis and to the model processes,
and calls it for each event. Other folders do not use its batcher, deadlines, payloads or callbacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from headrace.config.model_catalog import ModelConfig
from headrace.jobs.media_types import is_json
from headrace.observability.worker_report import ModelStats
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import ClaimReply
from headrace.redis.scripts.queues import SweepReply
from workers.batching.batcher import STEP_PLACE, Batcher, Hold, Leave, batch_policy
from workers.batching.expected_arrivals import ExpectedArrivals
from workers.batching.input_cost import InputCost
from workers.batching.memory_limit import MemoryLimit
from workers.jobs.batch import Batch
from workers.jobs.claim_reply import read_jobs, read_message
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.retries import RetryPolicy
from workers.jobs.settlement import Settlement, cancelled, failed
from workers.models.backlog import Backlog
from workers.models.deadlines import Deadlines
from workers.models.event_sampling import EventSampler
from workers.models.pending_callbacks import OrphanedEnd, PendingCallbacks, UnsentCallbacks
from workers.models.pending_payloads import PayloadWork, PendingPayloads, TransferOutcome
from workers.models.replica_history import ReplicaHistory
from workers.models.settling import (
    BatchResult,
    BatchSettlements,
    discarded,
    observe_batch,
    settle_batch,
)
from workers.protocol.phases import Phase
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: Weight of the newest batch in running means.
NEWEST_WEIGHT: Final = 0.2


class ServedModel:
    """One model of one worker.

    Args:
        config: its section of the models file.
        max_retries: how often its jobs are retried, unless their message sets it.
        replicas: its model processes, not yet started.
        pending_payloads: where long results are stored; by default they stay in their messages.
        events_per_s: how many jobs a second get task events when these are sampled.

    Attributes:
        held: every job that this worker has leased for the model, by id.
        hold_until: until when the prepared jobs wait for others; None if they do not.
        next_due_at: when the next delayed job joins the queue; None if unknown.
        prepare_s: recent seconds of `preprocess` for one input.
        starved: the recent share of the device's time spent waiting for `preprocess`.
        replica_history: what happened to its replicas.
        stats: its counters and histograms.
        event_sampler: chooses the jobs that get task events.
        retry_policy: how often and when its jobs are retried, unless their message sets it.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_retries: int,
        replicas: list[Replica],
        pending_payloads: PendingPayloads | None = None,
        events_per_s: int = 100,
    ) -> None:
        self.config = config
        self.replicas = replicas
        self.held: dict[str, LeasedJob] = {}
        self.hold_until: float | None = None
        self.next_due_at: float | None = None
        self.prepare_s = self.starved = 0.0
        self.stats = ModelStats()
        self.event_sampler = EventSampler(config.name, config.events, events_per_s, self.stats)
        self.replica_history = ReplicaHistory(config.max_restarts_per_minute, self.stats)
        self.retry_policy = RetryPolicy(
            max_retries, config.retry_backoff_s, config.retry_backoff_max_s
        )
        sizes = tuple(config.allowed_batch_sizes or ())
        self.memory_limit = MemoryLimit(config.max_batch_size, sizes)
        self.batcher: Batcher[LeasedJob] = Batcher(batch_policy(config))
        self.backlog = Backlog()
        self.expected_arrivals = ExpectedArrivals()
        self.deadlines = Deadlines(config)
        self.pending_payloads = pending_payloads or PendingPayloads()
        self.callbacks = PendingCallbacks()
        self._input_cost = InputCost(config)
        self._unread_claims: list[ClaimReply] = []
        # Tokens of jobs that were cancelled before the reply to their claim was read.
        self.cancelled_tokens: set[str] = set()
        # A job belonged to a trace, so others may too.
        self._traced = False

    @property
    def queue(self) -> str:
        """The queue that it is served from."""
        return self.config.queue

    @property
    def device(self) -> str:
        """The torch device of its replicas."""
        device: str = self.replicas[0].init["device"]
        return "cuda:0" if device == "cuda" else device

    @property
    def serving(self) -> bool:
        """Whether any replica is loaded; without one nothing is claimed."""
        return any(replica.state is Phase.READY for replica in self.replicas)

    @property
    def idle(self) -> bool:
        """Whether a loaded replica waits for a batch."""
        return any(replica.idle for replica in self.replicas)

    @property
    def prepared(self) -> int:
        """How many jobs are in the batcher, ready to run."""
        return len(self.batcher)

    @property
    def online(self) -> int:
        """How many of the prepared jobs are online jobs."""
        return self.batcher.online

    @property
    def online_at(self) -> float:
        """When its latest online job was submitted."""
        return self.batcher.online_at

    @property
    def isolated(self) -> bool:
        """Whether a prepared job must run alone."""
        return self.batcher.isolated

    @property
    def batch_size_limit(self) -> int:
        """The largest batch that runs now: `max_batch_size`, or what fits into memory."""
        return self.batcher.policy.max_batch_size

    @property
    def unread(self) -> bool:
        """Whether a claim was answered and its jobs have not been read."""
        return bool(self._unread_claims)

    @property
    def unread_jobs(self) -> int:
        """How many claimed jobs have not been read."""
        return sum(len(claim.jobs) for claim in self._unread_claims)

    @property
    def unfinished(self) -> bool:
        """Whether it holds jobs outside model processes that must be settled or released."""
        prepared = self.prepared or self._unread_claims or self.deadlines.ended
        return bool(prepared or self.pending_payloads.in_transfer or self.callbacks.notifying)

    @property
    def wants_turn(self) -> bool:
        """Whether a batch could run on a loaded replica."""
        return bool(self.prepared) and self.idle

    @property
    def online_known(self) -> bool:
        """Whether online jobs are known to wait in Redis, or to be in the pending claim."""
        return self.backlog.online or self.backlog.online_awaited

    def overdue(self, now: float) -> bool:
        """Return whether a prepared job has waited too long for better priorities."""
        return self.batcher.overdue(now)

    # Claims

    @property
    def room(self) -> list[int]:
        """How many more jobs of each step fit, counting those whose payloads are in transfer."""
        room = self.batcher.room
        if self.callbacks.full:
            return [0] * len(room)
        payloads = self.pending_payloads
        return payloads.room_left(room) if payloads.in_transfer else room

    def claim_sent(self, room: Sequence[int], now: float) -> None:
        """Note that a claim for this room was sent."""
        self.backlog.begin_claim()
        self.expected_arrivals.claim_sent(room, now)

    def claim_ended(self) -> None:
        """Note that Redis refused the pending claim, or that its reply was lost."""
        self.backlog.end_claim()

    def claim_answered(self, reply: ClaimReply, now: float) -> None:
        """Keep the reply to a claim; `read_claims` reads its jobs."""
        taken = len(reply.jobs)
        self.backlog.claim_answered(taken, reply.waiting)
        self.expected_arrivals.claim_answered(taken, reply.waiting, now)
        self._unread_claims.append(reply)

    def connection_lost(self) -> None:
        """Expect no more arrivals until Redis is back."""
        self.expected_arrivals.connection_lost()

    def read_claims(self, now: float) -> list[Settlement]:
        """Read the claimed jobs; return the settlements of those that will not run now."""
        claims, self._unread_claims = self._unread_claims, []
        ended, yield_s, name = [], self.config.max_yield_s or NEVER, self.config.name
        for claim in claims:
            for job, raw in read_jobs(claim, now, yield_s):
                self.held[job.id] = job
                settlement = read_message(job, raw, name, self.queue, claim.now_us)
                message = job.message
                if job.canvas is not None:
                    self.callbacks.linked[job.token] = job
                if message is not None:
                    if message.trace is not None:
                        self._traced = True
                    if job.token in self.cancelled_tokens:
                        settlement = self._cancelled(job)
                if settlement is not None:
                    ended.append(settlement)
                elif message is not None and message.source:
                    self.pending_payloads.add_fetch(job, name, message.source)
                else:
                    self._prepare(job)
        if not self.backlog.claiming:
            self.cancelled_tokens.clear()
        return ended

    def _prepare(self, job: LeasedJob) -> None:
        """Add a job whose input is here to the batcher."""
        if self._input_cost.needed:
            job.cost = self._input_cost.cost(job.input, job.content_type)
            job.key = self._input_cost.key(job.input, job.content_type)
        if job.expires_at == NEVER or not self.deadlines.expires_too_soon(job, self.replicas):
            self.batcher.add(job)

    # Payloads and callbacks

    def take_payload_work(self) -> PayloadWork | None:
        """Return the transfers to begin; None for none."""
        return self.pending_payloads.take_work()

    def transfer_done(self, outcome: TransferOutcome) -> Settlement | None:
        """Take a fetched input, or return the settlement of a job whose transfer has ended."""
        job, body, result, error, retryable = outcome
        self.pending_payloads.transfer_done(job)
        if self.held.get(job.id) is not job:
            # The claim is over: another worker, or a newer claim, has the job.
            self.pending_payloads.forget([job])
            return None
        if job.dropped and result is None:
            return None  # settled when it was cancelled
        if error is not None:
            logger.warning("%s", error.message, extra={"model": self.config.name, "job": job.id})
            if job.dropped:
                return discarded(job, 0, "")
            retries = self.retry_policy
            return failed(job, error.code, error.message, retryable=retryable, retries=retries)
        if result is not None:
            return result.settlement
        if body is not None:
            self._input_arrived(job, body)
        return None

    def _input_arrived(self, job: LeasedJob, body: bytes) -> None:
        message = job.message
        if message is None or message.source is None:
            raise RuntimeError(f"no input was requested for job {job.id}")
        kind = message.source.type
        job.content_type = "" if is_json(kind.partition(";")[0].strip().lower()) else kind
        job.message = msgspec.structs.replace(message, input=body)
        self._prepare(job)

    def hold_back(self, settlements: list[Settlement]) -> list[Settlement]:
        """Keep the settlements of jobs whose callbacks must be sent first; return the others."""
        return self.callbacks.hold_back(settlements)

    def take_callback_work(self) -> tuple[list[UnsentCallbacks], list[OrphanedEnd]] | None:
        """Return the ends whose callbacks must be sent; None for none."""
        return self.callbacks.take_work()

    def callbacks_sent(self, job: LeasedJob) -> bool:
        """Note that a job's callbacks were sent; return whether the job is still held."""
        self.callbacks.notifying.pop(job.token, None)
        return self.held.get(job.id) is job

    def orphan_handled(self) -> None:
        """Note that the callbacks of an orphaned end were sent."""
        self.callbacks.orphaned_pending -= 1

    # Batches

    def next_batch(self, now: float, *, draining: bool = False) -> Batch | None:
        """Return the batch that leaves now for an idle replica; None if none does."""
        self.hold_until = (
            None if draining else self.expected_arrivals.hold_until(self.batcher, self.room, now)
        )
        if self.hold_until is not None:
            return None
        decision = self.batcher.decide(now, draining=draining)
        self.hold_until = decision.until if isinstance(decision, Hold) else None
        if not isinstance(decision, Leave):
            return None
        jobs, reason = decision.items, decision.reason
        self.deadlines.forget(jobs)
        limit_s = self.deadlines.shortest_timeout_s(jobs)
        least_s = self.deadlines.least_time.at(now)
        if limit_s < least_s:
            jobs = self.deadlines.keep_feasible(jobs, least_s)
            if not jobs:
                return self.next_batch(now, draining=draining)
            limit_s = self.deadlines.shortest_timeout_s(jobs)
        epoch = time.time()
        for job in jobs:
            job.dispatched_at, job.dispatched_epoch_s = now, epoch
        return Batch(jobs, reason, now, now + limit_s, traced=self._traced)

    def batch_done(self, batch: Batch, result: BatchResult, now: float) -> BatchSettlements:
        """Return how the jobs of a batch end; `now` is when its result came."""
        size = len(batch.jobs)
        self.stats.left(batch.reason)
        self.observe_memory(size, result.fits)
        self._observe_times(size, *result.times)
        # The device ran the padding too.
        self.batcher.observe(size + result.padding, now - batch.started_at)
        self.deadlines.least_time.add(now - batch.started_at, now)
        observe_batch(self.stats, batch, result, now)
        if self.callbacks.linked:
            self.callbacks.keep_results(batch.jobs, result.outcomes)
        retries = self.retry_policy
        return settle_batch(batch, result, self.pending_payloads, retries, self.config.name)

    def observe_memory(self, size: int, fits: int) -> None:
        """Learn that a batch of `size` ran, or that only `fits` of it fit into memory."""
        if self.memory_limit.observe(size, fits):
            limit = self.memory_limit.limit
            self.batcher.policy = replace(self.batcher.policy, max_batch_size=limit)
            if fits:
                logger.warning(
                    "out of memory with %d inputs; batches are limited to %d for now",
                    size, limit, extra={"model": self.config.name, "size": size},
                )  # fmt: skip

    def _observe_times(
        self, size: int, prepare: float, infer: float, _: float, starved: float
    ) -> None:
        """Learn from the times of a batch's stages, in ms."""
        self.prepare_s += NEWEST_WEIGHT * (prepare / 1000 / size - self.prepare_s)
        busy = infer + starved
        if busy:
            self.starved += NEWEST_WEIGHT * (starved / busy - self.starved)

    def batch_timed_out(self, batch: Batch, now: float, trace: str) -> Settlement:
        """Return the settlement of a job that exceeded its timeout alone in this batch."""
        self.stats.left(batch.reason)
        return self.deadlines.timed_out(batch, now, trace)

    def batch_returned(self, batch: Batch) -> list[Settlement]:
        """Put the jobs of a preempted batch back in front; return those that end instead."""
        ended, waiting = [], []
        for job in batch.jobs:
            job.dispatched_at = 0.0
            if job.dropped == "cancelled":
                ended.append(self._cancelled(job))
            elif job.dropped:
                self.forget([job])
            elif job.expires_at == NEVER or not self.deadlines.expires_too_soon(job, self.replicas):
                waiting.append(job)
        self.batcher.put_back(waiting)
        return ended

    # Ends

    def expire(self, now: float) -> None:
        """End the prepared jobs that have expired."""
        self.deadlines.expire(self.batcher, now)

    def take_ended(self) -> list[Settlement]:
        """Return the settlements of the jobs that ended without running."""
        return self.deadlines.take_ended() if self.deadlines.ended else []

    def cancel(self, job_id: str, token: str) -> list[Settlement]:
        """Cancel a job; return its settlement if no replica has it.

        For a dispatched job, the model process is asked to skip it. If that is too late, its result
        is discarded.
        """
        job = self.held.get(job_id)
        if job is None or job.token != token:
            if self.backlog.claiming or self._unread_claims:
                self.cancelled_tokens.add(token)
            return []
        if job.dropped:
            return []
        if self._take_out(job):
            return [self._cancelled(job)]
        if job.dispatched_at:
            self._skip(job, "cancelled")
        return []

    def lose(self, job: LeasedJob) -> None:
        """Drop a job that another worker has claimed since."""
        logger.warning(
            "lease lost: another worker has claimed the job",
            extra={"model": self.config.name, "job": job.id},
        )
        # A job in neither state has a pending settlement or release, whose reply reports it too.
        if self._take_out(job):
            job.dropped = "lost"
            self.forget([job])
        elif job.dispatched_at:
            self._skip(job, "lost")

    @staticmethod
    def _cancelled(job: LeasedJob) -> Settlement:
        job.dropped = "cancelled"
        return cancelled(job)

    def _skip(self, job: LeasedJob, why: str) -> None:
        job.dropped = why
        for replica in self.replicas:
            replica.drop(job)

    def _take_out(self, job: LeasedJob) -> bool:
        """Remove a job that is prepared or in transfer; return whether it was."""
        if job.dispatched_at:
            return False
        if self.batcher.remove(job):
            self.deadlines.forget([job])
            return True
        if job.token in self.pending_payloads.in_transfer:
            self.pending_payloads.transfer_done(job)
            return True
        return False

    def forget(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """Forget these claims, which are over; newer claims of the same jobs stay held."""
        held, linked = self.held, self.callbacks.linked
        for claim in claims:
            job = held.get(claim.id)
            if job is not None and job.token == claim.token:
                del held[claim.id]
            if linked:
                linked.pop(claim.token, None)
        self.pending_payloads.forget(claims)

    def released(self, jobs: Sequence[LeasedJob]) -> None:
        """Forget these jobs, which are back in the queue."""
        self.forget(jobs)
        for job in jobs:
            self.backlog.waiting[STEP_PLACE[job.step]] += 1

    def release_prepared(self) -> list[LeasedJob]:
        """Empty the batcher; return its jobs for their release."""
        jobs = self.batcher.take_all()
        self.deadlines.forget(jobs)
        return jobs

    def release_all(self) -> list[LeasedJob]:
        """Return all jobs that are in no model process, for their release."""
        transfers, notifying = self.pending_payloads.in_transfer, self.callbacks.notifying
        return [*self.release_prepared(), *transfers.values(), *notifying.values()]

    def postponed_until(self, at: float) -> None:
        """Note that a delayed job joins its queue at this time."""
        self.next_due_at = at if self.next_due_at is None else min(self.next_due_at, at)

    def begin_sweep(self) -> int:
        """Forget `next_due_at`; return how many orphaned ends the sweep may return."""
        # The reply sets it again; until then it would cause a sweep in each turn.
        self.next_due_at = None
        return self.callbacks.orphaned_room

    def swept(self, reply: SweepReply, now: float) -> None:
        """Take the reply to a sweep."""
        due_in_us = reply.due_in_us
        self.next_due_at = None if due_in_us is None else now + due_in_us / US_PER_S
        self.backlog.raise_waiting(reply.waiting)
        if reply.orphaned:
            self.callbacks.add_orphaned(self.queue, reply.orphaned)

    def replica_started(self) -> None:
        """Forget what old processes took for a batch."""
        self.deadlines.least_time.forget()
