"""The jobs that a worker holds, between claim and settlement.

`HeldJobs` renews their leases, cancels them, and writes their starts, pieces and progress to Redis.
Redis publishes each cancel to the worker that holds the job. If that message is lost, the next
renewal finds the cancel. It also finds a job that another worker has claimed meanwhile.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from headrace.config.extensions import handler_extension
from headrace.jobs.progress import Progress
from headrace.observability import worker_report
from headrace.redis.keys import OFFLINE_STEP
from headrace.redis.scripts import Arg, script
from headrace.redis.scripts.jobs import CANCEL_REQUESTED, FENCED, read_cancel_notices
from workers.extension import worker_parts
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.protocol.frames import PieceRow
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: The bits of the number of a run. It is random, because after a crash counters in Redis go back.
_RUN_BITS: Final = 32


class HeldJobs:
    """The jobs that a worker holds."""

    def __init__(self, models: Sequence[ServedModel], leases: LeaseManager) -> None:
        self._models = models
        self._leases = leases
        self._in_doubt: dict[str, ServedModel] = {}
        self._turned_at: float | None = None
        # The latest progress of each held job, which is written again after an outage.
        self._progress: WeakKeyDictionary[LeasedJob, bytes] = WeakKeyDictionary()
        self._number = 0

    def leases_in_doubt(self, now: float) -> bool:
        """Return whether another worker may have claimed jobs that this worker holds.

        The worker calls it at the beginning of each turn. While it returns True, nothing may be
        dispatched.

        A worker that was paused for most of a lease is in doubt until its leases are renewed. If
        Redis is away too, that is after the outage. An outage of Redis alone causes no doubt,
        because no worker can claim jobs without Redis.
        """
        turned_at, self._turned_at = self._turned_at, now
        connected = self._leases.connected
        if turned_at is not None and now - turned_at > self._leases.settings.lease_ttl_s * 2 / 3:
            # Other workers on a host that was suspended need time to renew their leases too.
            self._leases.delay_reaping(now)
            self._in_doubt = {model.key: model for model in self._models if model.held}
            for model in self._models if connected else ():
                self.renew(model)
        return any(model.held for model in self._in_doubt.values())

    def renew(self, model: ServedModel) -> None:
        """Renew the leases of a model's jobs; cancel or drop the jobs whose lease is gone."""

        def answered(jobs: list[LeasedJob], codes: list[Any]) -> None:
            self._in_doubt.pop(model.key, None)
            model.stats.count(worker_report.RENEWED, sum(int(code) != FENCED for code in codes))
            for job, code in zip(jobs, codes, strict=True):
                if not model.holds(job) or job.dropped:
                    continue
                if int(code) == CANCEL_REQUESTED:
                    self._cancel(model, job.id, job.token)
                elif int(code) == FENCED:
                    model.lose(job)

        self._leases.renew(model, answered)

    def read_cancels(self, messages: Sequence[bytes]) -> None:
        """Read the messages that jobs/cancel.lua published."""
        for message in messages:
            try:
                notices = read_cancel_notices(message)
            except ValueError as error:
                # The renewal of the leases finds these cancels too.
                logger.warning("cancel message cannot be read: %s", error)
                continue
            for name, job_id, token in notices:
                for model in self._models:
                    if model.config.name == name:
                        self._cancel(model, job_id, token)

    def _cancel(self, model: ServedModel, job_id: str, token: str) -> None:
        unread = model.take_out_withheld(job_id, token)
        if unread is not None:
            self._leases.release(model, [unread], "free")
        else:
            self._leases.settle(model, model.cancel(job_id, token))

    def write_start(self, batch: Batch) -> None:
        """Write to Redis that the jobs of a batch run; during an outage, do nothing.

        The worker calls it again after the outage.
        """
        if not self._leases.connected:
            return
        batch.start_due_at = NEVER
        rows = [
            (job.id, job.token, str(job.redis_us(batch.started_at)))
            for job in batch.jobs
            if not job.dropped
        ]
        self._leases.send(script("jobs/start").call([], *chain.from_iterable(rows)))

    def write_starts_again(self) -> None:
        """Write the starts of all running batches again, because an outage can lose them."""
        for model in self._models:
            for replica in model.replicas:
                for batch in replica.running:
                    if batch.start_due_at == NEVER:
                        self.write_start(batch)

    def write_pieces(self, model: ServedModel, replica: Replica, rows: Sequence[PieceRow]) -> None:
        """Append the pieces that a replica sends to the piece logs of their jobs.

        Pieces of a batch that the replica no longer has, and of quiet jobs, are ignored.
        """
        wanted = []
        first_s: list[float] = []
        jobs: dict[int, dict[str, LeasedJob]] = {}
        replica.streams = True
        for seq, job_id, *rest in rows:
            if seq not in jobs:
                batch = self._begun(replica, seq)
                jobs[seq] = _with_log(batch)
                self._extend(model, batch)
            job = jobs[seq].get(job_id)
            if job is not None:
                first, count, text, *_ = rest
                if not job.run or (count and not text):  # its first pieces, or it begins again
                    job.run = secrets.randbits(_RUN_BITS) + 1
                wanted.append((job.id, job.token, job.run, *rest))
                # An offline job waits by design. A job with a log had its first piece before.
                if first == 1 and text and job.step != OFFLINE_STEP and job.log is None:
                    first_s.append(time.monotonic() - job.enqueued_at)
        if first_s:
            model.stats.observe(worker_report.FIRST_PIECE_S, first_s)
        if wanted:
            # Settlements are resent too. Both keep their order, so pieces stay before the end.
            self._leases.append_pieces(model.config.name, wanted)

    @staticmethod
    def _extend(model: ServedModel, batch: Batch | None) -> None:
        """Count the timeout of a batch from its last piece, if the extension of its handler does.

        A timeout that a client has set still counts from the start of the attempt.
        """
        part = worker_parts().get(handler_extension(model.config.handler))
        if batch is None or part is None or not part.pieces_extend_timeout:
            return
        jobs = [job for job in batch.jobs if not job.dropped]
        if jobs and all(job.message is None or job.message.timeout_s is None for job in jobs):
            limit_s = model.timeout_s(jobs)
            batch.deadline = max(batch.deadline, time.monotonic() + limit_s)

    def _begun(self, replica: Replica, seq: int) -> Batch | None:
        """Return a batch, if the replica has it; write its start first."""
        batch = replica.batch_of(seq)
        if batch is not None and batch is not replica.staged and batch.start_due_at != NEVER:
            self.write_start(batch)
        return batch

    def write_progress(self, replica: Replica, seq: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write the progress that a replica reports for the jobs of a batch.

        Progress of a batch that the replica no longer has is ignored. Each row is a job's id and
        the fields of a `Progress`.
        """
        batch = self._begun(replica, seq)
        if batch is None:
            return
        fields = {job_id: rest for job_id, *rest in rows}
        jobs = [job for job in batch.jobs if job.id in fields and not job.dropped]
        for job in jobs:
            # Redis keeps the progress with the highest number under a fencing token.
            self._number += 1
            text = msgspec.json.encode(Progress(*fields[job.id]))
            self._progress[job] = b"%d %s" % (self._number, text)
        self._send_progress(jobs)

    def write_progress_again(self) -> None:
        """Write the latest progress of all held jobs again, because an outage can lose it."""
        self._send_progress(list(self._progress))

    def _send_progress(self, jobs: Iterable[LeasedJob]) -> None:
        rows: list[Arg] = []
        for job in jobs:
            rows += (job.id, job.token, self._progress[job])
        if rows and self._leases.connected:
            self._leases.send(script("records/progress").call([], *rows))


def _with_log(batch: Batch | None) -> dict[str, LeasedJob]:
    """Return the jobs of a batch that have a log, by id."""
    return {
        job.id: job
        for job in (batch.jobs if batch is not None else ())
        if not job.dropped and not (job.message is not None and job.message.quiet)
    }
