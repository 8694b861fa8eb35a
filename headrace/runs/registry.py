"""Which source reads what is named, and which sink writes there.

Both are found by a URL's scheme, else by a name's suffix, else (sources) by what lies there. A
module is imported when something of its kind is named, so that pyarrow is there only for who needs
it. To add a kind, add a line.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.runs.interfaces import Sink, Source
from headrace.runs.sources.options import SourceOptions

STDIN: Final = "-"
FOLDER: Final = "a folder"
_GLOB: Final = frozenset("*?[")

#: `<scheme>://`, a suffix, `-` or a folder -> `module:function`, which is called with what is named
#: (a str) and `SourceOptions`, and gives a `Source`. Longer suffixes go first.
SOURCES: Final[dict[str, str]] = {
    FOLDER: "headrace.runs.kinds:folder_source",
    STDIN: "headrace.runs.kinds:paths_source",
    ".jsonl": "headrace.runs.kinds:jsonl_source",
    ".ndjson": "headrace.runs.kinds:jsonl_source",
    ".jsonl.gz": "headrace.runs.kinds:jsonl_source",
    ".ndjson.gz": "headrace.runs.kinds:jsonl_source",
    ".csv": "headrace.runs.kinds:csv_source",
    ".csv.gz": "headrace.runs.kinds:csv_source",
    ".tsv": "headrace.runs.kinds:csv_source",
    ".tsv.gz": "headrace.runs.kinds:csv_source",
    ".parquet": "headrace.runs.kinds:parquet_source",
    ".tar": "headrace.runs.kinds:tar_source",
    ".tar.gz": "headrace.runs.kinds:tar_source",
    ".tgz": "headrace.runs.kinds:tar_source",
    "s3://": "headrace.runs.s3_kinds:s3_source",
}
#: The same for sinks, called with what is named and the run's source, where there is one.
SINKS: Final[dict[str, str]] = {
    ".jsonl": "headrace.runs.kinds:jsonl_sink",
    ".ndjson": "headrace.runs.kinds:jsonl_sink",
    ".parquet": "headrace.runs.kinds:parquet_sink",
    "s3://": "headrace.runs.s3_kinds:s3_sink",
}


def source_for(named: str, options: SourceOptions) -> Source:
    """The source that is named.

    Raises:
        ConfigError: there is none of that kind, it does not exist, or an option is not for it.
    """
    source: Source = _function(SOURCES, _kind_of_source(named), named, "read")(named, options)
    return source


def sink_for(named: str, source: Source | None = None) -> Sink:
    """The sink that is named.

    Args:
        named: a path or a URL.
        source: where the rows' inputs come from; it may know the types of what rows carry.

    Raises:
        ConfigError: there is none of that kind.
    """
    sink: Sink = _function(SINKS, _kind(SINKS, named), named, "written")(named, source)
    return sink


def _kind_of_source(named: str) -> str | None:
    if named == STDIN:
        return STDIN
    found = _kind(SOURCES, named)
    if "://" in named or (found is not None and not Path(named).is_dir()):
        return found
    if Path(named).is_dir() or _GLOB & set(named):
        return FOLDER
    if not Path(named).exists():
        raise ConfigError(f"{named}: no such file or folder")
    return None


def _kind(kinds: dict[str, str], named: str) -> str | None:
    scheme, separator, _ = named.partition("://")
    if separator:
        return f"{scheme.lower()}://"
    suffixes = (kind for kind in kinds if kind.startswith("."))
    matching = [suffix for suffix in suffixes if named.lower().endswith(suffix)]
    return max(matching, key=len, default=None)


def _function(kinds: dict[str, str], kind: str | None, named: str, verb: str) -> Any:
    where = kinds.get(kind) if kind is not None else None
    if where is None:
        raise ConfigError(
            f"{named}: it cannot be told how this is to be {verb}",
            hint=f"Known are: {', '.join(kinds)}.",
        )
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)
