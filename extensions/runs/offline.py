"""`Client.offline`: runs any source through a model, into a file, a DataFrame or an iterator."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec
from typing_extensions import override

from extensions.runs.registry import need_pyarrow, sink_for, source_for
from extensions.runs.rows import python_rows, table_with
from extensions.runs.sources.options import LimitedSource, SourceOptions
from extensions.runs.sources.values import FrameSource, ValuesSource
from headrace.client.inputs import Options, checked_options, plain_parameters
from headrace.client.offline import OfflineOptions, OfflineRow, OfflineRun, Progress, RunProgress
from headrace.client.sync_client import Client
from headrace.config.inputs.parameters import Parameter, check_parameters
from headrace.config.suggestions import unknown_version
from headrace.errors import ConfigError
from headrace.runs.engine import Engine
from headrace.runs.interfaces import (
    BATCH_PRIORITY,
    IN_FLIGHT,
    MemorySink,
    Row,
    RunSpec,
    Sink,
    Source,
)

Watch: TypeAlias = Callable[[RunProgress], object]

#: How many pages of rows wait for who iterates; then the run waits.
PAGES: Final = 8
#: The longest wait for room for a page before it is looked whether the iteration has ended.
LOOK_S: Final = 0.25


def offline(
    client: Client,
    model: str,
    source: Any,
    sink: str | PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Do what `Client.offline` describes."""
    work = work_of(client, model, source, sink, **options)
    return _iterate(work) if isinstance(work, Rows) else work.run()


def _iterate(rows: Rows) -> Iterator[OfflineRow]:
    try:
        while page := rows.next_page():
            yield from page
    finally:
        rows.close()


def work_of(
    client: Client,
    model: str,
    source: Any,
    sink: str | PathLike[str] | None,
    *,
    progress: Progress = False,
    input: str | None = None,
    key: str | None = None,
    glob: Sequence[str] = (),
    content_type: str | None = None,
    delimiter: str | None = None,
    limit: int | None = None,
    by_ref: bool = False,
    only_failed: bool = False,
    run_id: str | None = None,
    in_flight: int = IN_FLIGHT,
    version: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> Work | Rows:
    """Return what there is to do; nothing has been written or sent yet.

    Raises:
        ConfigError: source or sink cannot be used, or tqdm is missing.
        HeadraceError: the model or an option does not exist.
    """
    if only_failed and sink is None:
        raise ConfigError(
            "only_failed continues a run, and without a sink no run is kept",
            hint="Give the sink of the run whose failed inputs should run again.",
        )
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} runs no input", hint="Give 1 or more, or leave it out.")
    if in_flight < 1:
        raise ConfigError(f"in_flight={in_flight} sends no input", hint="Give 1 or more.")
    _check_types(input, key, sink)
    job_options: dict[str, Any] = {"priority": BATCH_PRIORITY, **options}
    job_options.update(checked_options(options, OfflineOptions.__annotations__))
    output = "" if sink is None else fspath(sink)
    patterns = (glob,) if isinstance(glob, str) else tuple(glob)
    read = SourceOptions(
        input=input, key=key, glob=patterns, content_type=content_type, delimiter=delimiter,
        output=output, by_ref=by_ref,
    )  # fmt: skip
    spec = RunSpec(
        model=model, version=version, options=cast("Options", job_options),
        content_type=content_type, run_id=run_id, in_flight=in_flight, only_failed=only_failed,
        by_ref=by_ref, parameters=plain_parameters(parameters),
    )  # fmt: skip
    _check_progress(progress)
    table = _table(source)
    inputs: Source
    if table is not None:
        inputs = FrameSource(table, read, resumes=sink is not None)
    elif isinstance(source, (str, PathLike)):
        inputs = source_for(fspath(source), read)
    else:
        inputs = ValuesSource(_checked(source), read)

    def engine(to: Sink) -> Engine:
        return engine_of(client, spec, inputs, limit, to)

    if sink is not None:
        return IntoFile(engine(sink_for(output, inputs)), progress)
    if table is not None:
        return IntoTable(engine, progress, source, table)
    return Rows(engine, progress)


def _check_types(input: object, key: object, sink: object) -> None:
    for name, given in {"input": input, "key": key}.items():
        if given is not None and not isinstance(given, str):
            raise ConfigError(
                f"{name}: expected text, got {type(given).__name__}",
                hint="Name a column, or for input several with commas: input='a,b'.",
            )
    if sink is not None and not isinstance(sink, (str, PathLike)):
        raise ConfigError(
            f"a value of type {type(sink).__name__} is no sink", hint="Give a path or a URL."
        )


def engine_for(
    client: Client, spec: RunSpec, source: str, limit: int | None, options: SourceOptions
) -> Engine:
    """Return the engine of a run from a source into the output of the options; it is not open yet.

    Raises:
        HeadraceError: the model or the version does not exist, or source or output cannot be used.
    """
    inputs = source_for(source, options)
    return engine_of(client, spec, inputs, limit, sink_for(options.output, inputs))


def engine_of(
    client: Client, spec: RunSpec, inputs: Source, limit: int | None, sink: Sink
) -> Engine:
    """Return the engine of a run; it is not open yet.

    Raises:
        HeadraceError: the model or the version does not exist, or it refuses the parameters.
    """
    # A misspelt name must not leave an output file behind.
    model = client.model(spec.model)
    if spec.version is not None and model.versions and spec.version not in model.versions:
        raise unknown_version(spec.model, str(spec.version), model.versions)
    # Other versions may declare others; the server checks those.
    if spec.version in (None, model.version) and model.traffic is None:
        declared = msgspec.convert(model.parameters or {}, dict[str, Parameter])
        check_parameters(declared, spec.parameters, spec.model)
    return Engine(client, spec, inputs if limit is None else LimitedSource(inputs, limit), sink)


