"""The lines of TorchServe's logs, which scripts and its benchmark suite parse.

A process writes each line in the form of the console. Its supervisor writes the lines to standard
output, and into the log files by their logger (files.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any, Final

from headrace.observability.log_format import BELOW_THE_LINE, HIDDEN, shown
from headrace.text import printable

#: The value of the setting `log_format` for these lines.
LOG_FORMAT: Final = "torchserve"
#: The loggers whose lines have a file of their own.
ACCESS: Final = "ACCESS_LOG"
TS_METRICS: Final = "TS_METRICS"
MODEL_METRICS: Final = "MODEL_METRICS"
MODEL_LOG: Final = "MODEL_LOG"

_LEVEL_WIDTH: Final = 5
#: A line of `console_line`: all of it, its time, its logger and its text.
_LINE: Final = re.compile(
    rb"((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}) \[[A-Z ]{5}\] \S+ (\S+) - (.*\n))"
)
#: The places of the marks that each such line has: around its level.
_BEFORE_LEVEL: Final = slice(23, 25)
_AFTER_LEVEL: Final = slice(30, 32)

#: Processes that run handlers, whose lines belong to the log of the models.
_OF_HANDLERS: Final = frozenset({"model", "preprocess"})

#: The names and values of dimensions, in order.
Labels = tuple[tuple[str, str], ...]


def stamp(at: float) -> str:
    """Return a time (seconds since 1970) in the local time zone, with milliseconds."""
    ms = int(at * 1000)
    return f"{_second(ms // 1000)},{ms % 1000:03d}"


@lru_cache(maxsize=16)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))


def console_line(at: float, level: str, thread: str, logger: str, text: str) -> str:
    """Return one line, with its end, as TorchServe writes it to standard output."""
    return f"{stamp(at)}{_origin(level, thread, logger)}{text}\n"


@lru_cache(maxsize=256)
def _origin(level: str, thread: str, logger: str) -> str:
    # The place of a thread's name has no spaces.
    level = "WARN" if level == "WARNING" else level[:_LEVEL_WIDTH]
    return f" [{level:<{_LEVEL_WIDTH}}] {'-'.join(printable(thread).split()) or '-'} {logger} - "


def log_line(event: MutableMapping[str, Any]) -> str:
    """Return the line of an event; its fields are in order, and `_created` is its time."""
    created, level = event.pop("_created"), event.pop("level", "info").upper()
    logger, part = event.pop("logger", ""), event.get("part", "")
    below = [str(event.pop(name)) for name in BELOW_THE_LINE if event.get(name)]
    text = printable(str(event.pop("event", "")))
    if part in _OF_HANDLERS:
        thread, logger = f"W-{event.get('pid', 0)}-{event.pop('model', '')}-stdout", MODEL_LOG
    else:
        thread = str(part) or logger
    fields = " ".join(f"{name}={shown(event[name])}" for name in event if name not in HIDDEN)
    rows = [text + (f"  {fields}" if fields else "")]
    rows += [printable(row.expandtabs()) for one in below for row in one.rstrip().split("\n")]
    return "".join(console_line(created, level, thread, logger, row) for row in rows)[:-1]


def is_line(line: bytes) -> bool:
    """Return whether a line has the form of `console_line`, by its marks."""
    return line[_BEFORE_LEVEL] == b" [" and line[_AFTER_LEVEL] == b"] "


def read_lines(data: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return each line of the form of `console_line`: all of it, its time, logger and text."""
    return _LINE.findall(data)


def metric_text(
    name: str,
    unit: str,
    value: float,
    dimensions: Labels,
    host: str,
    at: float,
    request_ids: str | None = "",
) -> str:
    """Return the text of a metric's line.

    Args:
        dimensions: without the host.
        request_ids: for a metric of a handler, the ids of its requests, separated by commas; None
            for no requests; "" for other metrics.
    """
    head, tail = _around_value(name, unit, dimensions, host)
    requests = "" if request_ids == "" else f"requestID:{printable(request_ids or 'null')},"
    return f"{head}{number(value)}{tail}{requests}timestamp:{int(at)}"


@lru_cache(maxsize=1024)
def _around_value(name: str, unit: str, dimensions: Labels, host: str) -> tuple[str, str]:
    listed = ",".join(f"{printable(key)}:{printable(one)}" for key, one in dimensions)
    return f"{printable(name)}.{printable(unit)}:", f"|#{listed}|#hostname:{host},"


def access_text(
    client: Sequence[str | int] | None, method: str, target: str, status: int, took_ms: float
) -> str:
    """Return the text of a request's line in the access log."""
    host, port = client or ("-", 0)
    return (
        f'/{host}:{port} "{printable(method)} {printable(target)} HTTP/1.1" {status} {int(took_ms)}'
    )


def number(value: float) -> str:
    """Return a value with a decimal point, as Java writes a double."""
    text = repr(float(value))
    if "n" in text:
        return {"inf": "+Inf", "-inf": "-Inf"}.get(text, "NaN")
    digits, mark, exponent = text.partition("e")
    return f"{digits}.0e{exponent}" if mark and "." not in digits else text
