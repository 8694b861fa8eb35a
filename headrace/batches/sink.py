"""A batch's two files as the sink of a run; its checkpoint lies in the batch's record.

Rows, counts and checkpoint are saved in one script, which asks whether the batch is still this
runner's. So the files hold exactly what the checkpoint covers: there is nothing behind it to find
or to repair, and a runner that has lost its batch writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.batches.files.store import FileStore
from headrace.batches.output_file import OutputFile
from headrace.batches.output_lines import answer_line
from headrace.batches.store import BatchStore, Lease
from headrace.errors import ConfigError
from headrace.redis.keys import BatchField
from headrace.runs.interfaces import Mark, Row
from headrace.runs.range_set import RangeSet


class LeaseLost(Exception):
    """The batch is another runner's by now, or is gone: this one has nothing more to say of it."""


class BatchSink:
    """Rows into the output and the error file. The store of its checkpoint is itself.

    Args:
        files: where the files are written.
        batches: where the record is.
        lease: the batch.
        keep_s: how long the files are kept once the batch has ended.
        job_id: names the job of an entry's number.

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
        """Itself."""
        return self

    def describe(self) -> str:
        """The batch."""
        return self._lease.batch.id

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Go on behind a mark. There are no rows behind it.

        Raises:
            StoreError, BrokerError: the end of a file cannot be read.
        """
        if mark is not None:
            self._output = self._file("output", mark[0])
            self._errors = self._file("errors", mark[1])
        return ()

    def append(self, rows: Sequence[Row]) -> None:
        """Take rows."""
        batch_id = self._lease.batch.id
        for row in rows:
            line = answer_line(batch_id, self._job_id(row.n), row)
            (self._output if row.succeeded else self._errors).append(line)
            self.completed += row.succeeded
            self.failed += not row.succeeded

    def sync(self) -> Mark:
        """Write the rows; `save` makes them part of the files."""
        self._output.flush()
        self._errors.flush()
        return [self._output.mark, self._errors.mark]

    def finish(self) -> Mark:
        """As `sync`."""
        return self.sync()

    def retract(self) -> RangeSet:
        """A batch never runs again; a new one does."""
        raise ConfigError("a batch's lines run again in a new batch: rerun_of")

    def close(self) -> None:
        """Nothing is held open."""

    def acquire(self) -> None:
        """The lease is what keeps others away."""

    def release(self) -> None:
        """The lease is given back by whoever has claimed it."""

    def load(self) -> bytes | None:
        """What was saved last."""
        return self._lease.batch.checkpoint or None

    def save(self, data: bytes) -> None:
        """Keep a checkpoint, with the rows that it covers.

        Raises:
            LeaseLost: the batch is another's; nothing was saved.
            BrokerError: Redis does not answer.
        """
        self._say("", {BatchField.CHECKPOINT: data})

    def end(self, status: str, more: dict[str, Any]) -> None:
        """End the batch: its files are there from now on.

        Args:
            status: one of `records.ENDED`.
            more: fields of the record.

        Raises:
            LeaseLost, BrokerError: as for `save`.
        """
        self.sync()
        fields = dict(more)
        for name, file in ((BatchField.OUTPUT, self._output), (BatchField.ERROR, self._errors)):
            if file.size:
                fields[name] = file.id
        self._say(status, fields)

    def _say(self, status: str, fields: dict[str, Any]) -> None:
        written = [file for file in (self._output.written(), self._errors.written()) if file]
        counts = {BatchField.COMPLETED: self.completed, BatchField.FAILED: self.failed}
        if self._batches.save(self._lease, status, {**fields, **counts}, written) is None:
            raise LeaseLost
        self._output.saved()
        self._errors.saved()

    def _file(self, what: str, mark: Any) -> OutputFile:
        name = f"{self._lease.batch.id}_{what}.jsonl"
        owner = self._lease.batch.spec.owner
        return OutputFile(self._files, name, owner, self._keep_s, mark)
