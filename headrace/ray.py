"""Ray Data: `predict` runs a model in actors, `submit` sends rows through the queue.

The extension `ray` has both. docs/offline.md compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.config.extensions import exported

predict: Callable[..., Any]
submit: Callable[..., Any]


class Actor:
    """What Ray's actors run: a class that each node can import.

    Args:
        name: of a class of the extension.
        arguments: its keyword arguments.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        made = cast("Callable[..., Callable[[Any], Any]]", exported(__name__, name))
        self._call = made(**arguments)

    def __call__(self, table: Any) -> Any:
        """Return a table of pyarrow with the columns of rows added."""
        return self._call(table)


def __getattr__(name: str) -> object:
    return exported(__name__, name)
