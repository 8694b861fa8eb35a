"""Progress on its way from a model process to the records of its jobs."""

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
    """What the model processes of a worker say of their jobs.

    Args:
        leases: says it to Redis.
    """

    def __init__(self, leases: LeaseManager) -> None:
        self._leases = leases
        # The newest word of each job while that is held: an outage may have swallowed it.
        self._latest: WeakKeyDictionary[LeasedJob, bytes] = WeakKeyDictionary()
        self._number = 0

    def write(self, replica: Replica, seq: int, rows: Sequence[Sequence[Any]]) -> None:
        """A model process has said something of a batch; passed over where it has none such.

        Args:
            replica: the process.
            seq: the batch's number.
            rows: job id and the fields of a `Progress`, for each job.
        """
        batches = (replica.batch, replica.staged)
        batch = next((one for one in batches if one is not None and one.seq == seq), None)
        if batch is None:
            return
        said = {job_id: rest for job_id, *rest in rows}
        about = [job for job in batch.jobs if job.id in said and not job.dropped]
        for job in about:
            # No other word under the same token has that number.
            self._number += 1
            word = msgspec.json.encode(Progress(*said[job.id]))
            self._latest[job] = b"%d %s" % (self._number, word)
        self._say(about)

    def write_again(self) -> None:
        """Redis is back."""
        self._say(list(self._latest))

    def _say(self, jobs: Iterable[LeasedJob]) -> None:
        rows = [(job.id, job.token, self._latest[job]) for job in jobs]
        if rows and self._leases.connected:
            self._leases.send(job_scripts.progress(rows))
