"""The consumer: one thread that wakes, claims, dispatches, collects and settles for all models.

Each turn gathers the outcomes of the model processes and the claims for the batchers, and sends
them to Redis in one write. The replies are read when they come. If a deep backlog waits, the next
claim is sent before the last is read, so that Redis works on it meanwhile. While Redis is away
the model processes go on, and their results are settled with the same tokens when it is back.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from redis.exceptions import RedisError

from headrace.config.model.catalog import ModelConfig
from headrace.observability.worker_report import ModelStats
from headrace.redis.outages import DISCONNECTED
from headrace.redis.scripts import Command
from workers.canvas.notifier import CanvasNotifier
from workers.consumer.held_jobs import HeldJobs
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.profiles import Profiles
from workers.consumer.replica_frames import ReplicaFrames
from workers.extension import Observer
from workers.jobs.leased_job import NEVER, Batch
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.leases.notifications import POLL_S, QueueNotifications
from workers.lifecycle.model_updates import ModelUpdates
from workers.lifecycle.registry_reader import RegisteredModels, RegistryReader
from workers.lifecycle.replica_manager import ReplicaManager, about_batches
from workers.models.backlog import PLACES, Place
from workers.models.served_model import ServedModel
from workers.observability.worker_report import WorkerReporter
from workers.protocol.frames import batch_name, batch_tag
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.placement import Placement
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher, replica_for_second, stage_at
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

#: While a model's devices are busy, its prepared batch is topped up at most this often.
TOP_UP_S: Final = 0.002


class Claimer:
    """The claims of a worker.

    Attributes:
        drained: an operator has asked for no more claims; what is claimed and has not begun returns
            to its queue.
    """

    def __init__(
        self, models: Sequence[ServedModel], leases: LeaseManager, dispatcher: Dispatcher
    ) -> None:
        self._models = models
        self._leases = leases
        self._dispatcher = dispatcher
        self._top_up_at = 0.0
        self.drained = False

    @property
    def held(self) -> bool:
        """Whether nothing may be claimed now."""
        return self.drained or self._dispatcher.isolation.holds_claims

    def claim(self, now: float) -> None:
        """Claim what there is room for, in the next write."""
        for model in self._models:
            self._claim(model, model.claim_request(), now)

    def claim_before_settling(self, now: float) -> None:
        """Claim at once the whole batches that wait, so that Redis works while batches settle."""
        for model in self._models:
            room = model.claim_request()
            if model.whole_batch_waits(room):
                self._claim(model, room, now)
        self._leases.flush(now)

    def claim_before_reading(self, now: float) -> None:
        """Claim at once the batch behind a claimed batch that will run as soon as it is read."""
        for model in self._models:
            if not model.unread or not model.whole_batch_unread:
                continue
            if self._dispatcher.runs_at_once(model):
                room = model.claim_request()
                if model.whole_batch_waits(room):
                    self._claim(model, room, now)
                    self._leases.flush(now)

    def read_claims(self, now: float) -> None:
        """Read the claimed jobs, and settle those that will not run."""
        for model in self._models:
            if model.unread:
                self._leases.settle(model, model.read_claims(now))
                self._leases.move_misplaced(model)

    def connection_lost(self, now: float) -> None:
        """Read the claimed jobs, because `held` must be complete when Redis is back."""
        self.read_claims(now)
        for model in self._models:
            model.connection_lost()

    def _claim(self, model: ServedModel, room: Sequence[int], now: float) -> None:
        # Without a connection a claim would be sent on reconnect, just before `release_owner`
        # returns all that it leased.
        if not room or not self._leases.connected or self.held:
            return
        if now >= self.due_at(model):
            self._top_up_at = now + TOP_UP_S
            self._leases.claim(model, room, now)

    def due_at(self, model: ServedModel) -> float:
        """Return when the next claim of a model may be sent; 0 for at once."""
        if model.claims_better or self._dispatcher.may_run(model):
            return 0.0
        return self._top_up_at


SWEEP_S: Final = 1.0
#: How long a stop waits for a try to connect.
CONNECT_CLOSE_MAX_S: Final = 0.1


class Consumer:
    """The loop over a worker's models; `run` is the body of its thread."""

    def __init__(
        self,
        *,
        models: list[ServedModel],
        leases: LeaseManager,
        notifications: QueueNotifications,
        observer: WorkerObserver,
        report: WorkerReporter,
        orphan_guard: OrphanGuard,
        transfer: PayloadTransfer,
        dispatcher: Dispatcher,
        notifier: CanvasNotifier,
        build: Callable[[ModelConfig, str, ModelStats | None], ServedModel],
        placement: Placement,
        registry: RegistryReader,
        profiles: Profiles,
        registered: RegisteredModels,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.models = models
        self._leases = leases
        self._notifications = notifications
        self.observer = observer
        self._report = report
        self._observers = observers
        self._transfer = transfer
        self._dispatcher = dispatcher
        self._held_jobs = HeldJobs(models, leases)
        self._notifier = notifier
        self._claimer = Claimer(models, leases, dispatcher)
        self._selector = selectors.DefaultSelector()
        self._replica_manager = ReplicaManager(
            self._selector, leases, observer, orphan_guard, placement, observers,
        )  # fmt: skip
        self._frames = ReplicaFrames(
            leases, notifications, observer, transfer, self._held_jobs, self._replica_manager,
            profiles, observers,
        )  # fmt: skip
        self._registry = registry
        self._profiles = profiles
        self._updates = ModelUpdates(
            models, build, placement, leases, notifications, dispatcher, self._replica_manager,
            observer,
        )  # fmt: skip
        self._updates.follow(registered, registry.generation)
        self._signal_out, self._signal_in = os.pipe()
        self._stopping = threading.Event()
        # A try to connect takes seconds if Redis does not answer.
        self._connector = BackgroundThreads[bool, Exception | None](
            self._try_to_connect, "headrace-connect"
        )
        self._connecting = False
        self._drain_until = float("inf")
        self._watched: list[Any] = []
        self._seq = 0
        self._tag = batch_tag(leases.owner)
        self._sweep_at = self._renew_at = 0.0
        # How many workers there are, of any models, by the last report.
        self._workers = 1

    def stop(self) -> None:
        """Drain: claim nothing more, release what has not begun, finish and settle the rest."""
        self._drain_until = time.monotonic() + self._leases.settings.drain_timeout_s
        self._stopping.set()
        os.write(self._signal_in, b"x")

    def run(self) -> None:
        """Serve until `stop`, then drain.

        Model processes end with this thread, which starts them.
        """
        for part in (
            self._signal_out, self._transfer, self._notifier, self._connector, self._registry,
            self._profiles,
        ):  # fmt: skip
            self._selector.register(part, selectors.EVENT_READ)
        try:
            # The models load while it connects.
            self._updates.step(time.monotonic())
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
        self._dispatch_and_settle(now)
        if not self._stopping.is_set():
            self._updates.step(now)
        for model in self.models:
            if self._stopping.is_set() or self._claimer.drained:
                self._leases.release(model, model.release_prepared(), "free")
            self._transfer.begin(model)
            self._notifier.begin(model)
            self._leases.read_logs(model)
        if self._leases.connected:
            if not self._stopping.is_set():
                self._claimer.claim(now)
            self._upkeep(now)
            # A worker that was suspended in this turn has yet to get the reply.
            self._leases.flush(time.monotonic())
        if self._leases.connected or not connected:
            self._sleep()
        # Else the connection was lost in this turn, and the next turn tries to connect at once.

    def _claim_first(self, now: float) -> None:
        """Claim and settle before anything else if no batch could be dispatched meanwhile."""
        if not self._leases.connected or self._stopping.is_set():
            return
        if not any(model.unread or model.prepared for model in self.models):
            self._settle(now, claims=True)
            self._claimer.claim(now)
            self._leases.flush(now)

    def _dispatch_and_settle(self, now: float) -> None:
        """Dispatch the batches that can run, then settle those that have run."""
        claims = self._leases.connected and not self._stopping.is_set()
        if claims:
            self._claimer.claim_before_reading(now)
        self._claimer.read_claims(now)
        self._check_replicas(now)
        if not self._held_jobs.leases_in_doubt(now):
            self._dispatch(now)
        self._settle(now, claims=claims)

    def _settle(self, now: float, *, claims: bool) -> None:
        if self._frames.finished and claims:
            self._claimer.claim_before_settling(now)
        self._frames.settle_finished()

    def _connect(self, now: float) -> None:
        """Try to connect on a thread of its own; take the result once it is there."""
        if not self._connecting:
            if now >= self._leases.reconnect_at:
                # Both connections are opened again, whichever of the two broke.
                self._notifications.close()
                self._connecting = True
                self._connector.submit(True)
            return
        results = self._connector.take_results()
        if not results:
            return
        (error,), self._connecting = results, False
        if error is not None:
            if not isinstance(error, (*DISCONNECTED, RedisError)):
                raise error
            self._leases.connection_lost(now, error)
            return
        self._leases.connection_restored(self.models, now)
        self._held_jobs.write_starts_again()
        self._held_jobs.write_progress_again()
        self._renew_at = self._sweep_at = now
        for model in self.models:
            model.expect_jobs()

    def _try_to_connect(self, _: bool) -> None:
        try:
            self._leases.connect()
            self._notifications.connect()
        except Exception as error:  # noqa: BLE001 - the loop checks it
            self._connector.deliver(error)
        else:
            self._connector.deliver(None)

    def _upkeep(self, now: float) -> None:
        """Renew leases, sweep, report and publish events, as far as they are due."""
        if now >= self._renew_at:
            self._renew_at = now + self._leases.settings.lease_ttl_s / 3
            for model in self.models:
                self._held_jobs.renew(model)
        due = any(now >= model.next_due_at for model in self.models)
        if now >= self._sweep_at or due or self._replica_manager.report_due:
            self._replica_manager.report_due = False
            self._sweep_at = now + SWEEP_S
            for model in self.models:
                self._leases.sweep(model, now)
            self._updates.sweep_left_out(now)
            self._leases.expire_waiting()
            self._leases.read_registry(self._registry_read)
            self._updates.lease_replicas(now, stopping=self._stopping.is_set())
            self._updates.scale(now)
            if not self._stopping.is_set() and not self._claimer.drained:
                self._updates.find_work(now)
            progress, unloaded = self._updates.progress(), self._updates.on_demand.unloaded()
            drained = self._claimer.drained
            report = self._report.commands(self.models, progress, unloaded, drained=drained)
            self._leases.report(report, self._reported)
            for command in self._observed():
                self._leases.send(command)
            self._transfer.sweep(now)
            self._profiles.check(now)
        elif self._updates.replica_leases.due:
            self._updates.lease_replicas(now, stopping=self._stopping.is_set())
        totals = [o.totals(self.models) for o in self._observers if now >= o.due_at]
        for command in chain(*totals, self.observer.events(now)):
            self._leases.send(command)

    def _reported(self, workers: int, drained: bool) -> None:
        self._workers = workers
        if drained != self._claimer.drained:
            self._claimer.drained = drained
            logger.info("drained: claims nothing more" if drained else "claims jobs again")
            self._sweep_at = 0.0  # the next report shows it

    def _observed(self) -> Iterator[Command]:
        for observer in self._observers:
            yield from observer.commands(self.models)

    def _registry_read(self, reply: Sequence[bytes | None]) -> None:
        self._registry.changed(reply[:2])
        self._profiles.changed(reply[2], self.models)

    def _check_replicas(self, now: float) -> None:
        """Start and replace model processes, and act on deadlines and timeouts that are over."""
        if not self._leases.connected:
            # A new process' socket could get the number of a closed socket.
            self._watch_sockets()
        if not self._stopping.is_set():
            loads = self._dispatcher.isolation.exclusive is None
            self._replica_manager.maintain(self.models, now, loads=loads)
        self._replica_manager.hold_back(self.models, now)
        for model in self.models:
            model.expire(now)
            for replica in list(model.replicas):
                for batch in replica.running:
                    if now >= batch.start_due_at:
                        self._held_jobs.write_start(batch)
                if any(now >= batch.deadline for batch in replica.running):
                    # If this worker was suspended, frames that came in time may be unread.
                    self._frames.catch_up(model, replica, now)
        self._replica_manager.check(self.models, now)

    def _dispatch(self, now: float) -> None:
        draining = self._stopping.is_set()
        claims = self._leases.connected and not draining
        while (dispatched := self._dispatcher.next(now, draining, claims)) is not None:
            self._run_batch(dispatched.model, dispatched.replica, dispatched.batch)
        for model in () if draining else self.models:
            for replica in model.replicas:
                staged = replica.staged
                if staged is not None and self._dispatcher.should_preempt(model, staged, now):
                    replica.preempt_staged()
            second = None
            if self._dispatcher.isolation.exclusive is None:
                second = replica_for_second(model, self.models, now)
            if second is not None:
                staged = model.next_batch(now, behind=second.batch)
                if staged is not None:
                    self._run_batch(model, second, staged)
        for model in self.models:
            if ended := model.take_ended():
                self._leases.settle(model, ended)
        self._isolate()

    def _isolate(self) -> None:
        """Send which isolated jobs begin and end, in the next write."""
        isolation = self._dispatcher.isolation
        if not self._leases.connected:
            isolation.connection_lost()
        for run in isolation.take_requests():
            self._leases.isolate(run.job, run.scope, partial(isolation.answered, run))
        for run in isolation.take_unread():
            self._leases.read_message(run.model, run.job)

    def _run_batch(self, model: ServedModel, replica: Replica, batch: Batch) -> None:
        self._seq += 1
        batch.seq = self._seq
        batch.id = batch_name(self._tag, self._seq)
        self.observer.started(model, batch)
        replica.run(batch)
        if logger.isEnabledFor(logging.DEBUG):
            fields = {**about_batches(model, [batch]), "reason": batch.reason}
            logger.debug("batch dispatched", extra=fields)

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
        if key.data is not None:
            model, replica = key.data
            read = self._frames.read if key.fileobj is replica.frames else self._frames.catch_up
            read(model, replica, time.monotonic())
        elif key.fileobj == self._signal_out:
            os.read(self._signal_out, 64)
        elif key.fileobj is self._transfer:
            self._transfer.deliver(self._leases)
        elif key.fileobj is self._notifier:
            self._notifier.deliver(self._leases)
        elif key.fileobj is self._registry:
            registered = self._registry.take()
            if registered is not None:
                self._updates.follow(registered, self._registry.generation)
        elif key.fileobj is self._profiles:
            self._profiles.start(self.models, time.monotonic())
        elif key.fileobj is self._leases.socket():
            self._leases.read_replies(time.monotonic())
        elif key.fileobj is self._notifications.socket():
            self._notified()

    def _notified(self) -> None:
        now = time.monotonic()
        for model, place in self._places(self._notifications.read_changes()):
            model.notified(place, now, self._workers)
        self._read_cancels()

    def _prepare_sleep(self, now: float) -> float:
        """Request the notifications that are needed; return for how many seconds to sleep."""
        if self._leases.connected and not self._stopping.is_set():
            wanted = [
                number
                for number in self._notifications.unwatched
                if (at := self._place(number)) and at[0].wants_notification(at[1], now)
            ]
            if wanted:
                for model, place in self._places(self._notifications.watch(wanted)):
                    model.missed(place)
                if self._read_cancels():
                    return 0.0
            if not self._claimer.held:
                claims = [self._claimer.due_at(m) for m in self.models if m.claim_request()]
                if claims:
                    return min(claims) - now
        until = min(self._due_times(now))
        return (min(until, now + POLL_S) if self._notifications.polls else until) - now

    def _read_cancels(self) -> bool:
        """Take the jobs that were cancelled; return whether there were any."""
        messages = self._notifications.take_messages()
        if messages:
            self._held_jobs.read_cancels(messages)
        return bool(messages)

    def _places(self, lists: Iterable[int]) -> Iterator[tuple[ServedModel, Place]]:
        return filter(None, map(self._place, lists))

    def _place(self, number: int) -> tuple[ServedModel, Place] | None:
        """Return the model of a list of the notifications, and the place; None if it has ended."""
        position, index = divmod(number, len(PLACES))
        model = self._updates.watching[position]
        return (model, PLACES[index]) if model is not None else None

    def _due_times(self, now: float) -> list[float]:
        """Return the times at which the loop must turn although nothing has come."""
        times = [now + SWEEP_S]
        connected = self._leases.connected
        if connected:
            times += (self._sweep_at, self._renew_at)
            times += (self.observer.events_at, self._leases.reply_due_at)
            times += [observer.due_at for observer in self._observers]
        elif not self._connecting:
            times.append(self._leases.reconnect_at)
        for model in self.models:
            times += (model.due_at, model.look_due(now))
            for replica in model.replicas:
                for batch in replica.running:
                    due_at = batch.start_due_at if connected else NEVER
                    times.append(min(batch.deadline, due_at))
            # A held batch waits only for `hold_until` if it could run now.
            if model.hold_until is not None and model.prepared and self._dispatcher.may_run(model):
                times.append(model.hold_until)
            if (at := stage_at(model, now)) is not None:
                times.append(at)
            if not self._stopping.is_set():
                loads = self._dispatcher.isolation.exclusive is None
                times += self._replica_manager.due_times(model, loads=loads)
        return times

    def _watch_sockets(self) -> None:
        """Let the selector wait for the sockets of the present connections, and for no others."""
        # A reconnect has new sockets. While it connects, they belong to that thread.
        parts = () if self._connecting else (self._notifications, self._leases)
        wanted = [sock for part in parts if (sock := part.socket()) is not None]
        for sock in [sock for sock in self._watched if sock not in wanted]:
            self._selector.unregister(sock)
        for sock in [sock for sock in wanted if sock not in self._watched]:
            self._selector.register(sock, selectors.EVENT_READ)
        self._watched = wanted

    def _drained(self, now: float) -> bool:
        """Return whether no job is left, or the time for draining is over."""
        running = any(replica.batch for model in self.models for replica in model.replicas)
        waiting = any(model.unfinished for model in self.models)
        return now >= self._drain_until or not (
            running or waiting or self._frames.finished or self._leases.busy
        )

    def _end(self) -> None:
        """Stop the model processes, then release the jobs that did not end in time, uncharged."""
        self._claimer.read_claims(time.monotonic())
        self._frames.settle_finished()
        self._replica_manager.release_all(self.models, time.monotonic())
        self._updates.lease_replicas(time.monotonic(), stopping=True)
        last_report = [*self._report.commands(self.models), *self._report.removal()]
        last_report += self._observed()
        for command in (*last_report, *self.observer.events(NEVER)):
            self._leases.send(command)
        while self._leases.busy and self._leases.connected:
            self._leases.flush(time.monotonic())
            self._leases.read_replies(time.monotonic())
        for model in self.models:
            self._transfer.begin(model)
        self._transfer.close()
        self._notifier.close()
        self._registry.close()
        self._profiles.close()
        self._connector.close(CONNECT_CLOSE_MAX_S)
        for part in (self._notifications, self._leases, self.observer, self._selector):
            part.close()
        os.close(self._signal_out)
        os.close(self._signal_in)
