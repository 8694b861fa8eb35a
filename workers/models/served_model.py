"""What a worker holds of a model: its jobs, its batcher, its replicas and its limits.

`ServedModel` decides and keeps the state. The consumer talks to Redis and to the model processes,
and calls it for each event. Its parts are its own: the backlog, the claims, the batcher, the
deadlines, and the payloads and callbacks that wait. Only its statistics and the history of its
replicas are for others too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from headrace.config.model.catalog import ModelConfig
from headrace.observability.worker_report import ROWS, ModelStats
from headrace.payloads.store import PayloadEntry
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import OFFLINE_STEP, version_queue
from headrace.redis.scripts.jobs import ClaimReply
from headrace.redis.scripts.queues import SweepReply
from workers.batching.batcher import STEP_PLACE, Batcher, Hold, Leave, Reason, batch_policy
from workers.batching.estimates import MemoryLimit
from workers.batching.input_cost import InputCost
from workers.jobs.leased_job import NEVER, START_WRITTEN_S, TIMED_OUT, Batch, LeasedJob
from workers.jobs.settlement import NOT_RUN, RetryPolicy, Settlement, failed
from workers.models.backlog import OWN, Backlog, Place
from workers.models.held import (
    C,
    Claims,
    Deadlines,
    OrphanedEnd,
    PendingCallbacks,
    PendingPayloads,
    PendingResult,
    TransferOutcome,
    UnsentCallbacks,
    cancel,
)
from workers.models.settling import discarded, settle_batch
from workers.protocol.frames import Done, Phase
from workers.replicas.history import ReplicaHistory
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: How long a generator has to let a job leave that has exceeded its timeout, in seconds.
LEAVE_S: Final = 5.0
#: A batch that ends sooner than this needs no notification meanwhile: its end claims anyway.
SHORT_BATCH_S: Final = 0.005
#: Weight of the newest batch in running means.
NEWEST_WEIGHT: Final = 0.2


class Life(StrEnum):
    """How far a served model is; one that replaces another loads first, then the other retires."""

    LOADING = "loading"
    SERVING = "serving"
    RETIRING = "retiring"


class ServedModel:
    """A model of a worker.

    `pending_payloads` decides which results are stored as payloads; by default none is.

    Attributes:
        key: its name in this worker; that of the model, unless it serves another version or
            replaces a predecessor.
        template: a replica with the frame and the environment with which each of its replicas
            starts.
        loads: how many reloads the registry had when it was built.
        update_error: why a newer configuration could not be loaded, with the traceback.
        position: its number among the notifications of the queues; None if it has none.
        queues: the names of its queues, as `Backlog` numbers them.
        hold_until: until when the prepared jobs wait for others; None if they do not.
        free_since: since when the device is free for jobs that are held back; None without such.
        next_due_at: when the next delayed job joins the queue; NEVER if unknown.
        prepare_s: recent seconds of `preprocess` for an input.
        starved: the recent share of the device's time spent waiting for `preprocess`.
        load_mib: the memory that a replica took at the last load; 0 if it was not measured.
        continuous: its handler is a generator: jobs join those that run.
        lacks_memory: a replica was not started, as there was no memory for it.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_retries: int,
        replicas: list[Replica],
        pending_payloads: PendingPayloads | None = None,
        *,
        key: str = "",
        stats: ModelStats | None = None,
        template: Replica | None = None,
    ) -> None:
        self.config = config
        self.key = key or config.name
        self.life = Life.SERVING
        self.loads = 0
        self.position: int | None = None
        self.update_error = ""
        self.queue = config.queue
        self.queues = (config.queue, version_queue(config.name, config.version))
        self.replicas = replicas
        self.template = template or (replicas[0] if replicas else Replica({"device": "cpu"}, {}))
        device: str = self.template.init["device"]
        self.device = "cuda:0" if device == "cuda" else device
        self._held: dict[str, LeasedJob] = {}
        self.hold_until: float | None = None
        self.free_since: float | None = None
        self.next_due_at = NEVER
        self.prepare_s = self.starved = self.load_mib = 0.0
        self.lacks_memory = self.continuous = False
        self.stats = stats or ModelStats()
        self.replica_history = ReplicaHistory(config.max_restarts_per_minute, self.stats)
        self.retry_policy = RetryPolicy(
            max_retries, config.retry_backoff_s, config.retry_backoff_max_s
        )
        sizes = tuple(config.allowed_batch_sizes or ())
        self._memory_limit = MemoryLimit(config.max_batch_size, sizes)
        self._batcher: Batcher[LeasedJob] = Batcher(batch_policy(config))
        self._backlog = Backlog(config.max_yield_s)
        self._deadlines = Deadlines(config, self._batcher)
        self._pending_payloads = pending_payloads or PendingPayloads()
        self._callbacks = PendingCallbacks()
        self._claims = Claims(
            config, self.queues, self._held, self._batcher, self._pending_payloads, self._callbacks,
            self._prepare,
        )  # fmt: skip
        self._input_cost = InputCost(config)

    @property
    def serving(self) -> bool:
        """Whether it may claim jobs: it does not load or retire, and a replica is loaded."""
        return self.life is Life.SERVING and any(
            replica.state is Phase.READY for replica in self.replicas
        )

    @property
    def lasting(self) -> list[Replica]:
        """Its replicas that are not to end, the loaded ones first.

        Of those the last one gets a batch only if the others have one.
        """
        lasting = (
            replica for replica in self.replicas if not (replica.surplus or replica.successor)
        )
        return sorted(lasting, key=lambda replica: replica.state is not Phase.READY)

    @property
    def held(self) -> Collection[LeasedJob]:
        """Every job that this worker has leased for the model."""
        return self._held.values()

    def held_job(self, job_id: str) -> LeasedJob | None:
        """Return the job of this id, if it is held."""
        return self._held.get(job_id)

    def holds(self, job: LeasedJob) -> bool:
        """Return whether a job is held, and by this claim."""
        return self._held.get(job.id) is job

    @property
    def idle(self) -> bool:
        """Whether a loaded replica waits for a batch."""
        return any(replica.idle for replica in self.replicas)

    @property
    def takes_jobs(self) -> bool:
        """Whether a loaded replica waits for a batch, or a generator has room for more jobs."""
        return any(replica.idle or replica.joinable for replica in self.replicas)

    @property
    def prepared(self) -> int:
        """How many jobs are in the batcher, ready to run."""
        return len(self._batcher)

    @property
    def online(self) -> int:
        """How many of them are online jobs."""
        return self._batcher.online

    def overdue(self, now: float) -> bool:
        """Return whether a prepared job has waited too long."""
        return self._batcher.overdue(now)

    @property
    def isolated(self) -> bool:
        """Whether a prepared job must run isolated."""
        return self._batcher.isolated

    def next_isolated(self, now: float) -> LeasedJob | None:
        """Return the next isolated job, if any."""
        return self._batcher.next_isolated(now)

    @property
    def unfinished(self) -> bool:
        """Whether it holds jobs outside model processes that must be settled or released."""
        prepared = self.prepared or self._claims.unread or self._deadlines.ended
        reading = self._claims.reading or self._pending_payloads.in_transfer
        return bool(prepared or reading or self._callbacks.notifying)

    @property
    def wants_turn(self) -> bool:
        """Whether a batch could run on a loaded replica."""
        return bool(self.prepared) and self.idle

    # What waits in its queues

    @property
    def waiting(self) -> int:
        """How many jobs are prepared, or waited in the queues at the last sweep."""
        return self.prepared + self._backlog.depth

    @property
    def jobs_wait(self) -> bool:
        """Whether jobs are known to wait in a queue."""
        return any(any(queue.waiting) for queue in self._backlog.queues)

    @property
    def own_closed(self) -> bool:
        """Whether another served model claims from the model's own queue."""
        return self._backlog.queues[OWN].closed

    def close_queue(self) -> None:
        """Claim no more from the model's own queue: another served model does."""
        self._backlog.set_closed(OWN, closed=True)

    def open_queue(self) -> None:
        """Claim from the model's own queue."""
        self._backlog.set_closed(OWN, closed=False)

    def wants_notification(self, place: Place, now: float) -> bool:
        """Return whether the next change of a list should wake the worker."""
        if not self._backlog.watches(place, now) or not self.serving or not self.room[place.step]:
            return False
        # An online job must not wait for an offline batch that has not started.
        offline_next = place.step < STEP_PLACE[OFFLINE_STEP] and self.prepared and not self.online
        return self.takes_jobs or bool(offline_next) or self.batch_ends_in_s(now) > SHORT_BATCH_S

    def notified(self, place: Place, now: float, workers: int) -> None:
        """Note that a list has changed, for `workers` of them: a message may wait there."""
        self._backlog.notified(place, now, workers=workers, busy=not self.takes_jobs)

    def look_due(self, now: float) -> float:
        """Return when it wants to know again whether messages wait; infinity if it does now."""
        return self._backlog.look_due(now)

    def missed(self, place: Place) -> None:
        """Note that messages wait in a list, for which a guess would have been right."""
        self._backlog.missed(place)

    def expect_jobs(self) -> None:
        """Assume that a message waits in each list; the next claim finds out."""
        self._backlog.assume_waiting()

    def guess(self, places: Sequence[Place]) -> None:
        """Assume after a batch that new messages wait in these lists, if such guesses pay off."""
        self._backlog.guess(places)

    @property
    def expects_online(self) -> bool:
        """Whether online jobs will come that an idle replica could run at once."""
        if not self.idle:
            return False
        if self._backlog.claiming:
            return self._backlog.online_awaited
        return self._backlog.online and any(self.claim_request()[:-1])

    def quiet_for(self, seconds: float, now: float) -> bool:
        """Return whether no online job came for so long, and none is known to come."""
        known = self._backlog.online or self._backlog.online_awaited
        return not known and now - self._batcher.online_at > seconds

    # Claims

    @property
    def room(self) -> list[int]:
        """How many more jobs of each step fit, counting those whose payloads are in transfer."""
        room = self._batcher.room
        if self.continuous:
            ready = [replica for replica in self.replicas if replica.state is Phase.READY]
            reading = len(self._claims.reading_logs)
            free = sum(max(0, replica.room) for replica in ready) - reading
            offline = sum(max(0, replica.offline_room) for replica in ready) - reading
            room = self._batcher.room_in(max(0, free))
            room[-1] = self._batcher.room_in(max(0, offline))[-1]
        if self._callbacks.full:
            return [0] * len(room)
        payloads = self._pending_payloads
        return payloads.room_left(room) if payloads.in_transfer else room

    def claim_request(self) -> list[int]:
        """Return the room for jobs of each step, best first; empty if nothing should be claimed.

        A claim prepares at most one batch, or two if the model has batch keys. What is claimed
        beyond that would wait here while another worker is free.
        """
        if not self._backlog.claimable or not self.serving:
            return []
        room = self.room
        return room if self._backlog.fills(room) else []

    @property
    def claiming(self) -> bool:
        """Whether a claim was sent and not answered."""
        return bool(self._backlog.claiming)

    @property
    def claims_better(self) -> bool:
        """Whether a claim would return better jobs than all that are prepared."""
        batcher = self._batcher
        return not batcher.online and (not len(batcher) or self._backlog.online)

    def whole_batch_waits(self, room: Sequence[int]) -> bool:
        """Return whether a whole batch is known to wait in Redis for this room."""
        size = self.batch_limit
        return max(room, default=0) >= size <= self._backlog.fitting(room)

    @property
    def whole_batch_unread(self) -> bool:
        """Whether the unread claims are surely one full batch that can run at once.

        This is known only for models without costs and keys.
        """
        policy = self._batcher.policy
        bounded = policy.max_batch_cost is not None or policy.keyed
        others = self.prepared or self.transferring
        unread = sum(len(claim.jobs) for claim in self._claims.unread)
        return unread >= policy.max_batch_size and not bounded and not others

    def claim_sent(self, room: Sequence[int], now: float) -> list[tuple[int, Sequence[int]]]:
        """Note that a claim is sent; return the numbers of its queues, and the room of each."""
        return self._backlog.claim_sent(room, now)

    def claim_refused(self) -> None:
        """Note that Redis has refused to claim from a queue."""
        self._backlog.refused()

    def claim_lost(self) -> None:
        """Note that a claim never will be answered."""
        self._backlog.end_claim()

    def connection_lost(self) -> None:
        """Expect no jobs until Redis is back."""
        self._backlog.connection_lost()

    def claim_answered(self, reply: ClaimReply, now: float, number: int = OWN) -> None:
        """Keep the reply to a claim from one of its queues; `read_claims` reads its jobs."""
        self._backlog.claim_answered(len(reply.jobs), reply.waiting, now, number)
        self._claims.add(reply, number)

    @property
    def unread(self) -> bool:
        """Whether claimed jobs have not been read."""
        return bool(self._claims.unread)

    def read_claims(self, now: float) -> list[Settlement]:
        """Read the claimed jobs; return the settlements of those that will not run now.

        Withheld ones are read by `message_read`.
        """
        ended = self._claims.read(now)
        if not self._backlog.claiming:
            self._claims.cancelled_tokens.clear()
        return ended

    def take_misplaced(self) -> list[LeasedJob]:
        """Return the jobs that ask for another version, and must be moved to its queue."""
        jobs, self._claims.misplaced = self._claims.misplaced, []
        return jobs

    def begin_reading(self, job: LeasedJob) -> bool:
        """Take a withheld job to read its message; return False if it does not wait here."""
        return self._claims.begin_reading(job)

    def message_read(self, job: LeasedJob, raw: bytes | None) -> Settlement | None:
        """Note the message of a withheld job; return its settlement if it will not run now.

        Without a message the job waits as before.
        """
        return self._claims.message_read(job, raw)

    def take_wanted_logs(self) -> list[LeasedJob]:
        """Return the jobs whose logs must be read, since the last call."""
        jobs, self._claims.logs_wanted = self._claims.logs_wanted, []
        return jobs

    def waits_for_log(self, job: LeasedJob) -> bool:
        """Return whether a job still waits for its log."""
        return job.token in self._claims.reading_logs

    def log_read(self, job: LeasedJob, entries: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Note the log of a generator's job, which then runs."""
        self._claims.log_read(job, entries)

    @property
    def versioned(self) -> bool:
        """Whether jobs were found in the queue of its version."""
        return self._claims.versioned

    def queue_of(self, job: LeasedJob) -> str:
        """Return the name of the queue from which a job was claimed."""
        return self.queues[self._claims.queue_number(job)]

    def by_queue(self, claims: list[C]) -> list[tuple[str, list[C]]]:
        """Return claims of jobs by the queues from which they came."""
        return self._claims.by_queue(claims)

    def losses(self, max_deliveries: int, kept: str) -> str:
        """Return what happens to its lost jobs, as `RetryPolicy.loss_arguments` writes it."""
        return self.retry_policy.loss_arguments(max_deliveries, kept)

    def is_prepared_soon(self, job: LeasedJob) -> bool:
        """Return whether the message, the input or the log of a job is being read."""
        return job in self._claims.reading or job.token in self._pending_payloads.in_transfer

    def _prepare(self, job: LeasedJob) -> None:
        if self._input_cost.needed:
            job.cost = self._input_cost.cost(job.input, job.content_type)
            job.key = self._input_cost.key(job.input, job.content_type)
        if job.expires_at == NEVER or not self._deadlines.expires_too_soon(job, self.replicas):
            if self.continuous:
                self._claims.want_log(job)
            else:
                self._batcher.add(job)

    # Payloads and callbacks

    def take_payload_work(self) -> tuple[list[LeasedJob], list[PendingResult], list[PayloadEntry]]:
        """Return new work: inputs to fetch, results to store, payloads that may be deleted."""
        return self._pending_payloads.take_work()

    @property
    def transferring(self) -> bool:
        """Whether the payload of a job is being fetched or stored."""
        return bool(self._pending_payloads.in_transfer)

    def take_callback_work(self) -> tuple[list[UnsentCallbacks], list[OrphanedEnd]]:
        """Return new callbacks to send: of jobs that have ended, and of orphaned ends."""
        return self._callbacks.take_work()

    def hold_for_callbacks(self, settlements: list[Settlement]) -> list[Settlement]:
        """Keep the settlements that must wait for callbacks; return the others."""
        return self._callbacks.hold_for_callbacks(settlements)

    def awaits_callbacks(self, job: LeasedJob) -> bool:
        """Return whether the callbacks of a job that has ended are being sent."""
        return job.token in self._callbacks.notifying

    @property
    def orphaned_room(self) -> int:
        """How many orphaned ends the next sweep may return."""
        return self._callbacks.orphaned_room

    def orphaned_end_handled(self) -> None:
        """Note that the notifier has handled an orphaned end."""
        self._callbacks.orphaned_pending -= 1

    def transfer_done(self, outcome: TransferOutcome) -> Settlement | None:
        """Take a fetched input, or return the settlement of a job whose transfer has ended."""
        job, body, result, error, retryable = outcome
        self._pending_payloads.in_transfer.pop(job.token, None)
        if not self.holds(job):
            # The claim is over: another worker, or a newer claim, has the job.
            self._pending_payloads.let_go([job])
            return None
        if job.dropped and result is None:
            return None  # settled when it was cancelled
        if error is not None:
            logger.warning("%s", error.message, extra={"model": self.config.name, "job": job.id})
            if job.dropped:
                return discarded(job, 0, NOT_RUN)
            retries = self.retry_policy
            return failed(job, error.code, error.message, retryable=retryable, retries=retries)
        if result is not None:
            return result.settlement
        if body is not None:
            self._claims.input_read(job, body)
        return None

    def callbacks_sent(self, job: LeasedJob) -> bool:
        """Note that a job's callbacks were sent; return whether the job is still held."""
        self._callbacks.notifying.pop(job.token, None)
        return self.holds(job)

    # Batches

    @property
    def batch_limit(self) -> int:
        """How many jobs a batch has at most, as far as the memory is known."""
        return self._memory_limit.limit

    @property
    def fits(self) -> int:
        """The batch size that fits into memory; 0 if that is the configured size."""
        limit = self._memory_limit.limit
        return limit if limit < self._memory_limit.max_size else 0

    def process_starts(self) -> None:
        """Note that a model process is started, which may be faster than the earlier ones."""
        self.lacks_memory = False
        self._deadlines.least_time.clear()

    def timeout_s(self, jobs: Iterable[LeasedJob]) -> float:
        """Return how long a batch of these jobs may run: the shortest of their timeouts."""
        return self._deadlines.timeout_s(jobs)

    def expire(self, now: float) -> None:
        """End the prepared jobs that have expired."""
        self._deadlines.expire(now)

    def take_ended(self) -> list[Settlement]:
        """Return the settlements of the jobs that could not begin in time."""
        return self._deadlines.take_ended()

    @property
    def due_at(self) -> float:
        """When a job expires, or joins the queue after a delay."""
        return min(self._deadlines.next_at, self.next_due_at)

    def batch_ends_in_s(self, now: float) -> float:
        """Return in how many seconds the first running batch should end; 0 if none runs."""
        usual_s = self._batcher.latency_model.usual_s or float("inf")
        running = [replica.batch for replica in self.replicas if replica.batch is not None]
        return min((batch.started_at + usual_s - now for batch in running), default=0.0)

    def next_batch(
        self, now: float, *, draining: bool = False, behind: Batch | None = None
    ) -> Batch | None:
        """Return the batch that leaves now; None if none does.

        It is for an idle replica, or is staged behind a running batch.
        """
        if self._backlog.expected_step is not None and not draining and not self.continuous:
            self.hold_until = self._backlog.hold_until(self._batcher, self.room, now)
            if self.hold_until is not None:
                return None
        running = behind.online if behind is not None else None
        decision = self._batcher.decide(now, draining=draining, behind=running)
        self.hold_until = decision.until if isinstance(decision, Hold) else None
        if not isinstance(decision, Leave):
            return None
        batch = self._leave(decision.items, decision.reason, now)
        return batch or self.next_batch(now, draining=draining, behind=behind)

    def isolated_batch(self, job: LeasedJob, now: float) -> Batch | None:
        """Return the batch of an isolated job that runs now; None if the job has ended."""
        return self._leave([job], "alone", now) if self._batcher.take_isolated(job) else None

    def _leave(self, jobs: list[LeasedJob], reason: Reason, now: float) -> Batch | None:
        """Return the batch of jobs that leave the batcher; None if all of them ended instead."""
        self._deadlines.unwatch(jobs)
        limit_s = self._deadlines.timeout_s(jobs)
        least_s = self._deadlines.least_time.at(now)
        if limit_s < least_s:
            jobs = self._deadlines.keep_feasible(jobs, least_s)
            if not jobs:
                return None
            limit_s = self._deadlines.timeout_s(jobs)
        epoch = time.time()
        for job in jobs:
            job.dispatched_at, job.dispatched_epoch_s = now, epoch
        free_at = now if self.free_since is None else self.free_since
        self.free_since = None
        return Batch(
            jobs, reason, now, now + limit_s, free_at, now + START_WRITTEN_S,
            traced=self._claims.traced,
        )  # fmt: skip

    def batch_ended(self, batch: Batch, now: float) -> None:
        """Note that a batch has run, before it is settled: its callers may come back."""
        self._batcher.batch_ended(batch.online, now, now - batch.started_at)
        self._backlog.look_now()

    def batch_done(
        self, batch: Batch, result: Done, now: float
    ) -> tuple[list[Settlement], list[Settlement]]:
        """Return how the jobs of a batch end: what to send now, and what waits for the store."""
        size = len(batch.jobs)
        self.replica_history.add_batch()
        self.stats.left(batch.reason)
        self.observe_memory(size, result.fits)
        prepare_ms, infer_ms, _, starved_ms = result.times
        self.prepare_s += NEWEST_WEIGHT * (prepare_ms / 1000 / size - self.prepare_s)
        if busy_ms := infer_ms + starved_ms:
            self.starved += NEWEST_WEIGHT * (starved_ms / busy_ms - self.starved)
        # The device ran the padding too.
        self._batcher.latency_model.add(size + result.padding, now - batch.started_at)
        self._deadlines.least_time.add(now - batch.started_at, now)
        if batch.jobs[0].dropped == TIMED_OUT:
            return [self._deadlines.timed_out(batch, now, killed=False)], []
        if self._callbacks.linked:
            self._callbacks.keep_results(batch.jobs, result.outcomes)
        began_at = batch.began_at(now, result.times) if batch.staged else batch.started_at
        ready, storing, waits = settle_batch(
            batch, result, began_at, self._pending_payloads, self.retry_policy, self.config.name
        )
        if self.config.cost == "rows":
            self.stats.count(ROWS, sum(job.cost for job in batch.jobs))
        self.stats.observe_batch(
            size,
            [job.claimed_at - job.enqueued_at for job in batch.jobs],
            waits,
            [now - job.enqueued_at for job in batch.jobs],
            [took / 1000 for took in result.times[:3]],
            result.padding,
            result.times[3] / 1000,
        )
        return ready, storing

    def observe_memory(self, size: int, fits: int) -> None:
        """Learn that a batch of `size` ran, or that only `fits` of it fit into memory."""
        if self._memory_limit.observe(size, fits):
            limit = self._memory_limit.limit
            self._batcher.policy = replace(self._batcher.policy, max_batch_size=limit)
            if fits:
                logger.warning(
                    "out of memory with %d inputs; batches are limited to %d for now",
                    size, limit, extra={"model": self.config.name, "size": size},
                )  # fmt: skip

    def set_continuous(self, continuous: bool) -> None:
        """Note whether its handler is a generator: then no job waits for a batch."""
        self.continuous = continuous
        if continuous:
            self._batcher.policy = replace(
                self._batcher.policy, max_batch_size=1, max_batch_delay_s=0.0
            )

    def let_leave(self, replica: Replica, batch: Batch, now: float) -> bool:
        """Let a job beyond its timeout leave a generator; return whether the process has time."""
        (job, *_) = batch.jobs
        if not replica.continuous or job.dropped == TIMED_OUT:
            return False
        self._skip(job, TIMED_OUT)
        batch.deadline = now + LEAVE_S
        return True

    def batch_timed_out(self, batch: Batch, now: float, trace: str) -> Settlement:
        """Return the settlement of a job that exceeded its timeout alone in this batch."""
        self.stats.left(batch.reason)
        return self._deadlines.timed_out(batch, now, trace)

    def batch_returned(self, batch: Batch) -> list[Settlement]:
        """Put the jobs of a preempted batch back in front; return those that end instead."""
        ended, waiting = [], []
        for job in batch.jobs:
            job.dispatched_at = 0.0
            if job.dropped == "cancelled":
                ended.append(cancel(job))
            elif job.dropped:
                self.let_go([job])
            elif not self._deadlines.expires_too_soon(job, self.replicas):
                waiting.append(job)
        self._batcher.put_back(waiting)
        return ended

    # Ends

    def take_out_withheld(self, job_id: str, token: str) -> LeasedJob | None:
        """Take a withheld job that was cancelled; None if its message is read, or none has the id.

        Its callbacks are unknown here, so its release ends it.
        """
        job = self._held.get(job_id)
        unread = job is not None and job.token == token and job.withheld and not job.dropped
        return job if job is not None and unread and self.take_out(job) else None

    def cancel(self, job_id: str, token: str) -> list[Settlement]:
        """Cancel a job; return its settlement if no replica has it.

        If the job is dispatched, the model process gets a request to skip it. If that is too late,
        its result is discarded.
        """
        job = self._held.get(job_id)
        if job is None or job.token != token:
            if self._backlog.claiming or self._claims.unread:
                self._claims.cancelled_tokens.add(token)
            return []
        if job.dropped:
            return []
        if self.take_out(job):
            return [cancel(job)]
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
        if self.take_out(job):
            job.dropped = "lost"
            self.let_go([job])
        elif job.dispatched_at:
            self._skip(job, "lost")

    def _skip(self, job: LeasedJob, why: str) -> None:
        job.dropped = why
        for replica in self.replicas:
            replica.drop(job)

    def take_out(self, job: LeasedJob) -> bool:
        """Remove a job that is prepared, read or in transfer; return whether it was."""
        if job.dispatched_at:
            return False
        if self._batcher.remove(job):
            self._deadlines.unwatch([job])
            return True
        if self._pending_payloads.in_transfer.pop(job.token, None) is not None:
            return True
        return self._claims.take_out(job)

    def let_go(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """Hold these claims no more, which are over; newer claims of the same jobs stay held."""
        held, linked = self._held, self._callbacks.linked
        for claim in claims:
            job = held.get(claim.id)
            if job is not None and job.token == claim.token:
                del held[claim.id]
            if linked:
                linked.pop(claim.token, None)
        self._claims.let_go(claims)
        self._pending_payloads.let_go(claims)

    def released(self, jobs: Sequence[LeasedJob]) -> None:
        """Hold these jobs no more, which are back in the queue."""
        for job in jobs:
            self._backlog.returned(Place(self._claims.queue_number(job), STEP_PLACE[job.step]))
        self.let_go(jobs)

    def release_prepared(self) -> list[LeasedJob]:
        """Empty the batcher; return its jobs for their release."""
        jobs = self._batcher.take_all()
        self._deadlines.unwatch(jobs)
        return jobs

    def release_all(self) -> list[LeasedJob]:
        """Return all jobs that are in no model process, for their release."""
        transfers, notifying = self._pending_payloads.in_transfer, self._callbacks.notifying
        reading = [job for job in self._claims.reading if self._claims.take_out(job)]
        return [*self.release_prepared(), *reading, *transfers.values(), *notifying.values()]

    def swept(self, queue: str, reply: SweepReply, now: float) -> None:
        """Note the reply to a sweep of one of the model's queues."""
        if reply.due_in_us is not None:
            self.next_due_at = min(self.next_due_at, now + reply.due_in_us / US_PER_S)
        if queue in self.queues:
            self._backlog.raise_waiting(reply.waiting, self.queues.index(queue))
        if reply.orphaned:
            self._callbacks.add_orphaned(queue, reply.orphaned)
