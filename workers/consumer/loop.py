"""The consumer: one thread that wakes, claims, dispatches, collects and settles for all models.

Each turn gathers what the model processes returned and what the batchers need, and sends it to
Redis in one write, whose replies are read when they come. If a deep backlog waits, the next claim
is sent before the last one is read, so that Redis works on it meanwhile. While Redis is away the
model processes go on, and their results are settled with the same tokens when it is back.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from headrace.observability.logs import batch_name, batch_tag
from headrace.redis.keys import STEPS
from headrace.redis.outages import DISCONNECTED
from workers.canvas.notifier import CanvasNotifier
from workers.consumer.claimer import Claimer
from workers.consumer.held_jobs import HeldJobs
from workers.consumer.observer import WorkerObserver
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.progress import ProgressWriter
from workers.consumer.replica_failures import ReplicaFailures
from workers.jobs.batch import Batch
from workers.jobs.leased_job import NEVER
from workers.leases.connection import BackgroundConnect, watch_sockets
from workers.leases.manager import LeaseManager
from workers.leases.notifications import POLL_S, QueueNotifications
from workers.models.claiming import claim_request, wants_notification
from workers.models.served_model import ServedModel
from workers.models.settling import BatchResult
from workers.models.timing import due_times
from workers.observability.batch_log import log_ended, log_left
from workers.observability.worker_report import WorkerReporter
from workers.protocol.phases import Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher
from workers.scheduling.staging import replica_for_second, stage_at

SWEEP_S: Final = 1.0


class FinishedBatch(NamedTuple):
    """A batch that has run and is not settled.

    Between the two the next batch is dispatched, so that no device waits for settlements.
    """

    model: ServedModel
    batch: Batch
    result: BatchResult
    at: float


class Consumer:
    """The loop over one worker's models; `run` is the body of its thread.

    Args:
        models: the models.
        leases: the session with Redis.
        notifications: the connection on which Redis reports changed queues.
        observer: publishes task events.
        report: reports model states and counters.
        orphan_guard: ends what model processes have started when this worker is gone.
        transfer: fetches and stores payloads.
        dispatcher: decides which batch runs next.
        notifier: sends the callbacks of ended jobs.
    """

    def __init__(
        self,
        models: list[ServedModel],
        leases: LeaseManager,
        notifications: QueueNotifications,
        observer: WorkerObserver,
        report: WorkerReporter,
        orphan_guard: OrphanGuard,
        transfer: PayloadTransfer,
        dispatcher: Dispatcher,
        notifier: CanvasNotifier,
    ) -> None:
        self.models = models
        # The place of each model's best list among all lists of `notifications`.
        self._first_list = {model.config.name: n * len(STEPS) for n, model in enumerate(models)}
        self._leases = leases
        self._notifications = notifications
        self._observer = observer
        self._report = report
        self._transfer = transfer
        self._dispatcher = dispatcher
        self._held_jobs = HeldJobs(models, leases)
        self._progress = ProgressWriter(leases)
        self._notifier = notifier
        self._finished: list[FinishedBatch] = []
        self._claimer = Claimer(models, leases, dispatcher)
        self._selector = selectors.DefaultSelector()
        self._failures = ReplicaFailures(self._selector, leases, observer, orphan_guard)
        self._replica_manager = self._failures.replica_manager
        self._signal_out, self._signal_in = os.pipe()
        self._stopping = threading.Event()
        self._connecting: BackgroundConnect | None = None
        self._drain_until = float("inf")
        self._watched: list[Any] = []
        self._seq = 0
        self._tag = batch_tag(leases.owner)
        self._sweep_at = self._renew_at = 0.0

    def stop(self) -> None:
        """Drain: claim nothing more, release what has not begun, finish and settle the rest."""
        self._drain_until = time.monotonic() + self._leases.limits.drain_timeout_s
        self._stopping.set()
        os.write(self._signal_in, b"x")

    def run(self) -> None:
        """Serve until `stop`, then drain.

        Model processes end with the thread that started them, which is this one.
        """
        for part in (self._signal_out, self._transfer, self._notifier):
            self._selector.register(part, selectors.EVENT_READ)
        try:
            while not (self._stopping.is_set() and self._drained(time.monotonic())):
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        now = time.monotonic()
        connected = self._leases.connected
        if not connected:
            self._claimer.connection_lost(now)
            self._connect(now)
        self._claim_first(now)
        self._work(now)
        for model in self.models:
            if self._stopping.is_set():
                self._leases.release(model, model.release_prepared(), "free")
            self._transfer.take(model)
            self._notifier.take(model)
        if self._leases.connected:
            if not self._stopping.is_set():
                self._claimer.claim(now)
            self._upkeep(now)
            self._leases.flush(now)
        if self._leases.connected or not connected:
            self._sleep()
        # Else the connection was lost in this turn, and the next one tries to connect at once.

    def _claim_first(self, now: float) -> None:
        """Claim and settle before anything else if no batch could be dispatched meanwhile."""
        if not self._leases.connected or self._stopping.is_set():
            return
        if not any(model.unread or model.prepared for model in self.models):
            self._settle(now, claims=True)
            self._claimer.claim(now)
            self._leases.flush(now)

    def _work(self, now: float) -> None:
        """Dispatch the batches that can run, then settle those that have run."""
        claims = self._leases.connected and not self._stopping.is_set()
        if claims:
            self._claimer.claim_before_reading(now)
        self._claimer.read_claims(now)
        self._maintain(now)
        if not self._held_jobs.leases_in_doubt(now):
            self._dispatch(now)
        self._settle(now, claims=claims)

    def _settle(self, now: float, *, claims: bool) -> None:
        if self._finished and claims:
            self._claimer.claim_before_settling(now)
        self._settle_finished()

    def _settle_finished(self) -> None:
        finished, self._finished = self._finished, []
        for model, batch, result, at in finished:
            log_ended(model, batch, result.outcomes, at)
            ready, storing = model.batch_done(batch, result, at)
            self._observer.finished(batch, [*ready, *storing])
            self._leases.settle(model, ready)
            if storing:
                self._transfer.take(model)

    def _connect(self, now: float) -> None:
        if self._connecting is None:
            if now >= self._leases.reconnect_at:
                # Both connections are opened again, whichever of the two broke.
                self._notifications.close()
                self._connecting = BackgroundConnect(self._open, self._signal_in)
            return
        if not self._connecting.over:
            return
        error, self._connecting = self._connecting.error, None
        if error is not None:
            if not isinstance(error, (*DISCONNECTED, RedisError)):
                raise error
            self._leases.connection_lost(now, error)
            return
        self._leases.connection_restored(self.models, now)
        self._progress.write_again()
        self._renew_at = self._sweep_at = now
        for model in self.models:
            model.backlog.assume_waiting()

    def _open(self) -> None:
        self._leases.connect()
        self._notifications.connect()

    def _upkeep(self, now: float) -> None:
        if now >= self._renew_at:
            self._renew_at = now + self._leases.limits.lease_ttl_s / 3
            for model in self.models:
                self._held_jobs.renew(model)
        due = any(
            model.next_due_at is not None and now >= model.next_due_at for model in self.models
        )
        if now >= self._sweep_at or due or self._failures.new:
            self._failures.new = False
            self._sweep_at = now + SWEEP_S
            for model in self.models:
                self._leases.sweep(model, now)
            self._leases.expire_waiting()
            for command in self._report.commands(self.models):
                self._leases.send(command)
        for command in self._observer.events(now):
            self._leases.send(command)
        self._transfer.sweep(now)

    def _maintain(self, now: float) -> None:
        if not self._leases.connected:
            # A new process' socket could get the number of one that is closed.
            self._watch_sockets()
        if not self._stopping.is_set():
            self._replica_manager.maintain(self.models, now)
        for model in self.models:
            for replica in list(model.replicas):
                batch = replica.batch
                if batch is not None and now >= batch.deadline and replica.hangs(batch, now):
                    self._failures.timed_out(model, replica, batch, now)
            model.expire(now)
            self._failures.release_prepared(model, now)

    def _read_frames(self, model: ServedModel, replica: Replica, now: float) -> None:
        if replica.frames is None:
            return
        try:
            frames = replica.frames.receive()
        except (EOFError, OSError):
            self._failures.lost(model, replica, now)
            return
        for kind, *rest in frames:
            if replica.stacks_requested:
                continue
            if kind == "done":
                self._done(model, replica, rest, now)
            elif kind == "progress":
                self._progress.write(replica, *rest)
            elif kind == "yielded":
                self._preempted(model, replica, rest[0], now)
            elif kind == "began":
                replica.staged_began = replica.staged is not None and replica.staged.seq == rest[0]
            else:
                self._phase_changed(model, replica, kind, rest[0])

    def _phase_changed(self, model: ServedModel, replica: Replica, kind: str, value: Any) -> None:
        if kind == "phase":
            replica.phase_changed(Phase(value))
        elif kind == "ready":
            self._replica_manager.ready(model, replica, value)
            model.backlog.assume_waiting()
        else:
            self._replica_manager.load_failed(model, replica, value)
        self._sweep_at = 0.0

    def _done(self, model: ServedModel, replica: Replica, rest: list[Any], now: float) -> None:
        seq, outcomes, times, padding, fits, device_lost = rest
        batch = replica.finished(seq, now)
        if device_lost:
            replica.lost_device(now)
        if batch is None:
            return
        replica.jobs += len(batch.jobs)
        self._finished.append(
            FinishedBatch(model, batch, BatchResult(outcomes, times, padding, fits), now)
        )
        if fits:
            self._settle_finished()  # the next batch must be smaller
        # The settlement takes a claim along for jobs that came while the batch ran. Lists that are
        # watched would have woken this worker.
        first = self._first_list[model.config.name]
        unwatched = self._notifications.unwatched
        model.backlog.guess(place for place in range(len(STEPS)) if first + place in unwatched)

    def _preempted(self, model: ServedModel, replica: Replica, seq: int, now: float) -> None:
        batch = replica.finished(seq, now)
        if batch is not None:
            self._observer.preempted(batch)
            self._leases.settle(model, model.batch_returned(batch))

    def _dispatch(self, now: float) -> None:
        draining = self._stopping.is_set()
        claims = self._leases.connected and not draining
        while (dispatched := self._dispatcher.next(now, draining, claims)) is not None:
            self._run(dispatched.model, dispatched.replica, dispatched.batch)
        for model in () if draining else self.models:
            for replica in model.replicas:
                staged = replica.staged
                if staged is not None and self._dispatcher.should_preempt(model, staged, now):
                    replica.preempt_staged()
            second = replica_for_second(model, self.models, now)
            staged = model.next_batch(now) if second is not None else None
            if second is not None and staged is not None:
                self._run(model, second, staged)
        for model in self.models:
            if ended := model.take_ended():
                self._leases.settle(model, ended)

    def _run(self, model: ServedModel, replica: Replica, batch: Batch) -> None:
        self._seq += 1
        batch.seq = self._seq
        batch.id = batch_name(self._tag, self._seq)
        self._observer.started(model, batch)
        replica.run(batch)
        log_left(model, batch)

    def _sleep(self) -> None:
        now = time.monotonic()
        try:
            timeout_s = self._prepare_sleep(now)
            self._watch_sockets()
            events = self._selector.select(max(0.0, timeout_s))
            for key, _ in events:
                self._ready(key)
            later = time.monotonic()
            self._leases.check_timeout(later)
            self._notifications.check_timeout(later)
        except DISCONNECTED as error:
            self._notifications.close()
            self._leases.connection_lost(now, error)

    def _ready(self, key: selectors.SelectorKey) -> None:
        """Read what has come: a frame, a reply, a notification, or the signal to stop."""
        if key.data is not None:
            model, replica = key.data
            self._read_frames(model, replica, time.monotonic())
        elif key.fileobj == self._signal_out:
            os.read(self._signal_out, 64)
        elif key.fileobj is self._transfer:
            self._transfer.deliver(self._leases)
        elif key.fileobj is self._notifier:
            self._notifier.deliver(self._leases)
        elif key.fileobj is self._leases.socket():
            self._leases.read_replies(time.monotonic())
        elif key.fileobj is self._notifications.socket():
            self._woken(self._notifications.read_changes())
            self._held_jobs.read_cancels(self._notifications.take_messages())

    def _prepare_sleep(self, now: float) -> float:
        """Request the notifications that are needed; return for how many seconds to sleep."""
        if self._leases.connected and not self._stopping.is_set():
            wanted = [
                index
                for index in self._notifications.unwatched
                if wants_notification(self.models[index // len(STEPS)], index % len(STEPS), now)
            ]
            if wanted:
                for index in self._notifications.watch(wanted):
                    self.models[index // len(STEPS)].backlog.found(index % len(STEPS))
                if self._held_jobs.read_cancels(self._notifications.take_messages()):
                    return 0.0
            if any(claim_request(model) for model in self.models):
                return self._claimer.top_up_at - now
        until = min(self._due_times(now))
        return (min(until, now + POLL_S) if self._notifications.polls else until) - now

    def _woken(self, indices: Iterable[int]) -> None:
        for index in indices:
            model, place = divmod(index, len(STEPS))
            self.models[model].backlog.assume_waiting([place])

    def _due_times(self, now: float) -> list[float]:
        """Return the times at which the loop must turn although nothing has come."""
        times = [now + SWEEP_S]
        if self._leases.connected:
            times += (self._sweep_at, self._renew_at)
            times += (self._observer.events_at, self._leases.reply_due_at)
        elif self._connecting is None:
            times.append(self._leases.reconnect_at)
        for model in self.models:
            # A held batch waits only for `hold_until` if it could run now.
            may_run = bool(model.prepared) and self._dispatcher.may_run(model)
            times += due_times(model, may_run=may_run)
            if (at := stage_at(model, now)) is not None:
                times.append(at)
            if not self._stopping.is_set():
                times += self._replica_manager.due_times(model)
        return times

    def _watch_sockets(self) -> None:
        # A reconnect has new sockets. While it connects, they belong to that thread.
        connecting = self._connecting is not None
        sockets = () if connecting else (self._notifications.socket(), self._leases.socket())
        self._watched = watch_sockets(self._selector, self._watched, sockets)

    def _drained(self, now: float) -> bool:
        running = any(replica.batch for model in self.models for replica in model.replicas)
        waiting = any(model.unfinished for model in self.models)
        return now >= self._drain_until or not (
            running or waiting or self._finished or self._leases.busy
        )

    def _end(self) -> None:
        """Stop the model processes, then release the jobs that did not end in time, uncharged."""
        self._claimer.read_claims(time.monotonic())
        self._settle_finished()
        self._failures.release_all(self.models, time.monotonic())
        last_report = [*self._report.commands(self.models), *self._report.removal()]
        for command in (*last_report, *self._observer.events(NEVER)):
            self._leases.send(command)
        while self._leases.busy and self._leases.connected:
            self._leases.flush(time.monotonic())
            self._leases.read_replies(time.monotonic())
        for model in self.models:
            self._transfer.take(model)
        self._transfer.close()
        self._notifier.close()
        if self._connecting is not None:
            self._connecting.abandon()
        for part in (self._notifications, self._leases, self._observer, self._selector):
            part.close()
        os.close(self._signal_out)
        os.close(self._signal_in)
