"""The sources and sinks that need no more than this package: see registry.py."""

from __future__ import annotations

from pathlib import Path

from headrace.runs.jsonl_sink import JsonlSink
from headrace.runs.jsonl_source import JsonlSource
from headrace.runs.options import SourceOptions
from headrace.runs.seams import Sink, Source


def jsonl_source(named: str, options: SourceOptions) -> Source:
    """A local file of JSON lines."""
    options.refuse("glob", "content_type", of=named)
    return JsonlSource(Path(named), options)


def jsonl_sink(named: str) -> Sink:
    """The same, to write."""
    return JsonlSink(Path(named))
