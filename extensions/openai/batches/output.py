"""The output and the error file of a batch: their lines, their parts, and the sink of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from typing_extensions import override

from extensions.openai.batches.files import PART_BYTES, FileStore
from extensions.openai.batches.store import (
    JOBS_ENDPOINT,
    OPENAI_ENDPOINTS,
    BatchStore,
    Lease,
    SavedProgress,
)
from extensions.openai.redis.keys import BatchField
from extensions.openai.schema.batch_lines import PARAM, SHAPES, line_answer
from extensions.openai.schema.errors import FailedJob, failure_of, in_response, openai_error
from extensions.openai.schema.responses import RESPONSES
from headrace.errors import BY_CODE, ConfigError, HeadraceError, InvalidParameter
from headrace.jobs.job import JobFailure
from headrace.jobs.values.encoding import without_line_ends
from headrace.runs.interfaces import CheckpointStore, Mark, Row, Sink
from headrace.runs.range_set import RangeSet

#: The size of every part but the last.
FULL_BYTES: Final = PART_BYTES
EXPIRED: Final = JobFailure(
    type="batch_expired",
    message="the completion window ended before this request had run",
    retryable=True,
)
CANCELLED: Final = JobFailure(
    type="batch_cancelled",
    message="the batch was cancelled before this request had run",
    retryable=True,
)
REFUSED: Final = JobFailure(
    type="batch_unauthorized",
    message="the API key of the batch was revoked or expired before this request's result was read",
    retryable=False,
)
#: The errors of requests without a job that has run.
NOT_RUN: Final = frozenset({EXPIRED.type, CANCELLED.type, REFUSED.type})

_OK: Final = 200
_BAD_REQUEST: Final = 400
_ENCODER: Final = msgspec.json.Encoder()


def answer_line(batch_id: str, job_id: str, row: Row, endpoint: str = JOBS_ENDPOINT) -> bytes:
    """Return the line of one request, in the format of OpenAI, with its line feed.

    `response.body` is the answer of OpenAI's endpoint, or the job object with those members that
    matter here. A request that has not run has no response.
    """
    error = row.error
    if error is not None and endpoint == RESPONSES:
        error = msgspec.structs.replace(error, message=in_response(error.message))
        row = msgspec.structs.replace(row, error=error)
    response: dict[str, Any] | None = None
    if row.status == "rejected" and error is not None and endpoint in OPENAI_ENDPOINTS:
        response = {"request_id": job_id, **_refusal(endpoint, row, error)}
    elif row.status != "rejected" and not (error is not None and error.type in NOT_RUN):
        status, body = _response(endpoint, job_id, row)
        response = {"status_code": status, "request_id": job_id, "body": body}
    document = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}_{row.n}",
        "custom_id": row.key,
        "response": response,
        "error": None if error is None else {"code": error.type, "message": error.message},
    }
    return without_line_ends(_ENCODER.encode(document)) + b"\n"


def _failure_of(endpoint: str, error: JobFailure) -> FailedJob:
    text_field = SHAPES[endpoint].text_field
    return failure_of(error.type, error.message, retryable=error.retryable, text_field=text_field)


def _refusal(endpoint: str, row: Row, error: JobFailure) -> dict[str, Any]:
    """Return the answer to a line of which no job was made."""
    known = error.type in BY_CODE
    failed = _failure_of(endpoint, error)
    body = openai_error(failed)
    if PARAM in row.carried:
        body.error.param = msgspec.json.decode(row.carried[PARAM])
    if not known:
        # The code of OpenAI's API for a request that is refused.
        failed.status, body.error.type = _BAD_REQUEST, "invalid_request_error"
    return {"status_code": failed.status, "body": body}


def _response(endpoint: str, job_id: str, row: Row) -> tuple[int, Any]:
    if endpoint not in OPENAI_ENDPOINTS:
        end = {"result": row.result} if row.succeeded else {"error": row.error}
        body = {
            "id": job_id, "model": row.carried.get("model"), "status": row.status,
            "attempts": row.attempts, "timings": row.timings, **end,
        }  # fmt: skip
        code = row.error.type if row.error else ""
        return _OK if row.succeeded else BY_CODE.get(code, HeadraceError).status, body
    if row.error is None:
        return _OK, row.result
    failed = _failure_of(endpoint, row.error)
    return failed.status, openai_error(failed)


def openai_row(endpoint: str, job_id: str, row: Row) -> Row:
    """Return the row with the answer of OpenAI's endpoint as its result.

    A result that does not fit the endpoint becomes an error.
    """
    shown = {name: msgspec.json.decode(text) for name, text in row.carried.items()}
    try:
        found = line_answer(endpoint, shown, job_id, int(time.time()), bytes(row.result or b"null"))
    except InvalidParameter as error:
        failure = JobFailure(type=error.code, message=error.message, retryable=False)
        return msgspec.structs.replace(row, status="failed", result=None, error=failure)
    return msgspec.structs.replace(row, result=msgspec.Raw(_ENCODER.encode(found)))


class OutputFile:
    """A file to which rows are appended.

    A part is written as soon as it is full, and belongs to the file once its `SavedProgress` is
    saved. So a runner that has lost its batch leaves nothing in the file. A write raises a
    StoreError or a BrokerError.

    Args:
        keep_s: how long it is kept once its batch has ended.
        mark: a `mark` of the file from which to continue; None for a new file.
    """

    def __init__(
        self,
        files: FileStore,
        name: str,
        owner: str,
        keep_s: int,
        mark: Sequence[str | int] | None = None,
    ) -> None:
        start = mark or (files.new_id(), 0, "")
        self.id, self._offset, self._tail = str(start[0]), int(start[1]), str(start[2])
        self._files = files
        self._name = name
        self._owner = owner
        self._keep_s = keep_s
        # The bytes from `_offset` on, and how many of them the part `_tail` has.
        tail = files.stores.of(self._tail).get(self._tail) if self._tail else b""
        self._pending = bytearray(tail)
        self._written_bytes = len(self._pending)
        # The last part in the file's record, and where it begins.
        self._recorded = (self._tail, self._offset)
        self._new: list[tuple[str, int]] = []
        self._superseded: list[str] = []

    @property
    def size(self) -> int:
        """The size, with the part that is not saved yet."""
        return self._offset + len(self._pending)

    @property
    def mark(self) -> list[str | int]:
        """Where a runner continues, once what `flush` wrote is saved."""
        return [self.id, self._offset, self._tail]

    def append(self, text: bytes) -> None:
        """Append lines, and write the parts that they fill."""
        self._pending += text
        while len(self._pending) >= FULL_BYTES:
            self._write_part(FULL_BYTES)
            del self._pending[:FULL_BYTES]
            self._offset += FULL_BYTES
            self._written_bytes, self._tail = 0, ""

    def flush(self) -> None:
        """Write the last part."""
        if len(self._pending) > self._written_bytes:
            self._write_part(len(self._pending))

    def written(self) -> SavedProgress | None:
        """Return what has to be saved; None if the file is empty."""
        if not self.size:
            return None
        ref, offset = self._recorded
        replaced = ref if any(at == offset for _, at in self._new) else ""
        return SavedProgress(
            self.id, self._name, self._owner, self.size, self._keep_s, replaced, [*self._new]
        )

    def saved(self) -> None:
        """Note that what `written` returned is saved; delete the parts that were replaced."""
        ref, offset = self._recorded
        if ref and any(at == offset for _, at in self._new):
            self._superseded.append(ref)
        if self._new:
            self._recorded = self._new[-1]
        self._new.clear()
        if self._superseded:
            self._files.drop(self.id, self._superseded)
            self._superseded.clear()

    def _write_part(self, count: int) -> None:
        if self._new and self._new[-1][1] == self._offset:
            self._superseded.append(self._new.pop()[0])
        # Like a result, it must not fail because of the limit of payload memory.
        part = bytes(self._pending[:count])
        self._tail = self._files.put(self.id, part, self._owner, bounded=False)
        self._written_bytes = count
        self._new.append((self._tail, self._offset))


class BatchLeaseLost(Exception):
    """Another runner has the batch, or it is gone: this runner must not write any more."""


class BatchSink(Sink, CheckpointStore):
    """Writes rows to the output and the error file; it is also the store of the checkpoint.

    The checkpoint is in the batch's record. One script saves rows, counts and checkpoint, and
    checks that this runner still has the batch. So the files contain exactly the rows that the
    checkpoint covers, and a runner that has lost its batch writes nothing.
    """

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        lease: Lease,
        keep_s: int,
        job_id: Callable[[int], str],
    ) -> None:
        self.checkpoints = self
        self._files = files
        self._batches = batches
        self._lease = lease
        self._keep_s = keep_s
        self._job_id = job_id
        self.completed = lease.batch.completed
        self.failed = lease.batch.failed
        self._output = self._file("output", None)
        self._errors = self._file("errors", None)

    @override
    def describe(self) -> str:
        return self._lease.batch.id

    @override
    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        if mark is not None:
            self._output = self._file("output", mark[0])
            self._errors = self._file("errors", mark[1])
        return ()  # there are no rows behind a mark

    @override
    def append(self, rows: Sequence[Row]) -> None:
        batch_id, endpoint = self._lease.batch.id, self._lease.batch.spec.endpoint
        for row in rows:
            job_id = self._job_id(row.n)
            if row.succeeded and endpoint in OPENAI_ENDPOINTS:
                row = openai_row(endpoint, job_id, row)
            line = answer_line(batch_id, job_id, row, endpoint)
            (self._output if row.succeeded else self._errors).append(line)
            self.completed += row.succeeded
            self.failed += not row.succeeded

    @override
    def sync(self) -> Mark:
        """Write the rows; `save` adds them to the files."""
        self._output.flush()
        self._errors.flush()
        return [self._output.mark, self._errors.mark]

    @override
    def finish(self) -> Mark:
        return self.sync()

    @override
    def retract(self) -> RangeSet:
        raise ConfigError("the failed lines of a batch run again in a new batch: set rerun_of")

    @override
    def close(self) -> None:
        """Do nothing: no file is open."""

    @override
    def acquire(self) -> None:
        """Do nothing: the lease is the lock."""

    @override
    def release(self) -> None:
        """Do nothing: the runner releases the lease."""

    @override
    def load(self) -> bytes | None:
        return self._lease.batch.checkpoint or None

    @override
    def save(self, data: bytes) -> None:
        """Save a checkpoint with the rows that it covers.

        Raises:
            BatchLeaseLost: another runner has the batch; nothing was saved.
            BrokerError: Redis is unavailable.
        """
        self._save("", {BatchField.CHECKPOINT: data})

    def end(self, status: str, more: dict[str, Any]) -> None:
        """End the batch and publish its files.

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
