"""Which source reads an input, and which sink writes an output. To add a kind, add a line.

Both are found by the scheme of a URL or the suffix of a name. A source is also found by what is at
the path. Only Parquet needs pyarrow, and only S3 needs boto3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from extensions.runs.sinks.jsonl import JsonlSink
from extensions.runs.sinks.s3 import S3Target, spool_path
from extensions.runs.sinks.spooled import SpooledSink
from extensions.runs.sources.csv import CsvSource
from extensions.runs.sources.files import SourceFile, local_files
from extensions.runs.sources.jsonl import JsonlSource
from extensions.runs.sources.options import SourceOptions
from extensions.runs.sources.paths import FolderSource, PathsSource
from extensions.runs.sources.patterns import is_pattern
from extensions.runs.sources.s3 import SCHEME, RunBucket, S3Objects, s3_files, split
from extensions.runs.sources.webdataset import TarSource
from headrace.errors import ConfigError
from headrace.runs.interfaces import Sink, Source

STDIN: Final = "-"


class _Kind(NamedTuple):
    """A kind of file.

    Attributes:
        unused: the options that mean nothing for it.
    """

    open: Callable[[Sequence[SourceFile], SourceOptions], Source]
    unused: tuple[str, ...]


def _parquet_source(files: Sequence[SourceFile], options: SourceOptions) -> Source:
    need_pyarrow(files[0].name)
    from extensions.runs.sources.parquet import ParquetSource

    return ParquetSource(files, options)


_JSONL: Final = _Kind(JsonlSource, ("glob", "content_type", "by_ref", "delimiter"))
_CSV: Final = _Kind(CsvSource, ("glob", "by_ref"))
_PARQUET: Final = _Kind(_parquet_source, ("glob", "by_ref", "delimiter"))
_TAR: Final = _Kind(TarSource, ("glob", "key", "by_ref", "delimiter"))
#: The kinds of files with many inputs, by suffix; of several that match, the longest counts.
FILES: Final[dict[str, _Kind]] = {
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".jsonl.gz": _JSONL,
    ".ndjson.gz": _JSONL,
    ".csv": _CSV,
    ".csv.gz": _CSV,
    ".tsv": _CSV,
    ".tsv.gz": _CSV,
    ".parquet": _PARQUET,
    ".tar": _TAR,
    ".tar.gz": _TAR,
    ".tgz": _TAR,
}
_SOURCES: Final = f"a folder, -, {SCHEME}, {', '.join(FILES)}"
_SINKS: Final = f".jsonl, .ndjson, .parquet, and {SCHEME} with one of these"


def source_for(name: str, options: SourceOptions) -> Source:
    """Return the source with this name: a path, a pattern, a URL, or `-`.

    Raises:
        ConfigError: its kind is unknown, it does not exist or cannot be read, or it does not take
            an option.
    """
    try:
        return _source_for(name, options)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None


def _source_for(name: str, options: SourceOptions) -> Source:
    if name == STDIN:
        options.refuse("input", "key", "glob", "delimiter", of="a list of paths")
        return PathsSource(sys.stdin.buffer)
    kind = _file_kind(name)
    if name.lower().startswith(SCHEME):
        if kind is not None:
            options.refuse(*kind.unused, of=name)
            return kind.open(s3_files(name, options.output), options)
        options.refuse("input", "key", "by_ref", "delimiter", of=name)
        bucket, key = split(name)
        return S3Objects(RunBucket(bucket), key, options)
    if kind is not None and "://" not in name and not Path(name).is_dir():
        options.refuse(*kind.unused, of=name)
        return kind.open(local_files(name, options.output), options)
    if "://" not in name and (
        Path(name).is_dir() or (is_pattern(name) and not Path(name).exists())
    ):
        options.refuse("input", "key", "delimiter", of=name)
        return FolderSource(name, options)
    if "://" not in name and not Path(name).exists():
        raise ConfigError(f"{name}: no such file or folder")
    raise ConfigError(f"{name}: unknown kind of source", hint=f"Known kinds: {_SOURCES}.")


def sink_for(name: str, source: Source | None = None) -> Sink:
    """Return the sink with this name: a path or a URL.

    Args:
        source: the source of the run; it may know the types of what rows carry.

    Raises:
        ConfigError: its kind is unknown.
    """
    suffix = Path(name).suffix.lower()
    if name.lower().startswith(SCHEME) and suffix in (".jsonl", ".ndjson", ".parquet"):
        return _s3_sink(name, suffix, source)
    if suffix in (".jsonl", ".ndjson") and "://" not in name:
        return JsonlSink(Path(name))
    if suffix == ".parquet" and "://" not in name:
        need_pyarrow(name)
        from extensions.runs.sinks.parquet import LocalParquet

        return SpooledSink(LocalParquet(Path(name), _carried_schema(source)), Path(name))
    raise ConfigError(f"{name}: unknown kind of output", hint=f"Known kinds: {_SINKS}.")


def _s3_sink(url: str, suffix: str, source: Source | None) -> Sink:
    bucket_name, key = split(url)
    bucket = RunBucket(bucket_name)
    target = S3Target(bucket, key)
    if suffix == ".parquet":
        need_pyarrow(url)
        from extensions.runs.sinks.parquet import S3Parquet

        target = S3Parquet(bucket, key, _carried_schema(source))
    return SpooledSink(target, spool_path(bucket, key))


def _file_kind(name: str) -> _Kind | None:
    suffixes = [suffix for suffix in FILES if name.lower().endswith(suffix)]
    return FILES[max(suffixes, key=len)] if suffixes else None


def _carried_schema(source: Source | None) -> Any:
    """Return the Arrow schema of what rows carry; None where the source has none."""
    find: Callable[[], Any] = getattr(source, "carried_schema", lambda: None)
    return find()


def need_pyarrow(name: str) -> None:
    """Check that pyarrow is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError(
            f"{name}: Parquet needs pyarrow, which is not installed",
            hint="pip install 'headrace[tables]'",
        )
