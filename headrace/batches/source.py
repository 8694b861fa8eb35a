"""The input file of a batch as the source of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from headrace.batches.files.store import FileStore
from headrace.batches.input_lines import BadLine, BatchLine, Requests, read_lines
from headrace.batches.record import BatchRecord
from headrace.errors import InvalidRequest
from headrace.runs.interfaces import Cursor, Entry


class BatchSource:
    """The requests of a batch, in the order of their lines.

    Args:
        files: has the input file.
        batch: the batch.
        requests: reads its lines.
        limit_bytes: the most bytes of a line.
        only: the custom_ids of the requests to run; None for all.
    """

    def __init__(
        self,
        files: FileStore,
        batch: BatchRecord,
        requests: Requests,
        limit_bytes: int,
        only: Collection[str] | None,
    ) -> None:
        self._files = files
        self._batch = batch
        self._requests = requests
        self._limit_bytes = limit_bytes
        self._only = only

    def describe(self) -> dict[str, Any]:
        """Return the files, which never change."""
        spec = self._batch.spec
        return {"kind": "batch", "file": spec.input_file_id, "failed_in": spec.failed_file_id}

    def count(self) -> int | None:
        """Return the number of requests that the validation counted."""
        return self._batch.total

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """Yield the requests behind a cursor: the byte where a line ends, and the line's number.

        Raises:
            FileMissing: the file is gone.
            StoreError, BrokerError: the store is unavailable.
        """
        at, number = (0, 0) if after is None else (int(after[0]), int(after[1]))
        reader = self._files.open(self._batch.spec.input_file_id)
        for line in read_lines(reader, self._limit_bytes, at, number):
            entry = self._entry(n, line)
            if self._only is None or entry.key in self._only:
                yield entry
                n += 1

    def _entry(self, n: int, line: BatchLine) -> Entry:
        cursor = [line.end, line.number]
        try:
            request = self._requests.read(line.text or b"")
        except BadLine as error:
            # The line was valid when the batch began, so its model has been removed.
            return Entry(n, _id_of(line), InvalidRequest(error.error.message), {}, cursor)
        model = msgspec.Raw(msgspec.json.encode(request.model))
        return Entry(n, request.custom_id, request.job_line, {"model": model}, cursor)


class _Id(msgspec.Struct):
    custom_id: str


def _id_of(line: BatchLine) -> str:
    return msgspec.json.decode(line.text or b"", type=_Id).custom_id


def failed_ids(files: FileStore, file_id: str, limit_bytes: int) -> set[str]:
    """Return the custom_ids in an error file.

    Raises:
        FileMissing: the file is gone.
        StoreError, BrokerError: the store is unavailable.
    """
    lines = read_lines(files.open(file_id), limit_bytes)
    return {_id_of(line) for line in lines if line.text is not None}
