"""One model inside a worker: its batcher, its replicas, and the jobs that it holds.

Decides and keeps account; the consumer talks to Redis and to the selector.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from headrace.config.model_catalog import ModelConfig
from headrace.errors import HeadraceError, InvalidRequest
from headrace.jobs.media_types import is_json
from headrace.jobs.message import read_envelope
from headrace.observability.worker_report import ModelStats
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts.jobs import ClaimReply
from workers.batching.batcher import Batcher, BatchPolicy, Hold, Leave
from workers.batching.expected_arrivals import ExpectedArrivals
from workers.batching.input_cost import InputCost
from workers.batching.memory_limit import MemoryLimit
from workers.jobs.batch import Batch
from workers.jobs.claim_reply import read_jobs
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.retries import RetryPolicy
from workers.jobs.settlement import Settlement, cancelled, failed, postponed, unreadable_message
from workers.models.backlog import Backlog
from workers.models.deadlines import Deadlines
from workers.models.event_sampling import EventSampler
from workers.models.pending_callbacks import PendingCallbacks
from workers.models.pending_payloads import PendingPayloads
from workers.models.restart_limit import RestartLimit
from workers.models.settling import discarded, settle_batch
from workers.protocol.phases import Phase
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: Weight of the newest batch in running means.
NEWEST_WEIGHT: Final = 0.2


@dataclass(slots=True)
class ServedModel:
    """One model of one worker.

    Attributes:
        config: its configuration.
        replicas: its model processes.
        held: every job that this worker has leased for the model, by id.
        backlog: what waits in Redis.
        expected_arrivals: what is known to come from there.
        pending_payloads: its payloads on their way.
        claim_replies: answers to claims, as they came.
        cancelled_tokens: tokens of jobs cancelled before the reply to their claim was read.
        callbacks: its jobs that others follow, and what is to be told to these.
        memory_limit: how many items its memory has room for together.
        recycled: how many of its processes were recycled.
        restart_limit: which of them were lost, and when the next may be started.
        retry_policy: how often and when its jobs are tried again, unless they say.
        deadlines: until when its jobs must have begun, and have ended.
        events_per_s: of how many jobs a second monitors are told where they get a sample.
        event_sampler: of which jobs they are told.
        last_error: why a load failed last.
        traced: a job was part of a trace, as others may be from then on.
        prepare_s: what `preprocess` takes for one item, of late.
        starved: which share of the device's time it stood idle, of late, because the batch that it
            was to run was still in `preprocess`.
    """

    config: ModelConfig
    max_retries: int
    replicas: list[Replica]
    stats: ModelStats = field(default_factory=ModelStats)
    claim_replies: list[ClaimReply] = field(default_factory=list)
    cancelled_tokens: set[str] = field(default_factory=set)
    held: dict[str, LeasedJob] = field(default_factory=dict)
    backlog: Backlog = field(default_factory=Backlog)
    expected_arrivals: ExpectedArrivals = field(default_factory=ExpectedArrivals)
    next_due_at: float | None = None
    hold_until: float | None = None
    recycled: int = 0
    last_error: str = ""
    pending_payloads: PendingPayloads = field(default_factory=PendingPayloads)
    callbacks: PendingCallbacks = field(default_factory=PendingCallbacks)
    traced: bool = False
    prepare_s: float = 0.0
    starved: float = 0.0
    events_per_s: int = 100
    event_sampler: EventSampler = field(init=False)
    deadlines: Deadlines = field(init=False)
    restart_limit: RestartLimit = field(init=False)
    retry_policy: RetryPolicy = field(init=False)
    memory_limit: MemoryLimit = field(init=False)
    batcher: Batcher[LeasedJob] = field(init=False)
    input_cost: InputCost = field(init=False)

    def __post_init__(self) -> None:
        model = self.config
        self.deadlines = Deadlines(model)
        self.event_sampler = EventSampler(model.name, model.events, self.events_per_s, self.stats)
        bounds = (model.retry_backoff_s, model.retry_backoff_max_s)
        self.retry_policy = RetryPolicy(self.max_retries, *bounds)
        self.restart_limit = RestartLimit(model.max_restarts_per_minute)
        self.memory_limit = MemoryLimit(
            model.max_batch_size, tuple(model.allowed_batch_sizes or ())
        )
        policy = BatchPolicy(
            max_batch_size=model.max_batch_size,
            max_batch_delay_s=model.max_batch_delay_ms / 1000,
            max_batch_cost=model.max_batch_cost,
            keyed=model.batch_key is not None,
            sizes=tuple(model.allowed_batch_sizes or ()),
        )
        self.batcher = Batcher(policy)
        self.input_cost = InputCost(model)

    @property
    def queue(self) -> str:
        """The queue that it is served from."""
        return self.config.queue

    @property
    def serving(self) -> bool:
        """Whether any replica is loaded; without one nothing is claimed."""
        return any(replica.state is Phase.READY for replica in self.replicas)

    @property
    def idle(self) -> bool:
        """Whether a loaded replica waits for a batch."""
        return any(replica.idle for replica in self.replicas)

    @property
    def unfinished(self) -> bool:
        """Whether it holds jobs that are in no model process and of which Redis is yet to hear."""
        ended = self.deadlines.ended
        prepared = len(self.batcher) or self.claim_replies or ended
        return bool(prepared or self.pending_payloads.in_transfer or self.callbacks.notifying)

    @property
    def device(self) -> str:
        """The torch device that its replicas are on."""
        device: str = self.replicas[0].init["device"]
        return "cuda:0" if device == "cuda" else device

    @property
    def wants_turn(self) -> bool:
        """Whether a batch could leave for a loaded replica."""
        return bool(len(self.batcher)) and self.idle

    @property
    def claimable(self) -> list[int]:
        """How many jobs there may be when those of each step are claimed; empty: no claim now.

        One prepared batch, if there is anything to take.
        """
        if not self.backlog.claimable or not self.serving:
            return []
        rooms = self.room
        return rooms if self.backlog.fills(rooms) else []

    def note_due(self, at: float) -> None:
        """Learn that a delayed job joins its queue then."""
        self.next_due_at = at if self.next_due_at is None else min(self.next_due_at, at)

    @property
    def needs_better(self) -> bool:
        """Whether a claim would bring better jobs than all that are here."""
        return not self.batcher.online and (not len(self.batcher) or self.backlog.online)

    @property
    def expects_online(self) -> bool:
        """Whether online jobs are known to come, that an idle process could run at once."""
        if not self.idle:
            return False
        if self.backlog.claiming:
            return self.backlog.online_awaited
        return self.backlog.online and any(self.claimable[:-1])

    @property
    def yield_us(self) -> int:
        """After how long a wait a claim takes a job before better ones; 0: it takes none so."""
        if self.batcher.overdue(time.monotonic()):
            return 0  # one is here already
        return int(self.config.max_yield_s * US_PER_S)

    @property
    def room(self) -> list[int]:
        """How many more jobs fit of each step, with those whose payloads are on their way."""
        rooms = self.batcher.room
        if self.callbacks.full:
            return [0] * len(rooms)
        return (
            self.pending_payloads.room_left(rooms) if self.pending_payloads.in_transfer else rooms
        )

    def claim_answered(self, reply: ClaimReply, now: float) -> None:
        """A claim was answered; what it gave is read next."""
        jobs = len(reply.jobs)
        self.backlog.claim_answered(jobs)
        self.backlog.set_waiting(reply.waiting)
        self.expected_arrivals.claim_answered(jobs, reply.waiting, now)
        self.claim_replies.append(reply)

    def read_claims(self, now: float) -> list[Settlement]:
        """Read what claims gave; settle at once what will not run."""
        replies, self.claim_replies = self.claim_replies, []
        ended = [settlement for reply in replies for settlement in self.accept(reply, now)]
        if not self.backlog.claiming:
            self.cancelled_tokens.clear()
        return ended

    def accept(self, reply: ClaimReply, now: float) -> list[Settlement]:
        """Take in what a claim gave; settle at once what will not run."""
        ended, yield_s = [], self.config.max_yield_s or NEVER
        for job, raw in read_jobs(reply, now, yield_s):
            self.held[job.id] = job
            settlement = self._read(job, raw, now, reply.now_us)
            if settlement is not None:
                ended.append(settlement)
            elif job.message is not None and job.message.source:
                self.pending_payloads.add_fetch(job, self.config.name, job.message.source)
            else:
                self.join(job)
        return ended

    def join(self, job: LeasedJob) -> None:
        """The item's input is here: it waits for its batch."""
        if self.input_cost.needed:
            job.cost = self.input_cost.cost(job.input, job.content_type)
            job.key = self.input_cost.key(job.input, job.content_type)
        if job.expires_at == NEVER or not self.deadlines.expires_too_soon(job, self.replicas):
            self.batcher.add(job)

    def _read(self, job: LeasedJob, raw: bytes, now: float, now_us: int) -> Settlement | None:
        """Read the message; the settlement of a job that is not to run now, else None."""
        try:
            message = read_envelope(raw)
        except InvalidRequest as error:
            self.callbacks.link(job, raw)
            return unreadable_message(job, raw, error)
        job.message = message
        if message.trace is not None:
            self.traced = True
        if message.followed and not self.callbacks.link(job, raw):
            problem = "the signatures of what follows the job cannot be read"
            return failed(job, InvalidRequest.code, problem)
        if job.token in self.cancelled_tokens:
            self.cancelled_tokens.discard(job.token)
            return self.cancel(job)
        if message.model != self.config.name:
            return failed(
                job,
                "invalid-request",
                f"the queue {self.queue} serves {self.config.name!r}, not {message.model!r}",
            )
        if message.expires_s is None and message.eta_s is None:
            return None
        wait_s = job.set_deadlines(message, now, now_us)
        if job.expires_at <= now:
            return self.deadlines.expired(job)
        return postponed(job, wait_s) if wait_s else None

    def take_all(self) -> list[LeasedJob]:
        """The prepared jobs, for their release."""
        jobs = self.batcher.take_all()
        self.deadlines.forget(jobs)
        return jobs

    def cancel(self, job: LeasedJob) -> Settlement:
        """The end of a job that was not handed over yet."""
        job.dropped = "cancelled"
        return cancelled(job)

    def next_batch(self, now: float, *, draining: bool = False) -> Batch | None:
        """The batch that leaves now for an idle replica, if one does."""
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
        return Batch(jobs, reason, now, now + limit_s, traced=self.traced)

    def observe_memory(self, size: int, fits: int) -> None:
        """Learn how much memory has room for: a batch of `size` ran, or only `fits` at once."""
        if self.memory_limit.observe(size, fits):
            limit = self.memory_limit.limit
            self.batcher.policy = replace(self.batcher.policy, max_batch_size=limit)
            if fits:
                logger.warning(
                    "out of memory with %d items; its batches have at most %d for now",
                    size, limit, extra={"model": self.config.name, "size": size},
                )  # fmt: skip

    def _weigh(self, size: int, prepare: float, infer: float, _: float, starved: float) -> None:
        """Learn where the time goes, from a batch's stages in ms."""
        self.prepare_s += NEWEST_WEIGHT * (prepare / 1000 / size - self.prepare_s)
        busy = infer + starved
        if busy:
            self.starved += NEWEST_WEIGHT * (starved / busy - self.starved)

    def batch_done(
        self,
        batch: Batch,
        outcomes: list[Any],
        times: list[float],
        padding: int,
        fits: int,
        now: float,
    ) -> list[Settlement]:
        """Turn what a replica answered into settlements; what is too long is left as cargo.

        Args:
            batch: what it was given.
            outcomes: one per item.
            times: of the three stages, and how long the device waited for the first, in ms.
            padding: how many inputs it added to reach an allowed size.
            fits: how many of the items memory had room for; 0 if for all.
            now: when the answer came.
        """
        size = len(batch.jobs)
        self.stats.left(batch.reason)
        self.observe_memory(size, fits)
        self._weigh(size, *times)
        # The device ran the padding too.
        self.batcher.observe(size + padding, now - batch.started_at)
        self.deadlines.least_time.add(now - batch.started_at, now)
        self._observe(batch, times, padding, now)
        if self.callbacks.linked:
            self.callbacks.keep_results(batch.jobs, outcomes)
        return settle_batch(
            batch,
            outcomes,
            times,
            padding,
            self.pending_payloads,
            self.retry_policy,
            self.config.name,
        )

    def _observe(self, batch: Batch, times: list[float], padding: int, now: float) -> None:
        """Put a batch that has run into the histograms; its times are in ms."""
        jobs = batch.jobs
        self.stats.observe_batch(
            len(jobs),
            [job.claimed_at - job.enqueued_at for job in jobs],
            [job.dispatched_at - job.claimed_at for job in jobs],
            [now - job.enqueued_at for job in jobs],
            [took / 1000 for took in times[:3]],
            padding,
            times[3] / 1000,
        )

    def input_arrived(self, job: LeasedJob, body: bytes) -> None:
        """The item's input was fetched: it joins the others."""
        message = job.message
        if message is None or message.source is None:
            raise RuntimeError(f"no input of job {job.id} was asked for")
        kind = message.source.type
        job.content_type = "" if is_json(kind.partition(";")[0].strip().lower()) else kind
        job.message = msgspec.structs.replace(message, input=body)
        self.join(job)

    def transfer_failed(
        self, job: LeasedJob, error: HeadraceError, *, retryable: bool
    ) -> Settlement:
        """The end, or another try, of a job whose payload could not be moved."""
        if job.dropped:
            return discarded(job, 0, "")
        return failed(
            job, error.code, error.message, retryable=retryable, retries=self.retry_policy
        )

    def forget(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """These claims are over; of the jobs themselves it may hold newer ones."""
        held, linked = self.held, self.callbacks.linked
        for claim in claims:
            job = held.get(claim.id)
            if job is not None and job.token == claim.token:
                del held[claim.id]
            if linked:
                linked.pop(claim.token, None)
        self.pending_payloads.forget(claims)
