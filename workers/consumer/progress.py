"""Writes the progress that model processes report into the records of the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from headrace.jobs.progress import Progress
from headrace.redis.scripts import jobs as job_scripts
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import LeaseManager
from workers.replicas.replica import Replica


class ProgressWriter:
    """The progress of one worker's jobs.

    Args:
        leases: sends it to Redis.
    """

    def __init__(self, leases: LeaseManager) -> None:
        self._leases = leases
        # The latest progress of each held job, to write again after an outage.
        self._latest: WeakKeyDictionary[LeasedJob, bytes] = WeakKeyDictionary()
        self._number = 0

    def write(self, replica: Replica, seq: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write the progress that a replica reports for a batch; ignore batches it does not have.

        Args:
            replica: the replica.
            seq: the batch's number.
            rows: job id and the fields of a `Progress`, for each job.
        """
        batches = (replica.batch, replica.staged)
        batch = next((one for one in batches if one is not None and one.seq == seq), None)
        if batch is None:
            return
        fields = {job_id: rest for job_id, *rest in rows}
        jobs = [job for job in batch.jobs if job.id in fields and not job.dropped]
        for job in jobs:
            # The number orders the progress under one token.
            self._number += 1
            text = msgspec.json.encode(Progress(*fields[job.id]))
            self._latest[job] = b"%d %s" % (self._number, text)
        self._send(jobs)

    def write_again(self) -> None:
        """Write the latest progress of all held jobs again; the outage may have lost it."""
        self._send(list(self._latest))

    def _send(self, jobs: Iterable[LeasedJob]) -> None:
        rows = [(job.id, job.token, self._latest[job]) for job in jobs]
        if rows and self._leases.connected:
            self._leases.send(job_scripts.progress(rows))
