"""Reads a model's `options` as a typed value; a misspelt option is an error, not ignored."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from handlers.images import DEFAULT_MAX_PIXELS, HIGHEST_MAX_PIXELS
from headrace.config.suggestions import did_you_mean, listing
from headrace.config.yaml_file import convert
from headrace.errors import ConfigError
from headrace.handler import Context

S = TypeVar("S", bound=msgspec.Struct)


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every handler that takes images.

    Attributes:
        max_pixels: an image with more pixels is refused before it is decoded.
    """

    max_pixels: Annotated[int, Meta(ge=1, le=HIGHEST_MAX_PIXELS)] = DEFAULT_MAX_PIXELS


def read_options(context: Context, kind: type[S]) -> S:
    """Return the model's options as `kind`.

    Raises:
        ConfigError: an option is unknown or invalid.
    """
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
