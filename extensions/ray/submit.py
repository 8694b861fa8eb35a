"""`headrace.ray.submit`: a dataset through the queue, where online work shares the GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
import pyarrow as pa
from typing_extensions import override

from extensions.ray.predict import in_actors, in_words
from extensions.ray.tables import Columns, Ended, Given, inputs, with_ends
from headrace.client import Client
from headrace.client.inputs import Options, checked_options, plain_parameters
from headrace.errors import HeadraceError
from headrace.jobs.ids import check_id, new_id
from headrace.runs.engine import Engine
from headrace.runs.interfaces import (
    BATCH_PRIORITY,
    NOTHING_CARRIED,
    Cursor,
    Entry,
    MemorySink,
    Row,
    RunSpec,
    Source,
)

#: The rows of one actor that are in flight.
ROWS: Final = 1000
#: How long a result waits for a task that Ray repeats.
RESULT_TTL_S: Final = 600
#: How long an actor waits for a server that is away.
RETRY_S: Final = 3600.0
#: An actor only waits.
CPUS: Final = 0.1
_DIGEST_BYTES: Final = 15


def submit(
    ds: Any,
    model: str,
    *,
    url: str | None = None,
    api_key: str | None = None,
    input: str | None = None,
    key: str | None = None,
    content_type: str | None = None,
    version: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    concurrency: int | tuple[int, int] = 2,
    batch_size: int = ROWS,
    retry_s: float = RETRY_S,
    num_cpus: float = CPUS,
    **options: Any,
) -> Any:
    """Return a dataset with the results of jobs added to its rows; columns are as for `predict`.

    The id of a job follows from the run, the row's key and its input. So a task that Ray repeats
    finds its jobs again, as long as the server keeps them (`result_ttl`, 600 s by default). Equal
    rows of different blocks share a job; a `key` that differs keeps them apart.

    Args:
        ds: a `ray.data.Dataset`.
        url: the API's address, as the nodes reach it; default HEADRACE_URL there.
        api_key: default HEADRACE_API_KEY there.
        input: the column that is the input, or several with commas; default all columns.
        key: the column that names a row.
        content_type: the media type of the inputs.
        version: the version of the model that must run the jobs.
        parameters: values for the parameters that the model declares.
        run_id: the first part of the ids; default a new one for each call.
        concurrency: how many actors, or the fewest and the most.
        batch_size: how many rows each of them has in flight.
        retry_s: how long an actor waits for a server that is away.
        num_cpus: of each actor.
        options: of each job, as for `Client.submit`; the priority is 9 by default.

    Raises:
        ConfigError: Ray is not installed.
        InvalidRequest: the run id or an option is not valid.
    """
    job_options: dict[str, Any] = {
        "priority": BATCH_PRIORITY, "result_ttl": RESULT_TTL_S, **options
    }  # fmt: skip
    job_options.update(checked_options(options))
    run = check_id(run_id) if run_id is not None else f"ray-{new_id()}"
    arguments = {
        "run": run, "columns": Columns(input, key, content_type),
        "client": {"url": url, "api_key": api_key, "retry_s": retry_s},
        "spec": {
            "model": model, "version": version,
            "parameters": plain_parameters(parameters),
            "options": job_options,
        },
    }  # fmt: skip
    return in_actors(ds, "QueueSender", arguments, batch_size, concurrency, {"num_cpus": num_cpus})


class QueueSender:
    """What an actor runs: a run of each table, whose jobs stay on the server for repeated tasks."""

    def __init__(
        self, run: str, columns: Columns, client: Mapping[str, Any], spec: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._columns = columns
        self._client = Client(**client)
        options: Options = spec["options"]
        self._spec = RunSpec(
            model=spec["model"], version=spec["version"], parameters=spec["parameters"],
            options=options, forget=False,
        )  # fmt: skip

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run the rows of a table, and wait for all of them."""
        with in_words():
            given = list(inputs(table, self._columns))
            rows = self._rows(given)
        rows.sort(key=lambda row: row.n)
        return with_ends(table, [_ended(row) for row in rows])

    def _rows(self, given: Sequence[Given]) -> list[Row]:
        ids = job_ids(self._run, self._spec.model, given)
        rows: list[Row] = []
        engine = Engine(
            self._client, msgspec.structs.replace(self._spec, in_flight=max(1, len(given))),
            _Given(given), MemorySink(rows.extend), job_id=ids.__getitem__,
        )  # fmt: skip
        try:
            engine.open()
            engine.run()
        finally:
            engine.close()
        return rows


def _ended(row: Row) -> Ended:
    error = None if row.error is None else msgspec.to_builtins(row.error)
    result = None if row.result is None else bytes(row.result)
    return Ended(row.status, row.attempts, result, error)


def job_ids(run: str, model: str, given: Sequence[Given]) -> list[str]:
    """Return the ids of rows; of equal rows in one table each has its own."""
    copies: Counter[bytes] = Counter()
    ids = []
    for row in given:
        text = row.input.message.encode() if isinstance(row.input, HeadraceError) else row.input
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for part in (model.encode(), row.key.encode(), bytes(text)):
            digest.update(b"%d:%b" % (len(part), part))
        content = digest.digest()
        copies[content] += 1
        copy = f".{copies[content]}" if copies[content] > 1 else ""
        ids.append(f"{run}.{content.hex()}{copy}")
    return ids


class _Given(Source):
    """The rows of one table."""

    def __init__(self, given: Sequence[Given]) -> None:
        self._given = given

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "ray"}

    @override
    def count(self) -> int | None:
        return len(self._given)

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        for place, row in enumerate(self._given):
            yield Entry(place, row.key, row.input, NOTHING_CARRIED, place)
