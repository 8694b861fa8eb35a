"""What model processes send to their worker, and the settlement of the batches that have run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from headrace.observability.worker_report import GenerationState
from workers.consumer.held_jobs import HeldJobs
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.profiles import Profiles
from workers.extension import Observer
from workers.jobs.leased_job import Batch
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.leases.notifications import QueueNotifications
from workers.lifecycle.replica_manager import ReplicaManager, about_batches
from workers.models.backlog import PLACES, first_list
from workers.models.served_model import ServedModel
from workers.protocol.frames import (
    Began,
    Done,
    FromModel,
    ItemProgress,
    Loaded,
    Metrics,
    NotLoaded,
    Phase,
    Pieces,
    Profiled,
    Room,
    TokenFigures,
    Waits,
    Warming,
    Yielded,
)
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)


class FinishedBatch(NamedTuple):
    """A batch that has run and is not settled.

    Between the two the next batch is dispatched, so that no device waits for settlements.
    """

    model: ServedModel
    batch: Batch
    result: Done
    at: float


class ReplicaFrames:
    """Reads the frames of model processes, and settles the batches that they have run."""

    def __init__(
        self,
        leases: LeaseManager,
        notifications: QueueNotifications,
        observer: WorkerObserver,
        transfer: PayloadTransfer,
        held_jobs: HeldJobs,
        replica_manager: ReplicaManager,
        profiles: Profiles,
        observers: Sequence[Observer],
    ) -> None:
        self.finished: list[FinishedBatch] = []
        self._leases = leases
        self._notifications = notifications
        self._observer = observer
        self._transfer = transfer
        self._held_jobs = held_jobs
        self._replica_manager = replica_manager
        self._profiles = profiles
        self._observers = observers

    def catch_up(self, model: ServedModel, replica: Replica, now: float) -> None:
        """Read all that a process has sent, and notice its end."""
        exited = replica.exited()
        while replica.frames is not None and replica.frames.readable():
            self.read(model, replica, now)
        if exited and replica.frames is not None:
            # A child that it forked keeps its socket open.
            self._replica_manager.lost(model, replica, now)

    def read(self, model: ServedModel, replica: Replica, now: float) -> None:
        """Read the frames that have come from a process, or notice that its socket was closed."""
        if replica.frames is None:
            return
        try:
            frames = replica.frames.receive()
        except (EOFError, OSError):
            self._replica_manager.lost(model, replica, now)
            return
        for frame in frames:
            if not replica.stacks_requested:
                self._take_frame(model, replica, frame, now)

    def _take_frame(
        self, model: ServedModel, replica: Replica, frame: FromModel, now: float
    ) -> None:
        match frame:
            case Done():
                self._done(model, replica, frame, now)
            case Pieces():
                self._held_jobs.write_pieces(model, replica, frame.rows)
            case ItemProgress():
                self._held_jobs.write_progress(replica, frame.seq, frame.rows)
            case Metrics():
                for observer in self._observers:
                    observer.reported(model, replica, frame.rows)
            case Yielded():
                self._preempted(model, replica, frame.seq, now)
            case Profiled():
                self._profiles.ended(model, frame)
            case Warming() | Loaded() | NotLoaded():
                self._phase_changed(model, replica, frame)
            case _:
                self._replica_changed(model, replica, frame, now)

    @staticmethod
    def _replica_changed(
        model: ServedModel, replica: Replica, frame: Room | Waits | TokenFigures | Began, now: float
    ) -> None:
        match frame:
            case Room():
                replica.room_reported(frame.received, frame.online, frame.offline)
            case Waits():
                replica.waiting_reported(frame.seq, frame.waits, now)
            case TokenFigures():
                replica.generation = GenerationState(*frame.state)
                model.stats.observe_tokens(
                    frame.prompt, frame.cached, frame.generated, frame.counts, frame.sum_s
                )
            case Began():
                staged = replica.staged
                replica.staged_began = staged is not None and staged.seq == frame.seq

    def _phase_changed(
        self, model: ServedModel, replica: Replica, frame: Warming | Loaded | NotLoaded
    ) -> None:
        match frame:
            case Warming():
                replica.enter(Phase.WARMING)
            case Loaded():
                self._replica_manager.ready(model, replica, frame)
                for observer in self._observers:
                    observer.loaded(model, replica, frame.load_s)
                model.expect_jobs()
            case NotLoaded():
                self._replica_manager.load_failed(model, replica, frame.error)
        self._replica_manager.report_due = True

    def _done(self, model: ServedModel, replica: Replica, frame: Done, now: float) -> None:
        batch = replica.finished(frame.seq, now)
        if frame.device_lost:
            replica.lost_device(batch.jobs[0].id if batch is not None else "", now)
        if batch is None:
            return
        replica.jobs += len(batch.jobs)
        model.batch_ended(batch, now)
        if frame.used is not None:
            batch.jobs[0].used = str(frame.used)
        self.finished.append(FinishedBatch(model, batch, frame, now))
        if frame.fits:
            self.settle_finished()  # the next batch must be smaller
        # The settlement takes a claim along for jobs that came while the batch ran. Lists that are
        # watched would have woken this worker.
        if model.position is not None:
            unwatched = self._notifications.unwatched
            places = enumerate(PLACES, first_list(model.position))
            model.guess([place for number, place in places if number in unwatched])

    def _preempted(self, model: ServedModel, replica: Replica, seq: int, now: float) -> None:
        batch = replica.finished(seq, now)
        if batch is not None:
            self._observer.preempted(batch)
            self._leases.settle(model, model.batch_returned(batch))

    def settle_finished(self) -> None:
        """Settle the batches that have run; what the payload store takes is settled later."""
        finished, self.finished = self.finished, []
        for model, batch, result, at in finished:
            if logger.isEnabledFor(logging.DEBUG):
                failed = sum(not outcome[0] for outcome in result.outcomes)
                took_ms = round((at - batch.started_at) * 1000, 3)
                fields = {"failed": failed, "duration_ms": took_ms}
                logger.debug("batch ended", extra={**about_batches(model, [batch]), **fields})
            ready, storing = model.batch_done(batch, result, at)
            for observer in self._observers:
                observer.finished(model, batch, result.outcomes, result.times, at)
            self._observer.finished(batch, [*ready, *storing])
            self._leases.settle(model, ready)
            if storing:
                self._transfer.begin(model)
