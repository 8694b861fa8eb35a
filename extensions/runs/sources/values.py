"""Inputs that a program has: the values of an iterable, and the rows of a table in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from typing_extensions import override

from extensions.runs.sources.options import SourceOptions, check_no_more
from headrace.client.inputs import InputRef, encode_input
from headrace.errors import ConfigError, Conflict, HeadraceError, InvalidRequest
from headrace.runs.columns import carry, check_column, is_list, key_text, picked
from headrace.runs.interfaces import NOTHING_CARRIED, Carried, Cursor, Entry, Source

if TYPE_CHECKING:
    import pyarrow as pa

#: How many rows of a table are converted together.
BATCH_ROWS: Final = 1024
#: The columns in which pyarrow keeps an index of pandas; they are no inputs.
_INDEX: Final = "__index_level_"
_SAME_INPUTS: Final = "Give the same inputs in the same order, or use another sink."


class ValuesSource(Source):
    """The values of an iterable; with `input` or `key` these are mappings, the rows of a table.

    It is read once: to resume a run, the user gives the same values again. A digest of the values
    before the cursor shows that they are the same.
    """

    def __init__(self, values: Iterable[Any], options: SourceOptions) -> None:
        options.refuse("glob", "delimiter", of="an iterable")
        self._values = values
        self._options = options

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "values", **self._options.described()}

    @override
    def count(self) -> int | None:
        return len(self._values) if isinstance(self._values, Sized) else None

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the number of values so far, and their digest.
        skip, expected = (0, "") if after is None else (int(after[0]), str(after[1]))
        number, digest = 0, b""
        for number, given in enumerate(self._values, 1):
            key, value, carried = self._entry(given, number - 1)
            digest = blake2b(_identity(value), digest_size=8, key=digest).digest()
            if number < skip:
                continue
            if number == skip:
                if digest.hex() != expected:
                    break
                continue
            yield Entry(n, key, value, carried, [number, digest.hex()], self._options.content_type)
            n += 1
        if number <= skip and digest.hex() != expected:
            raise Conflict(
                f"the first {skip} inputs are not those that this run began with",
                hint=_SAME_INPUTS,
            )

    @override
    def check_ended(self, end: Cursor | None, *, whole: bool = True) -> None:
        check_no_more(
            self, end, whole=whole,
            problem="there are more inputs than this run began with", hint=_SAME_INPUTS,
        )  # fmt: skip

    def _entry(self, given: Any, place: int) -> tuple[str, Any, Carried]:
        key = str(given) if isinstance(given, Path) else str(place)
        try:
            if self._options.input is not None or self._options.key is not None:
                return self._row(given, place)
            if isinstance(given, (Path, InputRef)):
                return key, given, NOTHING_CARRIED
            return key, _json(given, self._options.content_type), NOTHING_CARRIED
        except HeadraceError as error:
            return key, error.kept(), NOTHING_CARRIED

    def _row(self, given: Any, place: int) -> tuple[str, Any, Carried]:
        wanted, key = self._options.input, self._options.key
        if not isinstance(given, Mapping):
            raise InvalidRequest(
                f"input {place} is no mapping, so it has no columns",
                hint="Leave out `input` and `key`, or give a dict per input.",
            )
        row = dict(given)
        names = list(row) if wanted is None else picked(wanted, row)
        of = f"input {place}"
        for name in [*names, *([] if key is None else [key])]:
            try:
                check_column(row, name, of)
            except ConfigError as error:
                if place == 0:
                    raise  # most likely the name is wrong, for all inputs
                raise InvalidRequest(error.message, hint=error.hint) from None
        if wanted is not None and not is_list(wanted, row):
            value = row[wanted]
            if not isinstance(value, (Path, InputRef)):
                value = _json(value, self._options.content_type)
        else:
            value = _json({name: row[name] for name in names}, None)
        others = {str(name): _json(one, None) for name, one in row.items() if name not in names}
        return "" if key is None else key_text(row[key]), value, carry(others)


def _json(value: Any, content_type: str | None) -> msgspec.Raw:
    return msgspec.Raw(encode_input(value, content_type))


def _identity(value: Any) -> bytes:
    if isinstance(value, InputRef):
        return value.ref.encode()
    return bytes(value) if isinstance(value, msgspec.Raw) else str(value).encode("utf-8", "replace")


class FrameSource(Source):
    """The rows of a table of pyarrow.

    Args:
        resumes: the run may resume, so that the table is known by a digest of its values, and
            rows carry the columns that are no input.
    """

    def __init__(self, table: pa.Table, options: SourceOptions, *, resumes: bool) -> None:
        from headrace.runs.arrow import columns_of

        options.refuse("glob", "delimiter", "by_ref", of="a table in memory")
        index = [name for name in table.column_names if name.startswith(_INDEX)]
        self._table = table.drop_columns(index)
        self._options = options
        self._resumes = resumes
        columns = columns_of(
            self._table.schema, options.input, options.key, options.content_type, "the table"
        )
        self._columns = columns if resumes else columns._replace(carried={})

    @override
    def describe(self) -> dict[str, Any]:
        found = {"kind": "table", "rows": self._table.num_rows, **self._options.described()}
        return {**found, "version": _digest(self._table)} if self._resumes else found

    @override
    def count(self) -> int | None:
        return int(self._table.num_rows)

    def carried_schema(self) -> pa.Schema:
        """Return the types of the columns that rows carry."""
        import pyarrow as pa

        from headrace.runs.columns import carried_as

        carried = self._columns.carried.items()
        return pa.schema([pa.field(carried_as(name), kind) for name, kind in carried])

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the number of rows so far.
        from headrace.runs.arrow import inputs_of

        row = 0 if after is None else int(after)
        content_type = self._options.content_type
        for batch in self._table.slice(row).to_batches(BATCH_ROWS):
            for value, key, carried in inputs_of(batch, self._columns, "the table", row):
                yield Entry(n, key or str(row), value, carried, row + 1, content_type)
                n, row = n + 1, row + 1


def _digest(table: pa.Table) -> str:
    """Return a digest of a table's types and values that does not depend on its chunks."""
    import pyarrow as pa

    digest = blake2b(digest_size=16)

    class Digest:
        closed = False

        def write(self, data: bytes) -> int:
            digest.update(data)
            return len(data)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    plain = table.replace_schema_metadata(None).combine_chunks()
    with (
        pa.PythonFile(Digest(), "w") as out,
        pa.ipc.new_stream(out, plain.schema) as writer,
    ):
        writer.write_table(plain, max_chunksize=1 << 16)
    return digest.hexdigest()