def _table(source: Any) -> Any:
    """Return a DataFrame as a table of pyarrow; None for any other source."""
    if not hasattr(source, "__arrow_c_stream__"):
        return None
    need_pyarrow("a DataFrame")
    import pyarrow as pa

    kind = type(source).__name__
    try:
        return pa.table(source)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if not hasattr(source, "columns"):
            raise ConfigError(
                f"a source of type {kind} is no table",
                hint="Give a DataFrame, or a list of its values.",
            ) from None
        raise ConfigError(
            f"Arrow cannot read this {kind}: {error}",
            hint="Give each column a name of its own and values of one type, or give a list of"
            " dicts.",
        ) from None


def _checked(source: Any) -> Any:
    if isinstance(source, (bytes, bytearray, Mapping)) or not hasattr(source, "__iter__"):
        raise ConfigError(
            f"a value of type {type(source).__name__} is no source of inputs",
            hint="Give a path, a DataFrame, or a list with the input in it.",
        )
    return source


@contextmanager
def watching(progress: Progress, model: str) -> Iterator[Watch]:
    """Return what takes the progress of a run: a function, or a bar until the end of the block."""
    if progress is True:
        with _bar(model) as watch:
            yield watch
    elif progress is False:
        yield lambda _: None
    else:
        yield progress


@contextmanager
def _bar(model: str) -> Iterator[Watch]:
    """Show a bar of tqdm: of widgets in a notebook that has ipywidgets, else of text."""
    from tqdm.auto import tqdm

    bar: Any = tqdm(desc=model, unit=" inputs")

    def show(progress: RunProgress) -> None:
        if bar.total != progress.total:
            bar.reset(progress.total)
            bar.initial = progress.before  # rows of an earlier call are no part of the rate
        if progress.failed:
            bar.set_postfix(failed=progress.failed, refresh=False)
        bar.n = progress.ended
        bar.refresh()

    with bar:
        yield show


def _check_progress(progress: Progress) -> None:
    if not isinstance(progress, bool) and not callable(progress):
        raise ConfigError(
            f"progress={progress!r} shows nothing", hint="Give True, False or a function."
        )
    if progress is True and find_spec("tqdm") is None:
        raise ConfigError(
            "progress=True shows a bar of tqdm, which is not installed",
            hint="pip install 'headrace[notebook]', or give a function.",
        )


def _run(engine: Engine, progress: Progress) -> None:
    try:
        engine.open()
        with watching(progress, engine.checkpoint.model) as watch:
            engine.run(watch)
            watch(engine.progress)
    finally:
        engine.close()


class Work:
    """A run that ends before its caller goes on."""

    def __init__(self, engine: Engine, progress: Progress) -> None:
        self._engine = engine
        self._progress = progress

    def run(self) -> Any:
        """Run to the end, and return the result."""
        _run(self._engine, self._progress)

    def stop(self) -> None:
        """Stop; what is in flight goes on, and the same call reads it."""
        self._engine.stop()


class IntoFile(Work):
    """A run into a file."""

    @override
    def run(self) -> OfflineRun:
        """Run to the end."""
        super().run()
        engine = self._engine
        progress = engine.progress
        return OfflineRun(
            id=engine.checkpoint.run,
            output=engine.checkpoint.output,
            before=progress.before,
            succeeded=progress.succeeded,
            failed=progress.failed,
        )


class IntoTable(Work):
    """A run from a DataFrame into one of the same kind."""

    def __init__(self, engine: Any, progress: Progress, source: object, table: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-")
        self._output = Path(self._folder.name) / "rows.parquet"
        self._source, self._table = source, table
        super().__init__(engine(sink_for(str(self._output))), progress)

    @override
    def run(self) -> Any:
        """Run to the end."""
        with self._folder:
            super().run()
            return table_with(self._source, self._table, self._output)


class Rows:
    """A run whose rows are taken page by page. It begins with the first page."""

    def __init__(self, engine: Any, progress: Progress) -> None:
        self._pages: queue.Queue[Sequence[Row]] = queue.Queue(PAGES)
        self._closed = threading.Event()
        self._progress = progress
        self._engine: Engine = engine(MemorySink(self._put))
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-offline", daemon=True)

    def next_page(self) -> list[OfflineRow]:
        """Return the next rows; none at the end.

        Raises:
            HeadraceError: as for `Engine.run`.
        """
        if self._thread.ident is None:
            self._thread.start()
        page = python_rows(self._pages.get())
        if not page and self._error is not None:
            raise self._error
        return page

    def stop(self) -> None:
        """Stop, and cancel what is in flight, which has no reader any more."""
        self._closed.set()
        self._engine.stop(cancel=True)

    def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            _run(self._engine, self._progress)
        except BaseException as error:  # noqa: BLE001 - raised again by `next_page`
            self._error = error
        finally:
            self._put(())

    def _put(self, rows: Sequence[Row]) -> None:
        while not self._closed.is_set():
            try:
                self._pages.put(rows, timeout=LOOK_S)
            except queue.Full:
                continue
            return
