"""The output and the error file of a batch as the sink of a run.

The checkpoint is in the batch's record. One script saves rows, counts and checkpoint, and checks
that this runner still has the batch. So the files contain exactly the rows that the checkpoint
covers, and a runner that has lost its batch writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.batches.files.store import FileStore
from headrace.batches.output_file import OutputFile
from headrace.batches.output_lines import answer_line
from headrace.batches.store import BatchStore, Lease
from headrace.errors import ConfigError
from headrace.redis.fields import BatchField
from headrace.runs.interfaces import Mark, Row
from headrace.runs.range_set import RangeSet


class BatchLeaseLost(Exception):
    """Another runner has the batch, or it is gone: this runner must not write any more."""


class BatchSink:
    """Writes rows to the output and the error file; it is also the store of the checkpoint.

    Args:
        files: writes the files.
        batches: has the record.
        lease: the batch.
        keep_s: how long the files are kept once the batch has ended.
        job_id: returns the id of an entry's job.

    Attributes:
        completed: rows with a result.
        failed: rows without one.
    """

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        lease: Lease,
        keep_s: int,
        job_id: Callable[[int], str],
    ) -> None:
        self._files = files
        self._batches = batches
        self._lease = lease
        self._keep_s = keep_s
        self._job_id = job_id
        self.completed = lease.batch.completed
        self.failed = lease.batch.failed
        self._output = self._file("output", None)
        self._errors = self._file("errors", None)

    @property
    def checkpoints(self) -> BatchSink:
        """The sink itself."""
        return self

    def describe(self) -> str:
        """Return the batch's id."""
        return self._lease.batch.id

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Continue behind a mark. There are no rows behind it.

        Raises:
            StoreError, BrokerError: the end of a file cannot be read.
        """
        if mark is not None:
            self._output = self._file("output", mark[0])
            self._errors = self._file("errors", mark[1])
        return ()

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        batch_id = self._lease.batch.id
        for row in rows:
            line = answer_line(batch_id, self._job_id(row.n), row)
            (self._output if row.succeeded else self._errors).append(line)
            self.completed += row.succeeded
            self.failed += not row.succeeded

    def sync(self) -> Mark:
        """Write the rows; `save` adds them to the files."""
        self._output.flush()
        self._errors.flush()
        return [self._output.mark, self._errors.mark]

    def finish(self) -> Mark:
        """Do the same as `sync`."""
        return self.sync()

    def retract(self) -> RangeSet:
        """Raise ConfigError: a batch never runs again."""
        raise ConfigError("the failed lines of a batch run again in a new batch: set rerun_of")

    def close(self) -> None:
        """Do nothing: no file is open."""

    def acquire(self) -> None:
        """Do nothing: the lease is the lock."""

    def release(self) -> None:
        """Do nothing: the runner releases the lease."""

    def load(self) -> bytes | None:
        """Return the checkpoint that was saved last."""
        return self._lease.batch.checkpoint or None

    def save(self, data: bytes) -> None:
        """Save a checkpoint with the rows that it covers.

        Raises:
            BatchLeaseLost: another runner has the batch; nothing was saved.
            BrokerError: Redis is unavailable.
        """
        self._save("", {BatchField.CHECKPOINT: data})

    def end(self, status: str, more: dict[str, Any]) -> None:
        """End the batch and publish its files.

        Args:
            status: one of `record.ENDED`.
            more: further fields of the record.

        Raises:
            BatchLeaseLost, BrokerError: as for `save`.
        """
        self.sync()
        fields = dict(more)
        for name, file in ((BatchField.OUTPUT, self._output), (BatchField.ERROR, self._errors)):
            if file.size:
                fields[name] = file.id
        self._save(status, fields)

    def _save(self, status: str, fields: dict[str, Any]) -> None:
        written = [file for file in (self._output.written(), self._errors.written()) if file]
        counts = {BatchField.COMPLETED: self.completed, BatchField.FAILED: self.failed}
        if self._batches.save(self._lease, status, {**fields, **counts}, written) is None:
            raise BatchLeaseLost
        self._output.saved()
        self._errors.saved()

    def _file(self, kind: str, mark: Any) -> OutputFile:
        name = f"{self._lease.batch.id}_{kind}.jsonl"
        owner = self._lease.batch.spec.owner
        return OutputFile(self._files, name, owner, self._keep_s, mark)
