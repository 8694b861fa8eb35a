"""The sources and sinks that need no more than this package: see registry.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.runs.interfaces import Sink, Source
from headrace.runs.sinks.jsonl import JsonlSink
from headrace.runs.sinks.spooled import SpooledSink
from headrace.runs.sources.csv import CsvReader
from headrace.runs.sources.files import SourceFile, local_blobs
from headrace.runs.sources.folder import FolderSource
from headrace.runs.sources.jsonl import JsonlSource
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.path_list import PathsSource
from headrace.runs.sources.table import TableSource
from headrace.runs.sources.webdataset import TarReader


def jsonl_source(named: str, options: SourceOptions) -> Source:
    """Files of JSON lines."""
    options.refuse("glob", "content_type", "by_ref", of=named)
    return jsonl_of(local_blobs(named, options.output), options)


def csv_source(named: str, options: SourceOptions) -> Source:
    """Rows of CSV files."""
    options.refuse("glob", "by_ref", of=named)
    return csv_of(local_blobs(named, options.output), options)


def parquet_source(named: str, options: SourceOptions) -> Source:
    """Rows of Parquet files."""
    options.refuse("glob", "by_ref", of=named)
    return parquet_of(local_blobs(named, options.output), options)


def tar_source(named: str, options: SourceOptions) -> Source:
    """Samples of tar shards."""
    options.refuse("glob", "key", "by_ref", of=named)
    return tar_of(local_blobs(named, options.output), options)


def jsonl_of(blobs: Sequence[SourceFile], options: SourceOptions) -> TableSource:
    """Files of JSON lines, wherever they lie."""
    return JsonlSource(blobs, options)


def csv_of(blobs: Sequence[SourceFile], options: SourceOptions) -> TableSource:
    """Rows of CSV files, wherever they lie; `.tsv` says that tabs tell the columns apart."""
    tabs = blobs[0].name.lower().removesuffix(".gz").endswith(".tsv")
    return TableSource(blobs, CsvReader(options, "\t" if tabs else None), options)


def parquet_of(blobs: Sequence[SourceFile], options: SourceOptions) -> TableSource:
    """Rows of Parquet files, wherever they lie.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    need_pyarrow(blobs[0].name)
    from headrace.runs.sources.parquet import ParquetSource

    return ParquetSource(blobs, options)


def tar_of(blobs: Sequence[SourceFile], options: SourceOptions) -> TableSource:
    """Samples of tar shards, wherever they lie."""
    return TableSource(blobs, TarReader(options), options)


def need_pyarrow(named: str) -> None:
    """Say what to install, where it is not.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError(
            f"{named}: Parquet needs pyarrow, which is not installed",
            hint="pip install 'headrace[tables]'",
        )


def folder_source(named: str, options: SourceOptions) -> Source:
    """The files below a folder, or that match a pattern."""
    options.refuse("input", "key", of=named)
    return FolderSource(named, options)


def paths_source(named: str, options: SourceOptions) -> Source:
    """The files whose paths come on standard input."""
    options.refuse("input", "key", "glob", of="a list of paths")
    return PathsSource(sys.stdin.buffer)


def jsonl_sink(named: str, source: Source | None) -> Sink:
    """A local file of JSON lines."""
    return JsonlSink(Path(named))


def parquet_sink(named: str, source: Source | None) -> Sink:
    """A local Parquet file; what comes from Parquet keeps its type.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    need_pyarrow(named)
    from headrace.runs.sinks.parquet import LocalParquet

    return SpooledSink(LocalParquet(Path(named), carried_types(source)), Path(named))


def carried_types(source: Source | None) -> Any:
    """The schema of what rows carry, where the source has one; pyarrow must be there."""
    from headrace.runs.sources.parquet import ParquetSource

    return source.carried_schema() if isinstance(source, ParquetSource) else None
