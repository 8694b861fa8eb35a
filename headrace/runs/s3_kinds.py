"""What lies in S3, as sources and sinks: see registry.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.errors import ConfigError
from headrace.runs import kinds
from headrace.runs.interfaces import Sink, Source
from headrace.runs.sinks.s3 import Lines, OutputFormat, S3Target, spool_of
from headrace.runs.sinks.spooled import SpooledSink
from headrace.runs.sources.files import SourceFile
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.s3 import Bucket, s3_blobs, split
from headrace.runs.sources.s3_objects import S3Objects

_TABLES: Final[dict[str, Callable[[Sequence[SourceFile], SourceOptions], Source]]] = {
    ".jsonl": kinds.jsonl_of,
    ".ndjson": kinds.jsonl_of,
    ".csv": kinds.csv_of,
    ".tsv": kinds.csv_of,
    ".parquet": kinds.parquet_of,
    ".tar": kinds.tar_of,
    ".tgz": kinds.tar_of,
}


def s3_source(named: str, options: SourceOptions) -> Source:
    """A table, several, or tar shards, by the end of the name; else the objects under it."""
    name = named.lower().removesuffix(".gz")
    for suffix, of in _TABLES.items():
        if name.endswith(suffix):
            options.refuse("glob", "by_ref", of=named)
            return of(s3_blobs(named, options.output), options)
    options.refuse("input", "key", "by_ref", of=named)
    bucket, key = split(named)
    return S3Objects(Bucket(bucket), key, options)


def s3_sink(named: str, source: Source | None) -> Sink:
    """An object with JSON lines, or a Parquet file.

    Raises:
        ConfigError: it is neither, or the name is no object's.
    """
    bucket_name, key = split(named)
    lower = key.lower()
    form: OutputFormat
    if lower.endswith((".jsonl", ".ndjson")):
        form = Lines()
    elif lower.endswith(".parquet"):
        kinds.need_pyarrow(named)
        from headrace.runs.sinks.parquet import ParquetFormat

        form = ParquetFormat(kinds.carried_types(source))
    else:
        raise ConfigError(
            f"{named}: it cannot be told how this is to be written",
            hint="Let it end in .jsonl or .parquet.",
        )
    bucket = Bucket(bucket_name)
    return SpooledSink(S3Target(bucket, key, form), spool_of(bucket, key))
