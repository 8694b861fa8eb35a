"""How a line of the logs looks: JSON, or for people. By structlog.

Whatever a client has sent, a line stays one line: JSON escapes all that is not ASCII, and for
people every character that does not print is written as an escape. The lines of a traceback stand
indented below theirs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.jobs.trace_context import Trace
from headrace.observability.logs import AT_HAND, CONCERN, FIELDS, JSON, TRACE, about_jobs

#: The order of fields; those of users' code come behind them.
_PLACES: Final = {name: place for place, name in enumerate(FIELDS)}
#: These stand below the line of a log for people.
_TAIL: Final = ("traceback", "exception", "stack")
#: What is on every line of a process is of no use to people who look at that process.
_UNSHOWN: Final = frozenset({"part", "pid", "node"})


def formatter(
    shape: str, fields: Mapping[str, Any], *, allowed: frozenset[str] | None
) -> logging.Formatter:
    """The formatter of a process.

    Args:
        shape: `json` or `console`.
        fields: on every line.
        allowed: the fields that a line may bring along; None for any.
    """

    def constant(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    chain: list[Processor] = [
        structlog.stdlib.ExtraAdder(allow=allowed),
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        _concern,
        constant,
    ]
    last: list[Processor]
    if shape == JSON:
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        last = [structlog.processors.format_exc_info, stamp, _in_order, _json]
    else:
        last = [structlog.processors.format_exc_info, _in_order, _for_people]
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain, processors=[_keep_time, remove, *last], keep_exc_info=False
    )


def plain(value: object) -> str:
    """A text in which every character prints, on one line."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def shown(value: object) -> str:
    """A field's value for people: bare where it is one word."""
    if isinstance(value, (list, tuple)):
        return ",".join(plain(one) for one in value)
    text = plain(value)
    if text and not any(mark in text for mark in (" ", "=", '"')):
        return text
    return json.dumps(text, ensure_ascii=False)


def stamp_for_people(seconds: float) -> str:
    """A time by the clock on the wall."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _concern(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in (CONCERN.get() or {}).items():
        event.setdefault(name, value)
    if "job" not in event and "jobs" not in event:
        event.update(about_jobs(AT_HAND.get()))
    if parent := TRACE.get():
        trace = Trace(parent)
        event.setdefault("trace_id", trace.trace_id)
        event.setdefault("span_id", trace.span_id)
    return event


def _keep_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["_created"] = event["_record"].created
    return event


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    last = len(_PLACES)
    return dict(sorted(event.items(), key=lambda field: _PLACES.get(field[0], last)))


def _json(_: WrappedLogger, __: str, event: EventDict) -> str:
    event.pop("_created", None)
    return json.dumps(event, default=repr)


def _for_people(_: WrappedLogger, __: str, event: EventDict) -> str:
    stamp = stamp_for_people(event.pop("_created"))
    level, logger = event.pop("level", "info").upper(), event.pop("logger", "")
    below = [str(event.pop(name)) for name in _TAIL if event.get(name)]
    text = plain(event.pop("event", ""))
    told = " ".join(f"{name}={shown(event[name])}" for name in event if name not in _UNSHOWN)
    line = f"{stamp} {level:<7} {plain(logger)}: {text}" + (f"  {told}" if told else "")
    for one in below:
        line += "".join(f"\n    {plain(row.expandtabs())}" for row in one.rstrip().split("\n"))
    return line
