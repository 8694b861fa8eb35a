"""Rows: what became of each request. They can be written as JSON lines or as Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from extensions.tuning.bench.load.targets import STAGES
from headrace.errors import ConfigError, InvalidRequest

#: The time of a row without an answer.
NEVER = -1.0
#: The error of a request that has waited for a free connection until its timeout.
NOT_SENT = "not sent"


class Row(msgspec.Struct, array_like=True):
    """One request.

    Attributes:
        due_s: when it was due, from the start of the load.
        answered_s: when its answer was complete; NEVER without one.
        error: "" if it has a result, else the status or the kind of error.
        stages: see `targets.Answer`.
        batch_size: how many requests ran with it; 0 if unknown.
    """

    input: int
    due_s: float
    sent_s: float
    answered_s: float = NEVER
    error: str = ""
    stages: tuple[float, ...] = ()
    batch_size: int = 0

    @property
    def latency_ms(self) -> float:
        """Return the time from when it was due to its answer."""
        return (self.answered_s - self.due_s) * 1000

    def stage_times(self) -> dict[str, float]:
        """Return milliseconds by stage; `other` is what the server's total does not explain."""
        if not self.stages:
            return {}
        *known, total = self.stages
        # A server's clock may show more than the client saw, by its rounding.
        other = max(0.0, self.latency_ms - total) + max(0.0, total - sum(known))
        return dict(zip(STAGES, (*known, other), strict=True))


def as_record(load: int, row: Row) -> dict[str, Any]:
    """Return a row as it is written; `load` is the index of its load."""
    answered = row.answered_s != NEVER
    return {
        "load": load,
        "input": row.input,
        "due_s": row.due_s,
        "sent_s": row.sent_s,
        "answered_s": row.answered_s if answered else None,
        "latency_ms": row.latency_ms if answered else None,
        "error": row.error or None,
        "batch_size": row.batch_size or None,
        **dict.fromkeys(STAGES),
        **row.stage_times(),
    }


class RowWriter:
    """Writes the rows of each load to a file: `.parquet` or `.jsonl`.

    Args:
        file: the file; an existing one is replaced.

    Raises:
        InvalidRequest: the name has another ending, or the file cannot be written.
        ConfigError: Parquet needs a package that is not installed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._parquet: Any = None
        if file.suffix not in (".parquet", ".jsonl"):
            raise InvalidRequest(f"{file}: rows are written as .parquet or .jsonl", hint="rename")
        try:
            file.write_bytes(b"")
        except OSError as error:
            raise InvalidRequest(f"{file}: cannot be written: {error.strerror}") from error
        if file.suffix == ".parquet":
            self._pyarrow()

    def write(self, load: int, rows: Iterable[Row]) -> None:
        """Add the rows of a load."""
        records = [as_record(load, row) for row in rows]
        if self._file.suffix == ".jsonl":
            with self._file.open("ab") as out:
                out.writelines(msgspec.json.encode(record) + b"\n" for record in records)
            return
        arrow, parquet = self._pyarrow()
        whole, text = arrow.int64(), arrow.string()
        kinds = {"load": whole, "input": whole, "error": text, "batch_size": whole}
        names = as_record(0, Row(0, 0.0, 0.0))
        schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in names])
        table = arrow.Table.from_pylist(records, schema)
        if self._parquet is None:
            self._parquet = parquet.ParquetWriter(self._file, schema, compression="zstd")
        self._parquet.write_table(table)

    def close(self) -> None:
        """Complete the file."""
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None

    @staticmethod
    def _pyarrow() -> tuple[Any, Any]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError(
                "Parquet needs the package pyarrow", hint="pip install 'headrace[tables]'"
            ) from error
        return pyarrow, parquet
