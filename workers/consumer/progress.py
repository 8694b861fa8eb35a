"""Progress on its way from a model process to the records of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from headrace.jobs.progress import Progress
from headrace.redis.scripts import Arg, script
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import LeaseManager
from workers.replicas.replica import Replica


class ProgressWriter:
    """What the model processes of a worker say of their jobs.

    Args:
        ledger: says it to Redis.
    """

    def __init__(self, ledger: LeaseManager) -> None:
        self._ledger = ledger
        # The newest word of each job while that is held: an outage may have swallowed it.
        self._words: WeakKeyDictionary[LeasedJob, bytes] = WeakKeyDictionary()
        self._number = 0

    def heard(self, replica: Replica, seq: int, rows: Sequence[Sequence[Any]]) -> None:
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
        about = [item for item in batch.items if item.id in said and not item.dropped]
        for item in about:
            # No other word under the same token has that number.
            self._number += 1
            word = msgspec.json.encode(Progress(*said[item.id]))
            self._words[item] = b"%d %s" % (self._number, word)
        self._say(about)

    def joined(self) -> None:
        """Redis is back."""
        self._say(list(self._words))

    def _say(self, items: Iterable[LeasedJob]) -> None:
        arguments: list[Arg] = []
        for item in items:
            arguments += (item.id, item.token, self._words[item])
        if arguments and self._ledger.connected:
            self._ledger.say(script("jobs/progress").call([], *arguments))
