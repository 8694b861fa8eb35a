"""When isolated jobs begin: Redis marks each of them first.

Nothing else runs in the model process of an isolated job. During an exclusive job, its worker does
nothing else: no batch, no claim, no transfer of a payload, and no load of a model. Only a job that
Redis knows to run so can be charged when its worker is lost; docs/architecture/failure.md has the
rules. Other jobs need no mark.

An exclusive run first reserves its host. It then waits until the worker has nothing else to do, and
is marked then. A withheld job is read and fetched after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.redis.scripts.jobs import (
    EXCLUSIVE,
    IN_EITHER,
    IN_PROCESS,
    IN_WORKER,
    ISOLATED,
    ISOLATION_ENDS,
    RESERVED,
)
from workers.jobs.leased_job import Batch, LeasedJob
from workers.models.served_model import ServedModel
from workers.protocol.frames import STARTING

#: After how many seconds a job that may not begin yet is considered again.
RETRY_S: Final = 1.0
#: An exclusive run waits so long, in seconds, for transfers when all batches have ended. After that
#: it gives way for a minute, because a store can hang.
TRANSFERS_MAX_S: Final = 20.0
TRANSFERS_RETRY_S: Final = 60.0


@dataclass(eq=False, slots=True)
class IsolatedRun:
    """One isolated run of a job.

    Attributes:
        scope: what is sent to jobs/isolate.lua next.
        sent: that was sent.
        reading: its message is read, which was withheld.
        batch: its batch, once it has begun.
        ended: that batch has left its model process.
        give_up_at: until when it waits for transfers; None while batches run.
    """

    model: ServedModel
    job: LeasedJob
    scope: str
    sent: bool = False
    granted: bool = False
    reading: bool = False
    batch: Batch | None = None
    ended: bool = False
    give_up_at: float | None = None


class Isolation:
    """The isolated runs of a worker that have not begun, and the exclusive run.

    Attributes:
        exclusive: the exclusive run that waits for the worker to be idle, that runs, or whose mark
            is being removed. Nothing else is dispatched, claimed or loaded meanwhile.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.exclusive: IsolatedRun | None = None
        self._models = models
        self._runs: dict[str, IsolatedRun] = {}
        self._retry_at: dict[str, float] = {}
        self._requests: list[IsolatedRun] = []
        self._unread: list[IsolatedRun] = []

    def remove(self, model: ServedModel) -> None:
        """Forget a model that holds no jobs."""
        self._runs.pop(model.key, None)
        self._retry_at.pop(model.key, None)

    @property
    def holds_claims(self) -> bool:
        """Whether nothing may be claimed now."""
        run = self.exclusive
        return run is not None and (run.sent or run.scope != IN_EITHER)

    def holds(self, model: ServedModel) -> bool:
        """Return whether a model runs nothing else until its isolated job has begun."""
        return self.exclusive is not None or model.key in self._runs

    def next_batch(self, model: ServedModel, now: float, *, connected: bool) -> Batch | None:
        """Return the batch of the model's isolated job if that is next and may begin.

        The model has an idle replica. Only if `connected` Redis can be asked.
        """
        run = self._runs.get(model.key)
        if run is None:
            if connected and now >= self._retry_at.get(model.key, 0.0):
                self._request(model, now)
            return None
        if not run.granted:
            return None
        del self._runs[model.key]
        return model.isolated_batch(run.job, now)

    def begin_exclusive(self, now: float) -> Batch | None:
        """Return the batch of the exclusive job if it may begin now."""
        run = self.exclusive
        if run is None or run.scope == ISOLATION_ENDS:
            return None
        if run.batch is not None:
            if run.ended and not self._stores(run):
                self._end(run)
            return None
        if run.granted:
            return self._begin(run, now)
        if not run.sent:
            self._mark_when_idle(run, now)
        return None

    @staticmethod
    def _stores(run: IsolatedRun) -> bool:
        """Return whether the result of a job may still be on the way to the store.

        That is so until the job is settled, or its callbacks are sent, which can take long.
        """
        model, job = run.model, run.job
        return model.holds(job) and not model.awaits_callbacks(job)

    def _begin(self, run: IsolatedRun, now: float) -> Batch | None:
        job, model = run.job, run.model
        if job.withheld and not run.reading and model.begin_reading(job):
            run.reading = True
            self._unread.append(run)
        if model.is_prepared_soon(job):
            return None
        if not job.withheld and model.idle:
            run.batch = model.isolated_batch(job, now)
        if run.batch is None:
            self._end(run)
        return run.batch

    def _mark_when_idle(self, run: IsolatedRun, now: float) -> None:
        """Request the mark of an exclusive run once the worker does nothing else."""
        if self._running:
            return
        if not run.model.idle:  # its process was lost meanwhile
            self._retry_later(run, now, RETRY_S)
            self._end(run)
        elif not (self._transferring or self._claiming or self._loading):
            self._mark(run, now)
        elif run.give_up_at is None:
            run.give_up_at = now + TRANSFERS_MAX_S
        elif now >= run.give_up_at:
            self._retry_later(run, now, TRANSFERS_RETRY_S)
            self._end(run)

    def _mark(self, run: IsolatedRun, now: float) -> None:
        if run.scope == IN_EITHER:
            if run.model.claim_request():
                return  # what comes may be better
            if run.model.next_isolated(now) is not run.job:
                self._forget(run)
                return
        self._send(run)

    def take_requests(self) -> list[IsolatedRun]:
        """Return the runs whose scope must be sent to Redis."""
        requests, self._requests = self._requests, []
        return requests

    def take_unread(self) -> list[IsolatedRun]:
        """Return the runs whose withheld message must be read."""
        unread, self._unread = self._unread, []
        return unread

    def answered(self, run: IsolatedRun, code: int, now: float) -> None:
        """Take the reply of jobs/isolate.lua."""
        if run.scope == ISOLATION_ENDS:
            self._forget(run)
        elif code not in (ISOLATED, EXCLUSIVE):
            self._retry_later(run, now, RETRY_S)
            self._forget(run)
        elif run.scope == RESERVED:
            self._reserved(run, now)
        elif code == ISOLATED and self.exclusive is run:
            # Another job of the host runs exclusively, so this job may have neighbours.
            self.exclusive, run.granted = None, True
            self._runs[run.model.key] = run
        else:
            run.granted = True

    def _reserved(self, run: IsolatedRun, now: float) -> None:
        name = run.model.key
        if self._runs.get(name) is not run:
            return  # the connection was lost meanwhile
        del self._runs[name]
        if self.exclusive is not None:
            self._retry_later(run, now, RETRY_S)
            self._end(run)
            return
        run.scope, run.sent = IN_WORKER, False
        self.exclusive = run

    def connection_lost(self) -> None:
        """Forget the requests under way; the jobs that have begun run on."""
        self._runs.clear()
        self._requests.clear()
        self._unread.clear()
        run = self.exclusive
        if run is None:
            return
        if run.reading:
            run.model.message_read(run.job, None)
        if run.batch is None or run.ended or run.scope == ISOLATION_ENDS:
            self.exclusive = None

    def _request(self, model: ServedModel, now: float) -> None:
        job = model.next_isolated(now)
        if job is None or (job.exclusive and self._loading):
            return
        one_process = sum(model.config.replicas for model in self._models) == 1
        if one_process and not job.exclusive and not (self._loading or self._transferring):
            # Nothing runs, so that nothing has to end first.
            self.exclusive = IsolatedRun(model, job, IN_EITHER)
            self.begin_exclusive(now)
            return
        run = IsolatedRun(model, job, RESERVED if job.exclusive else IN_PROCESS)
        self._runs[model.key] = run
        self._send(run)

    def _send(self, run: IsolatedRun) -> None:
        run.sent = True
        self._requests.append(run)

    def _end(self, run: IsolatedRun) -> None:
        run.scope = ISOLATION_ENDS
        self._send(run)

    def _retry_later(self, run: IsolatedRun, now: float, after_s: float) -> None:
        self._retry_at[run.model.key] = now + after_s

    def _forget(self, run: IsolatedRun) -> None:
        if self.exclusive is run:
            self.exclusive = None
        if self._runs.get(run.model.key) is run:
            del self._runs[run.model.key]

    @property
    def _running(self) -> bool:
        return any(replica.batch for model in self._models for replica in model.replicas)

    @property
    def _claiming(self) -> bool:
        return any(model.claiming or model.unread for model in self._models)

    @property
    def _transferring(self) -> bool:
        return any(model.transferring for model in self._models)

    @property
    def _loading(self) -> bool:
        return any(r.state in STARTING for model in self._models for r in model.replicas)
