"""The base class of envelopes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class BaseEnvelope(ABC):
    """Translates the inputs and the results of a handler's `handle(data, context)`."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """Run a batch: translate the inputs, call the handler, translate its results."""
        self.context = context
        results = self._handle_fn(self.parse_input(data) if data else data, context)
        # What is empty stays as it is, so a handler that returns nothing fails.
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Return the batch for the handler."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Return the results for the clients."""


def sent_in(row: Any) -> Any:
    """Return the member `data` or `body` of a row; None if both are missing or empty."""
    return row.get("data") or row.get("body")
