"""What an extension adds to logs: a format of the setting `log_format`."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol


class LogFiles(Protocol):
    """The log files of a format, which the supervisor of all processes writes."""

    def is_line(self, line: bytes) -> bool:
        """Return whether a line of a process has this format."""

    def line(self, name: str, text: str) -> str:
        """Return a text of a process as a line of this format, with its end."""

    def write(self, data: bytes) -> None:
        """Write complete lines of this format."""


@dataclass(frozen=True, kw_only=True)
class LogsPart:
    """The format that is named as its extension.

    Attributes:
        line: returns the line of an event, without its end. The fields are in order, and `_created`
            is its time in seconds since 1970.
        files: returns the log files; None if the settings ask for no files. Its arguments are the
            value of the extension's key there, and `log_format`.
    """

    line: Callable[[MutableMapping[str, Any]], str]
    files: Callable[[Any, str], LogFiles | None]
