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
from typing import Any, Final

from redis.exceptions import RedisError

from headrace.observability.logs import batch_name, batch_tag
from headrace.redis.keys import STEPS
from headrace.redis.outages import DISCONNECTED
from workers.canvas.notifier import CanvasNotifier
from workers.celery.event_publisher import EventPublisher
from workers.consumer.cancellation import Cancellation
from workers.consumer.claiming import Claimer
from workers.consumer.finished_batches import FinishedBatches
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.progress import ProgressWriter
from workers.consumer.replica_failures import ReplicaFailures
from workers.consumer.timers import lane_moments, wants_wake
from workers.jobs.leased_job import Batch
from workers.leases.dialing import BackgroundConnect, watch_sockets
from workers.leases.manager import LeaseManager
from workers.leases.notifications import POLL_S, QueueNotifications
from workers.models.served_model import ServedModel
from workers.observability.batch_log import log_left
from workers.protocol.phases import Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher
from workers.scheduling.staging import gave_way, takes_second

SWEEP_S: Final = 1.0


class Consumer:
    """The loop over one worker's lanes; `run` is the body of its thread.

    Args:
        lanes: the models.
        ledger: the account with Redis.
        wake: the tracking connection.
        reporter: publishes events, model states and counters.
        guard: ends what model processes have started when this worker is gone.
        porter: moves payloads to and from their store.
        dispatch: says which batch is to run next.
        herald: tells what follows a job of its end.
    """

    def __init__(
        self,
        lanes: list[ServedModel],
        ledger: LeaseManager,
        wake: QueueNotifications,
        reporter: EventPublisher,
        guard: OrphanGuard,
        porter: PayloadTransfer,
        dispatch: Dispatcher,
        herald: CanvasNotifier,
    ) -> None:
        self.lanes = lanes
        self._first_list = {lane.model.name: n * len(STEPS) for n, lane in enumerate(lanes)}
        self._ledger = ledger
        self._wake = wake
        self._reporter = reporter
        self._porter = porter
        self._devices = dispatch
        self._dropping = Cancellation(lanes, ledger)
        self._news = ProgressWriter(ledger)
        self._herald = herald
        self._harvest = FinishedBatches(ledger, reporter, porter)
        self._claims = Claimer(lanes, ledger, dispatch)
        self._selector = selectors.DefaultSelector()
        self._losses = ReplicaFailures(self._selector, ledger, reporter, guard)
        self._keeper = self._losses.keeper
        self._signal_out, self._signal_in = os.pipe()
        self._stopping = threading.Event()
        self._dialing: BackgroundConnect | None = None
        self._drain_until = float("inf")
        self._watched: list[Any] = []
        self._seq = 0
        self._tag = batch_tag(ledger.owner)
        self._sweep_at = self._renew_at = 0.0

    def stop(self) -> None:
        """Drain: claim nothing more, give back what has not begun, finish and settle the rest."""
        self._drain_until = time.monotonic() + self._ledger.limits.drain_timeout_s
        self._stopping.set()
        os.write(self._signal_in, b"x")

    def run(self) -> None:
        """Serve until `stop`, then drain. Model processes are children of this very thread."""
        for heard in (self._signal_out, self._porter, self._herald):
            self._selector.register(heard, selectors.EVENT_READ)
        try:
            while not (self._stopping.is_set() and self._drained(time.monotonic())):
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        now = time.monotonic()
        connected = self._ledger.connected
        if not connected:
            self._claims.cut_off(now)
            self._connect(now)
        self._speak(now)
        self._work(now)
        for lane in self.lanes:
            if self._stopping.is_set():
                self._ledger.release(lane, lane.take_all(), "free")
            if lane.cargo.waiting:
                self._porter.take(lane)
            if lane.sequels.waiting:
                self._herald.take(lane)
        if self._ledger.connected:
            if not self._stopping.is_set():
                self._claims.ask(now)
            self._upkeep(now)
            self._ledger.flush(now)
        if self._ledger.connected or not connected:
            self._sleep()  # else what was held for an answer is to leave first

    def _speak(self, now: float) -> None:
        """Say at once what nothing is to be handed over before: a lone job waits for it."""
        if not self._ledger.connected or self._stopping.is_set():
            return
        if not any(lane.unread or len(lane.batcher) for lane in self.lanes):
            self._settle(now, claims=True)
            self._claims.ask(now)
            self._ledger.flush(now)

    def _work(self, now: float) -> None:
        """Hand over what can run, then settle what has."""
        claims = self._ledger.connected and not self._stopping.is_set()
        if claims:
            self._claims.ask_before_reading(now)
        self._claims.read(now)
        self._tend(now)
        if not self._dropping.in_doubt(now):
            self._dispatch(now)
        self._settle(now, claims=claims)

    def _settle(self, now: float, *, claims: bool) -> None:
        if self._harvest and claims:
            self._claims.ask_before_settling(now)
        self._harvest.settle()

    def _connect(self, now: float) -> None:
        if self._dialing is None:
            if now >= self._ledger.reconnect_at:
                # What was watched on an older connection is over, whichever of the two broke.
                self._wake.close()
                self._dialing = BackgroundConnect(self._dial, self._signal_in)
            return
        if not self._dialing.over:
            return
        error, self._dialing = self._dialing.error, None
        if error is not None:
            if not isinstance(error, (*DISCONNECTED, RedisError)):
                raise error
            self._ledger.lost(now, error)
            return
        self._ledger.joined(self.lanes, now)
        self._news.joined()
        self._renew_at = self._sweep_at = now
        for lane in self.lanes:
            lane.backlog.look()

    def _dial(self) -> None:
        self._ledger.dial()
        self._wake.connect()

    def _upkeep(self, now: float) -> None:
        if now >= self._renew_at:
            self._renew_at = now + self._ledger.limits.lease_ttl_s / 3
            for lane in self.lanes:
                self._dropping.renew(lane)
        due = any(lane.next_due_at is not None and now >= lane.next_due_at for lane in self.lanes)
        if now >= self._sweep_at or due or self._losses.new:
            self._losses.new = False
            self._sweep_at = now + SWEEP_S
            for lane in self.lanes:
                self._ledger.sweep(lane, now)
            self._ledger.expire()
            for command in self._reporter.states(self.lanes):
                self._ledger.say(command)
        for command in self._reporter.events(now):
            self._ledger.say(command)
        self._porter.sweep(now)

    def _tend(self, now: float) -> None:
        if not self._ledger.connected:
            self._watch()  # else a process' socket could get the number of one that was closed
        if not self._stopping.is_set():
            self._keeper.tend(self.lanes, now)
        for lane in self.lanes:
            for replica in list(lane.replicas):
                batch = replica.batch
                if batch is not None and now >= batch.deadline and replica.hangs(batch, now):
                    self._losses.timed_out(lane, replica, batch, now)
            lane.deadlines.expire(lane.batcher, now)
            self._losses.let_go(lane, now)

    def _hear(self, lane: ServedModel, replica: Replica, now: float) -> None:
        if replica.frames is None:
            return
        try:
            frames = replica.frames.receive()
        except (EOFError, OSError):
            self._losses.lost(lane, replica, now)
            return
        for kind, *rest in frames:
            if replica.asked:
                continue
            if kind == "done":
                self._done(lane, replica, rest, now)
            elif kind == "progress":
                self._news.heard(replica, *rest)
            elif kind == "yielded":
                self._gave_way(lane, replica, rest[0], now)
            elif kind == "began":
                replica.began = replica.staged is not None and replica.staged.seq == rest[0]
            else:
                self._lives(lane, replica, kind, rest[0])

    def _lives(self, lane: ServedModel, replica: Replica, kind: str, told: Any) -> None:
        if kind == "phase":
            replica.entered(Phase(told))
        elif kind == "ready":
            self._keeper.ready(lane, replica, told)
            lane.backlog.look()
        else:
            self._keeper.load_failed(lane, replica, told)
        self._sweep_at = 0.0

    def _done(self, lane: ServedModel, replica: Replica, rest: list[Any], now: float) -> None:
        seq, outcomes, times, padding, fits, device_lost = rest
        batch = replica.finished(seq, now)
        if device_lost:
            replica.leaves(now)
        if batch is None:
            return
        replica.jobs += len(batch.items)
        self._harvest.add(lane, batch, (outcomes, times, padding, fits), now)
        # What arrived while it ran is asked for with its settlement; watched lists have told.
        first = self._first_list[lane.model.name]
        lane.backlog.guess(
            place for place in range(len(STEPS)) if first + place in self._wake.unwatched
        )

    def _gave_way(self, lane: ServedModel, replica: Replica, seq: int, now: float) -> None:
        batch = replica.finished(seq, now)
        if batch is not None:
            self._reporter.gave_way(batch)
            self._ledger.settle(lane, gave_way(lane, batch))

    def _dispatch(self, now: float) -> None:
        draining = self._stopping.is_set()
        claims = self._ledger.connected and not draining
        while (dispatched := self._devices.next(now, draining, claims)) is not None:
            self._run(dispatched.lane, dispatched.replica, dispatched.batch)
        for lane in () if draining else self.lanes:
            for replica in lane.replicas:
                staged = replica.staged
                if staged is not None and self._devices.yields(lane, staged, now):
                    replica.take_back()
            second = takes_second(lane, self.lanes, now)
            staged = lane.next_batch(now) if second is not None else None
            if second is not None and staged is not None:
                self._run(lane, second, staged)
        for lane in self.lanes:
            if lane.deadlines.ended:
                self._ledger.settle(lane, lane.deadlines.ended)
                lane.deadlines.ended = []

    def _run(self, lane: ServedModel, replica: Replica, batch: Batch) -> None:
        self._seq += 1
        batch.seq = self._seq
        batch.id = batch_name(self._tag, self._seq)
        self._reporter.started(lane, batch)
        replica.run(batch)
        log_left(lane, batch)

    def _sleep(self) -> None:
        now = time.monotonic()
        try:
            timeout_s = self._arm(now)
            self._watch()
            events = self._selector.select(max(0.0, timeout_s))
            for key, _ in events:
                self._ready(key)
            later = time.monotonic()
            self._ledger.check(later)
            self._wake.check(later)
        except DISCONNECTED as error:
            self._wake.close()
            self._ledger.lost(now, error)

    def _ready(self, key: selectors.SelectorKey) -> None:
        """Something can be read: an answer, a frame, a wake-up or the call to stop."""
        if key.data is not None:
            lane, replica = key.data
            self._hear(lane, replica, time.monotonic())
        elif key.fileobj == self._signal_out:
            os.read(self._signal_out, 64)
        elif key.fileobj is self._porter:
            self._porter.deliver(self._ledger)
        elif key.fileobj is self._herald:
            self._herald.deliver(self._ledger)
        elif key.fileobj is self._ledger.socket():
            self._ledger.hear(time.monotonic())
        elif key.fileobj is self._wake.socket():
            self._woken(self._wake.drain())
            self._dropping.heard(self._wake.heard())

    def _arm(self, now: float) -> float:
        """Ask to be woken where that helps; the seconds to sleep at the most."""
        if self._ledger.connected and not self._stopping.is_set():
            wanted = [
                index
                for index in self._wake.unwatched
                if wants_wake(self.lanes[index // len(STEPS)], index % len(STEPS), now)
            ]
            if wanted:
                for index in self._wake.watch(wanted):
                    self.lanes[index // len(STEPS)].backlog.found(index % len(STEPS))
                if self._dropping.heard(self._wake.heard()):
                    return 0.0
            if any(lane.claimable for lane in self.lanes):
                return self._claims.top_up_at - now
        until = min(self._moments(now))
        return (min(until, now + POLL_S) if self._wake.polls else until) - now

    def _woken(self, indices: Iterable[int]) -> None:
        for index in indices:
            lane, place = divmod(index, len(STEPS))
            self.lanes[lane].backlog.look([place])

    def _moments(self, now: float) -> list[float]:
        """The times at which something is to be done."""
        moments = [now + SWEEP_S]
        if self._ledger.connected:
            moments += (self._sweep_at, self._renew_at)
            moments += (self._reporter.events_at, self._ledger.answer_due_at)
        elif self._dialing is None:
            moments.append(self._ledger.reconnect_at)
        for lane in self.lanes:
            held = bool(len(lane.batcher)) and self._devices.may_run(lane)
            moments += lane_moments(lane, now, held=held)
            if not self._stopping.is_set():
                moments += self._keeper.moments(lane)
        return moments

    def _watch(self) -> None:
        # After a reconnect there are others; while it dials, they are that thread's.
        now = (self._wake.socket(), self._ledger.socket()) if self._dialing is None else ()
        self._watched = watch_sockets(self._selector, self._watched, now)

    def _drained(self, now: float) -> bool:
        running = any(replica.batch for lane in self.lanes for replica in lane.replicas)
        waiting = any(lane.unfinished for lane in self.lanes)
        return now >= self._drain_until or not (
            running or waiting or self._harvest or self._ledger.busy
        )

    def _end(self) -> None:
        """Stop the model processes, then give back what did not end in time, uncharged."""
        self._claims.read(time.monotonic())
        self._harvest.settle()
        self._losses.give_all_back(self.lanes, time.monotonic())
        for command in (*self._reporter.states(self.lanes), *self._reporter.offline()):
            self._ledger.say(command)
        while self._ledger.busy and self._ledger.connected:
            self._ledger.flush(time.monotonic())
            self._ledger.hear(time.monotonic())
        for lane in self.lanes:
            self._porter.take(lane)
        self._porter.close()
        self._herald.close()
        if self._dialing is not None:
            self._dialing.leave()
        for part in (self._wake, self._ledger, self._reporter, self._selector):
            part.close()
        os.close(self._signal_out)
        os.close(self._signal_in)
