"""What handlers share: their options, and an item, or an error, of each input.

A misspelt option is an error, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from headrace.config.suggestions import did_you_mean, listing
from headrace.config.values import convert
from headrace.errors import ConfigError, InputError
from headrace.handler import Context, Handler

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class ItemHandler(Handler):
    """A handler that has options of one kind, and makes an item of each input alone."""

    overlap = True
    options_kind: type[msgspec.Struct]
    options: Any

    def item(self, data: Any) -> Any:
        """Return the item for an input; raise InputError if it is bad."""
        raise NotImplementedError

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.options = read_options(context, self.options_kind)

    @override
    def initialize_preprocess(self, context: Context) -> None:
        super().initialize_preprocess(context)
        self.options = read_options(context, self.options_kind)

    @override
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [self._item_or_error(data) for data in inputs]

    def _item_or_error(self, data: Any) -> Any:
        try:
            return self.item(data)
        except InputError as error:
            # Its frames would keep the input alive, and an input's error needs no traceback.
            return error.with_traceback(None)


def grouped(items: Sequence[T], kind: Callable[[T], Hashable]) -> list[list[int]]:
    """Return the places of the items of each kind, in order of appearance."""
    found: dict[Hashable, list[int]] = {}
    for place, item in enumerate(items):
        found.setdefault(kind(item), []).append(place)
    return list(found.values())


def read_options(context: Context, kind: type[S]) -> S:
    """Return the model's options as `kind`; raise ConfigError if one is unknown or invalid."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in context.options.items():
        where = f"model {context.model_name}: options.{name}"
        if name not in fields:
            raise ConfigError(
                f"{where}: unknown option{did_you_mean(name, fields)}",
                hint=f"known: {listing(fields)}",
            )
        try:
            values[name] = convert(value, fields[name].type)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}", hint="docs/handlers.md lists them") from None
    return kind(**values)
