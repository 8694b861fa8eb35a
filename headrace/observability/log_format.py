"""Formats log lines with structlog, as JSON or for people.

A client's text cannot break a line. JSON escapes all that is not ASCII. The format for people
escapes all characters that do not print. In the format for people a traceback follows its line,
indented.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.config.extensions import parts
from headrace.jobs.trace_context import Trace
from headrace.observability.extension import LogsPart
from headrace.observability.logs import (
    FIELDS,
    JSON,
    LINE_FIELDS,
    OWN_PACKAGES,
    RUNNING_JOBS,
    TRACE,
    about_jobs,
)
from headrace.text import printable

#: The order of fields. Fields of users' code follow them.
_FIELD_ORDER: Final = {name: place for place, name in enumerate(FIELDS)}
#: In the format for people these follow the line.
BELOW_THE_LINE: Final = ("traceback", "exception", "stack")
#: Fields that are the same on all lines of a process are not shown to people.
HIDDEN: Final = frozenset({"part", "pid", "node"})


def formatter(
    shape: str, fields: Mapping[str, Any], *, allowed: frozenset[str] | None
) -> logging.Formatter:
    """Return the formatter of a process; without `allowed`, its lines may have any field."""

    def add_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        record = event["_record"]
        event["logger"] = shown_logger(record.name)
        _add_context(event)
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    adder = structlog.stdlib.ExtraAdder(allow=allowed)
    last: list[Processor] = [_in_order, _for_people]
    if shape == JSON:
        last = [structlog.processors.TimeStamper(fmt="iso", utc=True), _in_order, _json]
    elif shape in (of_extensions := parts("logs", LogsPart)):
        line = of_extensions[shape].line
        last = [_in_order, lambda _, __, event: line(event)]
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[adder, structlog.stdlib.add_log_level, add_fields],
        processors=[_keep_time, remove, structlog.processors.format_exc_info, *last],
        keep_exc_info=False,
    )


def _keep_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    # For the events of structlog's own loggers too: `foreign_pre_chain` does not see these.
    event["_created"] = event["_record"].created
    return event


def shown(value: object) -> str:
    """Return a field's value for people, in quotes unless it is one word."""
    if isinstance(value, (list, tuple)):
        return ",".join(printable(str(one)) for one in value)
    text = printable(str(value))
    if text and not any(mark in text for mark in (" ", "=", '"')):
        return text
    return json.dumps(text, ensure_ascii=False)


def shown_logger(name: str) -> str:
    """Return a logger's name as a line shows it: a module of Headrace by its first two names.

    `workers.consumer.loop` becomes `workers.consumer`, so that names in logs stay the same when
    modules are split or merged. Other names are unchanged.
    """
    package, *inner = name.removeprefix("headrace._server.").split(".")
    return f"{package}.{inner[0]}" if inner and package in OWN_PACKAGES else name


def _add_context(event: EventDict) -> None:
    for name, value in (LINE_FIELDS.get() or {}).items():
        event.setdefault(name, value)
    if "job" not in event and "jobs" not in event:
        event.update(about_jobs(RUNNING_JOBS.get()))
    if parent := TRACE.get():
        trace = Trace(parent)
        event.setdefault("trace_id", trace.trace_id)
        event.setdefault("span_id", trace.span_id)


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    last = len(_FIELD_ORDER)
    return dict(sorted(event.items(), key=lambda field: _FIELD_ORDER.get(field[0], last)))


def _json(_: WrappedLogger, __: str, event: EventDict) -> str:
    event.pop("_created", None)
    return json.dumps(event, default=repr)


def _for_people(_: WrappedLogger, __: str, event: EventDict) -> str:
    moment = datetime.fromtimestamp(event.pop("_created")).astimezone()
    stamp = f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    level, logger = event.pop("level", "info").upper(), event.pop("logger", "")
    below = [str(event.pop(name)) for name in BELOW_THE_LINE if event.get(name)]
    text = printable(str(event.pop("event", "")))
    fields = " ".join(f"{name}={shown(event[name])}" for name in event if name not in HIDDEN)
    line = f"{stamp} {level:<7} {printable(logger)}: {text}" + (f"  {fields}" if fields else "")
    for one in below:
        line += "".join(f"\n    {printable(row.expandtabs())}" for row in one.rstrip().split("\n"))
    return line
