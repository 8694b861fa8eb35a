"""The rows of a run as Python has them: read from an output, or added to a table.

The types are in headrace/client/offline.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from extensions.runs.registry import need_pyarrow, source_for
from extensions.runs.sources.options import SourceOptions
from headrace.client.offline import OfflineRow, RowError
from headrace.errors import ConfigError
from headrace.runs.columns import OWN_COLUMNS, carried_as
from headrace.runs.interfaces import Row

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns that are added to a table.
ADDED: Final = tuple(name for name in OWN_COLUMNS if name not in ("n", "key"))
_OWN: Final = frozenset(OWN_COLUMNS)


def read_rows(output: str) -> Iterator[OfflineRow]:
    """Yield the rows of an output.

    Raises:
        ConfigError: it cannot be read.
    """
    if output.lower().endswith(".parquet"):
        yield from _read_parquet(output)
        return
    for entry in source_for(output, SourceOptions()).entries(None, 0):
        if isinstance(entry.input, Exception):
            raise ConfigError(f"{output}: line {entry.key} is no row: {entry.input}")
        yield _of_line(entry.input)


def _read_parquet(output: str) -> Iterator[OfflineRow]:
    if "://" in output:
        raise ConfigError(
            f"{output}: rows are not read from Parquet on S3",
            hint="Download it, or read it by pyarrow.parquet.",
        )
    need_pyarrow(output)
    from extensions.runs.arrow import read_parquet

    with tempfile.TemporaryFile() as lines:
        try:
            read_parquet(Path(output), lines)
        except OSError as error:
            raise ConfigError(f"{output}: cannot be read: {error}") from None
        lines.seek(0)
        yield from map(_of_line, lines)


def _of_line(line: bytes | msgspec.Raw) -> OfflineRow:
    fields: dict[str, Any] = _decoded(line)
    own = {name: value for name, value in fields.items() if name in _OWN}
    if own.get("error") is not None:  # in Parquet, what an error lacks is null
        own["error"] = {name: value for name, value in own["error"].items() if value is not None}
    carried = {name: value for name, value in fields.items() if name not in _OWN}
    row: OfflineRow = msgspec.convert({**own, "carried": carried}, OfflineRow)
    return row


def python_rows(rows: Sequence[Row]) -> list[OfflineRow]:
    """Return the rows of the engine with decoded values."""
    return [_python_row(row) for row in rows]


def _python_row(row: Row) -> OfflineRow:
    error = row.error
    if error is not None and not isinstance(error, RowError):
        error = RowError(type=error.type, message=error.message, retryable=error.retryable)
    return OfflineRow(
        n=row.n,
        key=row.key,
        status=row.status,
        result=None if row.result is None else _decoded(row.result),
        error=error,
        attempts=row.attempts,
        timings=None if row.timings is None else _decoded(row.timings),
        carried={name: _decoded(value) for name, value in row.carried.items()},
    )


def _decoded(text: bytes | msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(bytes(text))  # a number that msgspec does not read, such as 1e999


def table_with(source: object, table: pa.Table, output: Path) -> Any:
    """Return a table with the columns of its rows, as the kind of DataFrame that it came from.

    Args:
        source: the DataFrame.
        table: the same as a table of pyarrow.
        output: the Parquet file of the run.
    """
    import pyarrow.parquet as pq

    rows = pq.read_table(output, columns=["n", *ADDED]).sort_by("n")
    library = type(source).__module__.partition(".")[0]
    if library == "pandas":
        return _frame_with(source, rows.select(ADDED).to_pandas())
    whole = table.slice(0, rows.num_rows)
    whole = whole.rename_columns([carried_as(name) for name in whole.column_names])
    for name in ADDED:
        whole = whole.append_column(rows.schema.field(name), rows.column(name))
    if library == "polars":
        return cast("Any", sys.modules["polars"]).from_arrow(whole)
    return whole


def _frame_with(frame: Any, added: Any) -> Any:
    """Return a DataFrame of pandas with more columns; its own keep their types and names."""
    pandas = cast("Any", sys.modules["pandas"])
    given = frame.iloc[: len(added)]
    if given.columns.nlevels == 1:
        given = given.rename(columns={name: carried_as(name) for name in ADDED})
    return pandas.concat([given, added.set_index(given.index)], axis=1)
