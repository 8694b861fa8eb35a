"""TorchServe's lines as a log format of all processes."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from extensions.torchserve.logs.lines import MODEL_LOG, console_line
from headrace.observability.log_format import BELOW_THE_LINE, HIDDEN, plain, shown

#: Processes that run handlers, whose lines belong to the log of the models.
_OF_HANDLERS: Final = frozenset({"model", "preprocess"})


def log_line(event: MutableMapping[str, Any]) -> str:
    """Return the line of an event; its fields are in order, and `_created` is its time."""
    created, level = event.pop("_created"), event.pop("level", "info").upper()
    logger, part = event.pop("logger", ""), event.get("part", "")
    below = [str(event.pop(name)) for name in BELOW_THE_LINE if event.get(name)]
    text = plain(event.pop("event", ""))
    if part in _OF_HANDLERS:
        thread, logger = f"W-{event.get('pid', 0)}-{event.pop('model', '')}-stdout", MODEL_LOG
    else:
        thread = str(part) or logger
    fields = " ".join(f"{name}={shown(event[name])}" for name in event if name not in HIDDEN)
    rows = [text + (f"  {fields}" if fields else "")]
    rows += [plain(row.expandtabs()) for one in below for row in one.rstrip().split("\n")]
    return "".join(console_line(created, level, thread, logger, row) for row in rows)[:-1]
