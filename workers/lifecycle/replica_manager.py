"""Starts, watches, recycles and gives up the model processes of one worker.

A process that hangs writes its stacks and is killed, with all that it has started. Which job of a
lost batch is to blame is unknown, so each of them runs alone next, and none is charged for the
others.

A process is recycled after `max_jobs`, or when it exceeds `max_memory_mb`. The next process is
loaded and warm before the old one takes its last batch. If two copies do not fit into memory
(`recycle_overlap: false`), the old one ends first. Replicas are recycled one at a time, so that the
others go on.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import last_line
from headrace.jobs.trace_context import Trace
from headrace.observability.logs import about_jobs
from workers.extension import Observer
from workers.jobs.leased_job import TIMED_OUT, Batch
from workers.jobs.settlement import unfinished
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.models.served_model import ServedModel
from workers.protocol.frames import STARTING, Loaded, Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.placement import Placement
from workers.replicas.process_end import OomKills, ProcessEnd
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: How often the memory of the processes is checked.
MEMORY_S: Final = 1.0


class ReplicaManager:
    """The model processes of one worker.

    Their sockets are registered in the selector, with (model, replica).

    Attributes:
        report_due: a replica has changed since the states of the models were reported.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        leases: LeaseManager,
        observer: WorkerObserver,
        orphan_guard: OrphanGuard,
        placement: Placement,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.report_due = False
        self._observers = observers
        self._selector = selector
        self._leases = leases
        self._observer = observer
        self._orphan_guard = orphan_guard
        self._placement = placement
        self._memory_at = 0.0
        self._looked_at = 0.0
        self._holds_back = False
        self._oom_kills = OomKills()

    def maintain(self, models: list[ServedModel], now: float, *, loads: bool = True) -> None:
        """Start (if `loads` is set), give up and recycle the processes that are due."""
        check_memory = now >= self._memory_at
        if check_memory:
            self._memory_at = now + MEMORY_S
            self._oom_kills.look()
        for model in models:
            for replica in list(model.replicas):
                if replica.process is None:
                    if loads and now >= replica.restart_at:
                        self._restart(models, model, replica, now)
                elif replica.overdue(now):
                    if replica.state in STARTING:
                        self.load_failed(model, replica, replica.error)
                    self.lost(model, replica, now)
                elif check_memory and not model.load_mib and replica.state is Phase.READY:
                    model.load_mib = self._placement.used_mib(model.device, replica.pids)
            self._recycle(model, now, check_memory)

    def check(self, models: list[ServedModel], now: float) -> None:
        """Give up the processes that hang, and release jobs that would wait long for a process."""
        for model in models:
            for replica in list(model.replicas):
                for batch in replica.running:
                    if now < batch.deadline or model.let_leave(replica, batch, now):
                        continue
                    if replica.hangs(batch, now):
                        self._ended(model, replica, batch, now)
                        break
            if model.prepared and all(
                replica.process is None and replica.restart_at > now for replica in model.replicas
            ):
                # Another worker may run them meanwhile. A pending claim or transfer may bring more.
                self._leases.release(model, model.release_prepared(), "free")

    @staticmethod
    def due_times(model: ServedModel, *, loads: bool) -> list[float]:
        """Return the times at which `maintain` must be called for a model."""
        return [
            replica.restart_at if replica.process is None else replica.due_at
            for replica in model.replicas
            if loads or replica.process is not None
        ]

    def load_failed(self, model: ServedModel, replica: Replica, traceback: str) -> None:
        """Log a failed load; the same traceback in a row is logged in full only once.

        An observer may have a text of its own, which is logged each time.
        """
        repeated = model.replica_history.add_load_failure(traceback)
        usual = last_line(traceback) if repeated else traceback
        texts = filter(None, (observer.load_failed(traceback) for observer in self._observers))
        shown = "\n".join(texts) or usual
        logger.error("the model cannot be loaded", extra={**about(model), "traceback": shown})
        replica.error = traceback

    def ready(self, model: ServedModel, replica: Replica, process: Loaded) -> None:
        """Put a loaded process into service; drain the process that it replaces, if any."""
        replica.ready(process)
        model.set_continuous(replica.continuous)
        model.replica_history.add_load(process.load_s)
        model.load_mib = self._placement.used_mib(model.device, replica.pids) or model.load_mib
        if replica.fits:
            model.observe_memory(model.config.max_batch_size, replica.fits)
        logger.info("loaded in %.2f s", process.load_s, extra=about(model))
        limit = model.config.max_memory_mb
        if limit is not None and (taken := replica.memory_mib()) > limit:
            logger.error(
                "the process needs %d MiB right after its load, more than max_memory_mb (%d), so "
                "it is not recycled for its memory; raise max_memory_mb",
                taken, limit, extra=about(model),
            )  # fmt: skip
            replica.outgrown = True
        for old in model.replicas:
            if old.successor is replica:
                old.enter(Phase.DRAINING)

    def lost(self, model: ServedModel, replica: Replica, now: float) -> None:
        """Give up a process that is gone or must go: release its batches, and restart it."""
        # If it hung, the request for its stacks has ended it.
        self._ended(model, replica, replica.batch if replica.stacks_requested else None, now)

    def _ended(self, model: ServedModel, replica: Replica, hung: Batch | None, now: float) -> None:
        end = ProcessEnd(replica.end_process(), self._oom_kills.recent)
        # One that has crashed seems to hang while the kernel writes its memory to the disk.
        if hung is not None and not end.by_itself:
            self._hung(model, replica, hung, now)
        else:
            self._lost(model, replica, end, now)

    def _hung(self, model: ServedModel, replica: Replica, batch: Batch, now: float) -> None:
        logger.error("batch exceeded its timeout", extra=about_batches(model, [batch]))
        begun, untouched = replica.take_batches()
        alone = len(begun) == 1 and len(batch.jobs) == 1
        others, ends = begun, alone or batch.jobs[0].dropped == TIMED_OUT
        # If jobs have just joined a generator, the one that ends may be among the untouched ones.
        free = [other for other in untouched if not (ends and other is batch)]
        self._release(model, free, "free")
        if ends:
            settlement = model.batch_timed_out(batch, now, replica.trace())
            self._leases.settle(model, [settlement])
            self._observer.finished(batch, [])
            others = [other for other in begun if other is not batch]
        # Any of them may hang: each runs alone next, and none is charged.
        self._release(model, others, "alone", now=now)
        cause = batch.jobs[0].id if alone else ""
        self._give_up(model, replica, "a job ran longer than its timeout", begun, cause, now)

    def _lost(self, model: ServedModel, replica: Replica, end: ProcessEnd, now: float) -> None:
        trace, died = replica.trace(), f"it ended {end.how}"
        begun, untouched = replica.take_batches()
        if replica.loaded and not replica.device_lost:
            fields = about_batches(model, begun) if begun else about(model)
            lost = model.replica_history.lost + 1
            fields |= {"model_pid": replica.pid, "reason": end.how, "lost": lost}
            if trace:
                fields["traceback"] = trace
            what = "during a batch" if begun else "without a batch"
            logger.error("model process died %s", what, extra=fields)
        elif replica.state in STARTING and not replica.error:
            self.load_failed(model, replica, replica.why_not_loaded(end.how))
        self._release(model, untouched, "free")
        # What has ended it from outside may have been caused by a job in another process.
        mode = "crash" if end.by_itself else "lost"
        self._release(model, begun, mode, end.how, trace, now=now)
        alone = [batch.jobs[0].id for batch in begun if batch.reason == "alone"]
        why = "its device was lost" if replica.device_lost else died
        self._give_up(model, replica, why, begun, alone[0] if alone else replica.cause, now)

    def _release(
        self,
        model: ServedModel,
        batches: list[Batch],
        mode: str,
        how: str = "",
        traceback: str = "",
        now: float = 0.0,
    ) -> None:
        """Return the jobs of these batches to their queue; see `LeaseManager.release`."""
        # The jobs that are released last are first in their queue.
        for batch in reversed(batches):
            runs = {}
            if mode != "free":
                model.stats.left(batch.reason)
                runs = {job.token: unfinished(job, batch, now) for job in batch.jobs}
            self._leases.release(model, batch.jobs, mode, how, traceback, runs)
            self._observer.finished(batch, [])

    def discard(self, model: ServedModel, replica: Replica) -> None:
        """Kill a process that runs no batch, and forget its replica."""
        self._unwatch(replica)
        self._orphan_guard.unwatch(replica.pid)
        replica.kill()
        model.replicas.remove(replica)

    def drain_surplus(self, model: ServedModel, now: float) -> None:
        """End the surplus replicas of a model; one with a batch ends after that batch."""
        for replica in list(model.replicas):
            if not replica.surplus:
                continue
            if replica.process is None:
                model.replicas.remove(replica)
            elif replica.state in STARTING:
                self.discard(model, replica)
            elif replica.state is Phase.READY:
                replica.enter(Phase.DRAINING)
            if replica.state is Phase.DRAINING and replica.batch is None:
                replica.retire(now)

    def _unwatch(self, replica: Replica) -> None:
        frames = None if replica.held_back else replica.frames
        replica.held_back = False
        for watched in (frames, replica.exit_fd):
            if watched is not None:
                self._selector.unregister(watched)

    def hold_back(self, models: Sequence[ServedModel], now: float) -> None:
        """Read nothing from the processes that stream while too many pieces wait for Redis.

        Then their sockets fill, and their handlers wait with the next piece. No timeout runs.
        """
        waited_s, self._looked_at = now - self._looked_at, now
        full = self._leases.pieces_full
        if not full and not self._holds_back:
            return
        if full and not self._holds_back:
            logger.warning("many pieces wait for Redis: model processes wait with the next ones")
        self._holds_back = full
        for model in models:
            for replica in model.replicas:
                for batch in replica.running if replica.held_back else ():
                    batch.deadline += waited_s
                if replica.frames is None or replica.held_back == (full and replica.streams):
                    continue
                replica.held_back = not replica.held_back
                if replica.held_back:
                    self._selector.unregister(replica.frames)
                else:
                    self._selector.register(replica.frames, selectors.EVENT_READ, (model, replica))

    def release_all(self, models: Sequence[ServedModel], now: float) -> None:
        """Stop all model processes, and return all held jobs to their queues, uncharged."""
        for model in models:
            for replica in model.replicas:
                # Those that run a batch or still load end at once.
                if replica.batch is not None or replica.state in STARTING:
                    replica.kill()
                else:
                    replica.retire(now)
            for replica in model.replicas:
                for batches in replica.take_batches():
                    self._release(model, batches, "free")
            self._leases.release(model, model.release_all(), "free")
        for model in models:
            for replica in model.replicas:
                replica.stop()
        self._orphan_guard.close()

    def _give_up(
        self,
        model: ServedModel,
        replica: Replica,
        why: str,
        begun: list[Batch],
        cause: str,
        now: float,
    ) -> None:
        """Clean up after a process that is gone, and plan the next one."""
        self._unwatch(replica)
        if replica.loaded:
            trace = replica.trace()
            jobs = [job.id for batch in begun for job in batch.jobs]
            why = f"{why}\n{trace}" if trace else why
            model.replica_history.add_loss(now, why, jobs, cause)
        self._orphan_guard.unwatch(replica.pid)
        replica.ended(now)
        if replica.successor is not None or replica.surplus:
            # The successor takes its place, even while it still loads.
            model.replicas.remove(replica)
        self.report_due = True

    def _restart(
        self, models: Sequence[ServedModel], model: ServedModel, replica: Replica, now: float
    ) -> None:
        replica.restart_at = model.replica_history.restart_at(now)
        if replica.restart_at > now:
            reason = model.replica_history.wait_reason(now).partition("\n")[0]
            logger.error("%s", reason, extra=about(model))
        elif why := self._why_no_room(models, model):
            model.lacks_memory = True
            self.load_failed(model, replica, why)
            replica.ended(now)
            self.report_due = True
        else:
            self._start(model, replica, now)

    def _why_no_room(self, models: Sequence[ServedModel], model: ServedModel) -> str:
        """Return in words why there is no memory for one more replica; "" if there is, or may be.

        Of replicas that load, what they do not have yet is not free.
        """
        loading_mib = 0.0
        for other in models:
            if other.device != model.device:
                continue
            need = other.config.memory_mb or other.load_mib
            for replica in other.replicas:
                if need and replica.state in STARTING:
                    used_mib = self._placement.used_mib(other.device, replica.pids)
                    loading_mib += max(0.0, need - used_mib)
        return self._placement.why_no_room(model.config, model.device, model.load_mib, loading_mib)

    def _start(self, model: ServedModel, replica: Replica, now: float) -> None:
        model.process_starts()
        frames = replica.start(now, self._orphan_guard.mark)
        self._orphan_guard.watch(replica.pid)
        for watched in (frames, replica.exit_fd):
            if watched is not None:
                self._selector.register(watched, selectors.EVENT_READ, (model, replica))

    def _recycle(self, model: ServedModel, now: float, check_memory: bool) -> None:
        for replica in model.replicas:
            drained = replica.state is Phase.DRAINING and replica.batch is None
            if drained and not replica.device_lost:
                replica.retire(now)
        if any(replica.recycling for replica in model.replicas):
            return
        for replica in model.replicas:
            why = self._worn(model, replica, check_memory)
            if why:
                replica.recycling = why
                logger.info("recycling a model process: %s", why, extra=about(model))
                model.replica_history.add_recycle()
                if model.config.recycle_overlap:
                    successor = replica.successor = replica.another()
                    successor.core_set = replica.core_set
                    model.replicas.append(successor)
                else:
                    replica.enter(Phase.DRAINING)
                return

    @staticmethod
    def _worn(model: ServedModel, replica: Replica, check_memory: bool) -> str:
        config = model.config
        if replica.state is not Phase.READY:
            return ""
        if config.max_jobs is not None and replica.jobs >= config.max_jobs:
            return f"it has run {replica.jobs} jobs (max_jobs: {config.max_jobs})"
        limit = config.max_memory_mb
        if check_memory and limit is not None and replica.jobs and not replica.outgrown:
            taken = replica.memory_mib()
            if taken > limit:
                return f"it takes {taken:.0f} MiB (max_memory_mb: {limit})"
        return ""


def about(model: ServedModel) -> dict[str, Any]:
    """Return the log fields of a model."""
    return {"model": model.config.name}


def about_batches(model: ServedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the log fields of batches and all of their jobs."""
    ids = [job.id for batch in batches for job in batch.jobs]
    names = " ".join(batch.id for batch in batches)
    return {
        **about(model), "batch": names, "size": len(ids), **about_jobs(ids), **_trace(batches, ids),
    }  # fmt: skip


def _trace(batches: Sequence[Batch], ids: Sequence[str]) -> dict[str, str]:
    """Return the trace fields of batches with a single job."""
    if len(ids) != 1:
        return {}
    parents = [parent for batch in batches for parent in batch.traces.values()]
    if not parents:
        return {}
    trace = Trace(parents[0])
    return {"trace_id": trace.trace_id, "span_id": trace.span_id}
