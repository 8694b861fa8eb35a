"""A model's free `options` as a typed value: a misspelt one is an error and not a default."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from handlers.images import DEFAULT_MAX_PIXELS, HIGHEST_MAX_PIXELS
from headrace.errors import ConfigError
from headrace.handler import Context
from headrace.suggest import did_you_mean, listing

S = TypeVar("S", bound=msgspec.Struct)


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every handler that takes images.

    Attributes:
        max_pixels: images of more are refused before they are decoded.
    """

    max_pixels: Annotated[int, Meta(ge=1, le=HIGHEST_MAX_PIXELS)] = DEFAULT_MAX_PIXELS


def read_options(context: Context, kind: type[S]) -> S:
    """The model's options as `kind`.

    Raises:
        ConfigError: one is unknown or does not fit.
    """
    known = kind.__struct_fields__
    where = f"model {context.model_name}: options"
    for name in context.options:
        if name not in known:
            raise ConfigError(
                f"{where}.{name}: unknown option{did_you_mean(name, known)}",
                hint=f"known: {listing(known)}",
            )
    try:
        return msgspec.convert(context.options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
