"""The consumer: one thread that wakes, claims, dispatches, collects and settles for all models.

Each turn gathers what the model processes answered and what the batchers want, and says it to Redis
in one write, whose answers are read when they are there. Of a deep backlog the next claim leaves
before what is at hand is read and settled, so that Redis works at it meanwhile. While Redis is away
the model processes go on; what they answer is settled when it is back, under the same tokens.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from headrace.observability.logs import batch_name, batch_tag
from headrace.redis.keys import STEPS
from headrace.redis.outages import DISCONNECTED
from workers.canvas.notifier import CanvasNotifier
from workers.consumer.cancellation import Cancellation
from workers.consumer.claiming import Claimer
from workers.consumer.finished_batches import FinishedBatches
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.progress import ProgressWriter
from workers.consumer.replica_failures import ReplicaFailures
from workers.consumer.timers import model_due_times, wants_notification
from workers.jobs.batch import Batch
from workers.jobs.leased_job import NEVER
from workers.leases.dialing import BackgroundConnect, watch_sockets
from workers.leases.manager import LeaseManager
from workers.leases.notifications import POLL_S, QueueNotifications
from workers.models.served_model import ServedModel
from workers.observability.batch_log import log_left
from workers.protocol.phases import Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher
from workers.scheduling.staging import replica_for_second, requeue

if TYPE_CHECKING:
    from workers.celery.event_publisher import EventPublisher
    from workers.observability.worker_report import WorkerReport

SWEEP_S: Final = 1.0


class Consumer:
    """The loop over one worker's lanes; `run` is the body of its thread.

    Args:
        models: the models.
        leases: the account with Redis.
        notifications: the tracking connection.
        observer: publishes task events.
        report: reports model states and counters.
        orphan_guard: ends what model processes have started when this worker is gone.
        transfer: moves payloads to and from their store.
        dispatcher: says which batch is to run next.
        notifier: tells what follows a job of its end.
    """

    def __init__(
        self,
        models: list[ServedModel],
        leases: LeaseManager,
        notifications: QueueNotifications,
        observer: EventPublisher,
        report: WorkerReport,
        orphan_guard: OrphanGuard,
        transfer: PayloadTransfer,
        dispatcher: Dispatcher,
        notifier: CanvasNotifier,
    ) -> None:
        self.models = models
        self._first_list = {model.config.name: n * len(STEPS) for n, model in enumerate(models)}
        self._leases = leases
        self._notifications = notifications
        self._observer = observer
        self._report = report
        self._transfer = transfer
        self._dispatcher = dispatcher
        self._cancellation = Cancellation(models, leases)
        self._progress = ProgressWriter(leases)
        self._notifier = notifier
        self._finished = FinishedBatches(leases, observer, transfer)
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
        """Drain: claim nothing more, give back what has not begun, finish and settle the rest."""
        self._drain_until = time.monotonic() + self._leases.limits.drain_timeout_s
        self._stopping.set()
        os.write(self._signal_in, b"x")

    def run(self) -> None:
        """Serve until `stop`, then drain. Model processes are children of this very thread."""
        for heard in (self._signal_out, self._transfer, self._notifier):
            self._selector.register(heard, selectors.EVENT_READ)
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
                self._leases.release(model, model.take_all(), "free")
            if model.pending_payloads.has_work:
                self._transfer.take(model)
            if model.callbacks.has_work:
                self._notifier.take(model)
        if self._leases.connected:
            if not self._stopping.is_set():
                self._claimer.claim(now)
            self._upkeep(now)
            self._leases.flush(now)
        if self._leases.connected or not connected:
            self._sleep()  # else what was held for an answer is to leave first

    def _claim_first(self, now: float) -> None:
        """Say at once what nothing is to be handed over before: a lone job waits for it."""
        if not self._leases.connected or self._stopping.is_set():
            return
        if not any(model.claim_replies or len(model.batcher) for model in self.models):
            self._settle(now, claims=True)
            self._claimer.claim(now)
            self._leases.flush(now)

    def _work(self, now: float) -> None:
        """Hand over what can run, then settle what has."""
        claims = self._leases.connected and not self._stopping.is_set()
        if claims:
            self._claimer.claim_before_reading(now)
        self._claimer.read_replies(now)
        self._maintain(now)
        if not self._cancellation.leases_in_doubt(now):
            self._dispatch(now)
        self._settle(now, claims=claims)

    def _settle(self, now: float, *, claims: bool) -> None:
        if self._finished and claims:
            self._claimer.claim_before_settling(now)
        self._finished.settle()

    def _connect(self, now: float) -> None:
        if self._connecting is None:
            if now >= self._leases.reconnect_at:
                # What was watched on an older connection is over, whichever of the two broke.
                self._notifications.close()
                self._connecting = BackgroundConnect(self._dial, self._signal_in)
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

    def _dial(self) -> None:
        self._leases.connect()
        self._notifications.connect()

    def _upkeep(self, now: float) -> None:
        if now >= self._renew_at:
            self._renew_at = now + self._leases.limits.lease_ttl_s / 3
            for model in self.models:
                self._cancellation.renew(model)
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
            model.deadlines.expire(model.batcher, now)
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

    def _phase_changed(self, model: ServedModel, replica: Replica, kind: str, told: Any) -> None:
        if kind == "phase":
            replica.phase_changed(Phase(told))
        elif kind == "ready":
            self._replica_manager.ready(model, replica, told)
            model.backlog.assume_waiting()
        else:
            self._replica_manager.load_failed(model, replica, told)
        self._sweep_at = 0.0

    def _done(self, model: ServedModel, replica: Replica, rest: list[Any], now: float) -> None:
        seq, outcomes, times, padding, fits, device_lost = rest
        batch = replica.finished(seq, now)
        if device_lost:
            replica.lost_device(now)
        if batch is None:
            return
        replica.jobs += len(batch.jobs)
        self._finished.add(model, batch, (outcomes, times, padding, fits), now)
        # What arrived while it ran is asked for with its settlement; watched lists have told.
        first = self._first_list[model.config.name]
        model.backlog.guess(
            place for place in range(len(STEPS)) if first + place in self._notifications.unwatched
        )

    def _preempted(self, model: ServedModel, replica: Replica, seq: int, now: float) -> None:
        batch = replica.finished(seq, now)
        if batch is not None:
            self._observer.preempted(batch)
            self._leases.settle(model, requeue(model, batch))

    def _dispatch(self, now: float) -> None:
        draining = self._stopping.is_set()
        claims = self._leases.connected and not draining
        while (dispatched := self._dispatcher.next(now, draining, claims)) is not None:
            self._run(dispatched.model, dispatched.replica, dispatched.batch)
        for model in () if draining else self.models:
            for replica in model.replicas:
                staged = replica.staged
                if staged is not None and self._dispatcher.should_yield(model, staged, now):
                    replica.request_yield()
            second = replica_for_second(model, self.models, now)
            staged = model.next_batch(now) if second is not None else None
            if second is not None and staged is not None:
                self._run(model, second, staged)
        for model in self.models:
            if model.deadlines.ended:
                self._leases.settle(model, model.deadlines.ended)
                model.deadlines.ended = []

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
            timeout_s = self._arm(now)
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
        """Something can be read: an answer, a frame, a wake-up or the call to stop."""
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
            self._cancellation.read_cancels(self._notifications.take_messages())

    def _arm(self, now: float) -> float:
        """Ask to be woken where that helps; the seconds to sleep at the most."""
        if self._leases.connected and not self._stopping.is_set():
            wanted = [
                index
                for index in self._notifications.unwatched
                if wants_notification(self.models[index // len(STEPS)], index % len(STEPS), now)
            ]
            if wanted:
                for index in self._notifications.watch(wanted):
                    self.models[index // len(STEPS)].backlog.found(index % len(STEPS))
                if self._cancellation.read_cancels(self._notifications.take_messages()):
                    return 0.0
            if any(model.claimable for model in self.models):
                return self._claimer.top_up_at - now
        until = min(self._due_times(now))
        return (min(until, now + POLL_S) if self._notifications.polls else until) - now

    def _woken(self, indices: Iterable[int]) -> None:
        for index in indices:
            model, place = divmod(index, len(STEPS))
            self.models[model].backlog.assume_waiting([place])

    def _due_times(self, now: float) -> list[float]:
        """The times at which something is to be done."""
        moments = [now + SWEEP_S]
        if self._leases.connected:
            moments += (self._sweep_at, self._renew_at)
            moments += (self._observer.events_at, self._leases.reply_due_at)
        elif self._connecting is None:
            moments.append(self._leases.reconnect_at)
        for model in self.models:
            held = bool(len(model.batcher)) and self._dispatcher.may_run(model)
            moments += model_due_times(model, now, held=held)
            if not self._stopping.is_set():
                moments += self._replica_manager.due_times(model)
        return moments

    def _watch_sockets(self) -> None:
        # After a reconnect there are others; while it dials, they are that thread's.
        now = (
            (self._notifications.socket(), self._leases.socket())
            if self._connecting is None
            else ()
        )
        self._watched = watch_sockets(self._selector, self._watched, now)

    def _drained(self, now: float) -> bool:
        running = any(replica.batch for model in self.models for replica in model.replicas)
        waiting = any(model.unfinished for model in self.models)
        return now >= self._drain_until or not (
            running or waiting or self._finished or self._leases.busy
        )

    def _end(self) -> None:
        """Stop the model processes, then give back what did not end in time, uncharged."""
        self._claimer.read_replies(time.monotonic())
        self._finished.settle()
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
            self._connecting.leave()
        for part in (self._notifications, self._leases, self._observer, self._selector):
            part.close()
        os.close(self._signal_out)
        os.close(self._signal_in)
