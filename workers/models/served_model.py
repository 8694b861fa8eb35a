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
from headrace.redis.scripts import CLAIM_HEAD, CLAIM_ROW
from workers.batching.batcher import Batcher, BatchPolicy, Hold, Leave
from workers.batching.expected_arrivals import ExpectedArrivals
from workers.batching.input_cost import InputCost
from workers.batching.memory_limit import MemoryLimit
from workers.jobs.leased_job import (
    NEVER,
    Batch,
    LeasedJob,
    Settlement,
    cancelled,
    claimed_item,
    failed,
    illegible,
    put_off,
)
from workers.jobs.retries import RetryPolicy
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
        model: its configuration.
        replicas: its model processes.
        held: every job that this worker has leased for the model, by id.
        backlog: what waits in Redis.
        company: what is known to come from there.
        cargo: its payloads on their way.
        unread: answers to claims, as they came.
        foretold: tokens of jobs that were cancelled before the answer to their claim was read.
        sequels: its jobs that others follow, and what is to be told to these.
        fitting: how many items its memory has room for together.
        recycled: how many of its processes were recycled.
        restarts: which of them were lost, and when the next may be started.
        policy: how often and when its jobs are tried again, unless they say.
        deadlines: until when its jobs must have begun, and have ended.
        events_per_s: of how many jobs a second monitors are told where they get a sample.
        telling: of which jobs they are told.
        last_error: why a load failed last.
        traced: a job was part of a trace, as others may be from then on.
        prepare_s: what `preprocess` takes for one item, of late.
        starved: which share of the device's time it stood idle, of late, because the batch that it
            was to run was still in `preprocess`.
    """

    model: ModelConfig
    max_retries: int
    replicas: list[Replica]
    stats: ModelStats = field(default_factory=ModelStats)
    unread: list[Sequence[Any]] = field(default_factory=list)
    foretold: set[str] = field(default_factory=set)
    held: dict[str, LeasedJob] = field(default_factory=dict)
    backlog: Backlog = field(default_factory=Backlog)
    company: ExpectedArrivals = field(default_factory=ExpectedArrivals)
    next_due_at: float | None = None
    hold_until: float | None = None
    recycled: int = 0
    last_error: str = ""
    cargo: PendingPayloads = field(default_factory=PendingPayloads)
    sequels: PendingCallbacks = field(default_factory=PendingCallbacks)
    traced: bool = False
    prepare_s: float = 0.0
    starved: float = 0.0
    events_per_s: int = 100
    telling: EventSampler = field(init=False)
    deadlines: Deadlines = field(init=False)
    restarts: RestartLimit = field(init=False)
    policy: RetryPolicy = field(init=False)
    fitting: MemoryLimit = field(init=False)
    batcher: Batcher[LeasedJob] = field(init=False)
    measure: InputCost = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        self.deadlines = Deadlines(model)
        self.telling = EventSampler(model.name, model.events, self.events_per_s, self.stats)
        bounds = (model.retry_backoff_s, model.retry_backoff_max_s)
        self.policy = RetryPolicy(self.max_retries, *bounds)
        self.restarts = RestartLimit(model.max_restarts_per_minute)
        self.fitting = MemoryLimit(model.max_batch_size, tuple(model.allowed_batch_sizes or ()))
        policy = BatchPolicy(
            max_batch_size=model.max_batch_size,
            max_batch_delay_s=model.max_batch_delay_ms / 1000,
            max_batch_cost=model.max_batch_cost,
            keyed=model.batch_key is not None,
            sizes=tuple(model.allowed_batch_sizes or ()),
        )
        self.batcher = Batcher(policy)
        self.measure = InputCost(model)

    @property
    def queue(self) -> str:
        """The queue that it is served from."""
        return self.model.queue

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
        prepared = len(self.batcher) or self.unread or ended
        return bool(prepared or self.cargo.moving or self.sequels.telling)

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
        if not self.backlog.askable or not self.serving:
            return []
        rooms = self.rooms
        return rooms if self.backlog.brings(rooms) else []

    def due(self, at: float) -> None:
        """Learn that a delayed job joins its queue then."""
        self.next_due_at = at if self.next_due_at is None else min(self.next_due_at, at)

    @property
    def in_need(self) -> bool:
        """Whether a claim would bring better jobs than all that are here."""
        return not self.batcher.online and (not len(self.batcher) or self.backlog.online)

    @property
    def expects_online(self) -> bool:
        """Whether online jobs are known to come, that an idle process could run at once."""
        if not self.idle:
            return False
        if self.backlog.claiming:
            return self.backlog.awaited
        return self.backlog.online and any(self.claimable[:-1])

    @property
    def yield_us(self) -> int:
        """After how long a wait a claim takes a job before better ones; 0: it takes none so."""
        if self.batcher.overdue(time.monotonic()):
            return 0  # one is here already
        return int(self.model.max_yield_s * US_PER_S)

    @property
    def rooms(self) -> list[int]:
        """How many more jobs fit of each step, with those whose payloads are on their way."""
        rooms = self.batcher.rooms
        if self.sequels.full:
            return [0] * len(rooms)
        return self.cargo.leaves(rooms) if self.cargo.moving else rooms

    def came(self, reply: Sequence[Any], now: float) -> None:
        """A claim was answered; what it gave is read next."""
        lefts = [int(left) for left in reply[1 : CLAIM_HEAD - 1]]
        jobs = (len(reply) - CLAIM_HEAD) // CLAIM_ROW
        self.backlog.gave(jobs)
        self.backlog.saw(lefts)
        self.company.answered(jobs, lefts, now)
        self.unread.append(reply)

    def read(self, now: float) -> list[Settlement]:
        """Read what claims gave; settle at once what will not run."""
        replies, self.unread = self.unread, []
        ended = [settlement for reply in replies for settlement in self.accept(reply, now)]
        if not self.backlog.claiming:
            self.foretold.clear()
        return ended

    def accept(self, reply: Sequence[Any], now: float) -> list[Settlement]:
        """Take in what a claim gave; settle at once what will not run."""
        now_us = int(reply[0])
        ended, yield_s = [], self.model.max_yield_s or NEVER
        for at in range(CLAIM_HEAD, len(reply), CLAIM_ROW):
            item = claimed_item(reply[at + 1 : at + CLAIM_ROW], now, now_us, yield_s)
            self.held[item.id] = item
            settlement = self._read(item, reply[at], now, now_us)
            if settlement is not None:
                ended.append(settlement)
            elif item.message is not None and item.message.source:
                self.cargo.fetch(item, self.model.name, item.message.source)
            else:
                self.join(item)
        return ended

    def join(self, item: LeasedJob) -> None:
        """The item's input is here: it waits for its batch."""
        if self.measure.needed:
            item.cost = self.measure.cost(item.input, item.kind)
            item.key = self.measure.key(item.input, item.kind)
        if item.expires_at == NEVER or not self.deadlines.hopeless(item, self.replicas):
            self.batcher.add(item)

    def _read(self, item: LeasedJob, raw: bytes, now: float, now_us: int) -> Settlement | None:
        """Read the message; the settlement of a job that is not to run now, else None."""
        try:
            message = read_envelope(raw)
        except InvalidRequest as error:
            self.sequels.link(item, raw)
            return illegible(item, raw, error)
        item.message = message
        if message.trace is not None:
            self.traced = True
        if message.followed and not self.sequels.link(item, raw):
            unreadable = "the signatures of what follows the job cannot be read"
            return failed(item, InvalidRequest.code, unreadable)
        if item.token in self.foretold:
            self.foretold.discard(item.token)
            return self.cancel(item)
        if message.model != self.model.name:
            return failed(
                item,
                "invalid-request",
                f"the queue {self.queue} serves the model {self.model.name}, not {message.model!r}",
            )
        if message.expires_s is None and message.eta_s is None:
            return None
        wait_s = item.date(message, now, now_us)
        if item.expires_at <= now:
            return self.deadlines.expired(item)
        return put_off(item, wait_s) if wait_s else None

    def take_all(self) -> list[LeasedJob]:
        """The prepared jobs, for their release."""
        items = self.batcher.take_all()
        self.deadlines.left(items)
        return items

    def cancel(self, item: LeasedJob) -> Settlement:
        """The end of a job that was not handed over yet."""
        item.dropped = "cancelled"
        return cancelled(item)

    def next_batch(self, now: float, *, draining: bool = False) -> Batch | None:
        """The batch that leaves now for an idle replica, if one does."""
        self.hold_until = (
            None if draining else self.company.hold_until(self.batcher, self.rooms, now)
        )
        if self.hold_until is not None:
            return None
        decision = self.batcher.decide(now, draining=draining)
        self.hold_until = decision.until if isinstance(decision, Hold) else None
        if not isinstance(decision, Leave):
            return None
        items, reason = decision.items, decision.reason
        self.deadlines.left(items)
        limit_s = self.deadlines.shortest_s(items)
        least_s = self.deadlines.least.at(now)
        if limit_s < least_s:
            items = self.deadlines.in_time(items, least_s)
            if not items:
                return self.next_batch(now, draining=draining)
            limit_s = self.deadlines.shortest_s(items)
        epoch = time.time()
        for item in items:
            item.dispatched_at, item.dispatched_epoch_s = now, epoch
        return Batch(items, reason, now, now + limit_s, traced=self.traced)

    def fit(self, size: int, fits: int) -> None:
        """Learn how much memory has room for: a batch of `size` ran, or only `fits` at once."""
        if self.fitting.observe(size, fits):
            limit = self.fitting.limit
            self.batcher.policy = replace(self.batcher.policy, max_batch_size=limit)
            if fits:
                logger.warning(
                    "out of memory with %d items; its batches have at most %d for now",
                    size, limit, extra={"model": self.model.name, "size": size},
                )  # fmt: skip

    def _weigh(self, size: int, prepare: float, infer: float, _: float, starved: float) -> None:
        """Learn where the time goes, from a batch's stages in ms."""
        self.prepare_s += NEWEST_WEIGHT * (prepare / 1000 / size - self.prepare_s)
        busy = infer + starved
        if busy:
            self.starved += NEWEST_WEIGHT * (starved / busy - self.starved)

    def collect(
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
        size = len(batch.items)
        self.stats.left(batch.reason)
        self.fit(size, fits)
        self._weigh(size, *times)
        # The device ran the padding too.
        self.batcher.observe(size + padding, now - batch.started_at)
        self.deadlines.least.add(now - batch.started_at, now)
        self._observe(batch, times, padding, now)
        if self.sequels.linked:
            self.sequels.note(batch.items, outcomes)
        return settle_batch(
            batch, outcomes, times, padding, self.cargo, self.policy, self.model.name
        )

    def _observe(self, batch: Batch, times: list[float], padding: int, now: float) -> None:
        """Put a batch that has run into the histograms; its times are in ms."""
        items = batch.items
        self.stats.observe_batch(
            len(items),
            [item.claimed_at - item.enqueued_at for item in items],
            [item.dispatched_at - item.claimed_at for item in items],
            [now - item.enqueued_at for item in items],
            [took / 1000 for took in times[:3]],
            padding,
            times[3] / 1000,
        )

    def arrived(self, item: LeasedJob, body: bytes) -> None:
        """The item's input was fetched: it joins the others."""
        message = item.message
        if message is None or message.source is None:
            raise RuntimeError(f"no input of job {item.id} was asked for")
        kind = message.source.type
        item.kind = "" if is_json(kind.partition(";")[0].strip().lower()) else kind
        item.message = msgspec.structs.replace(message, input=body)
        self.join(item)

    def unmoved(self, item: LeasedJob, error: HeadraceError, *, retryable: bool) -> Settlement:
        """The end, or another try, of a job whose payload could not be moved."""
        if item.dropped:
            return discarded(item, 0, "")
        return failed(item, error.code, error.message, retryable=retryable, retries=self.policy)

    def forget(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """These claims are over; of the jobs themselves it may hold newer ones."""
        held, linked = self.held, self.sequels.linked
        for claim in claims:
            item = held.get(claim.id)
            if item is not None and item.token == claim.token:
                del held[claim.id]
            if linked:
                linked.pop(claim.token, None)
        self.cargo.settled(claims)
