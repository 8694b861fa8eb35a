"""What handlers of a torch module share: the options that name it, its weights and its classes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import torch
from msgspec import Meta
from torch import nn

from handlers.common.images import DEFAULT_MAX_PIXELS, MaxPixels
from handlers.common.tensors import load_weights
from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD
from handlers.loader import load_factory
from headrace.errors import ConfigError
from headrace.handler import Context

logger = logging.getLogger(__name__)

RANDOM_WEIGHTS_SEED: Final = 0

_Side = Annotated[int, Meta(ge=1, le=4096)]
_Three = Annotated[list[float], Meta(min_length=3, max_length=3)]
_Spread = Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=3, max_length=3)]


class ModuleOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of handlers that run a torch module; docs/handlers.md lists them."""

    model: Annotated[str, Meta(min_length=1)] | None = None
    model_options: dict[str, Any] = msgspec.field(default_factory=dict)


class CroppedImageOptions(ModuleOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of handlers that bring all images to one size and normalise them."""

    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS
    resize_px: _Side = 256
    crop_px: _Side = 224
    mean: _Three = msgspec.field(default_factory=lambda: list(IMAGENET_MEAN))
    std: _Spread = msgspec.field(default_factory=lambda: list(IMAGENET_STD))
    decode: Literal["cpu", "gpu"] = "cpu"

    def check(self, model_name: str) -> None:
        """Raise ConfigError if the crop is larger than the resized image."""
        if self.crop_px > self.resize_px:
            raise ConfigError(
                f"model {model_name}: options.crop_px is {self.crop_px}, more than resize_px, "
                f"{self.resize_px}",
                hint="set crop_px to at most resize_px",
            )


def load_module(context: Context, options: ModuleOptions) -> nn.Module:
    """Return the module that the option `model` makes, with weights, on the CPU; or ConfigError."""
    model = options.model
    if model is None:
        raise ConfigError(
            f"model {context.model_name}: the option `model` is missing",
            hint="set options.model to what makes the torch module: path/to/file.py:name or "
            "package.module:name",
        )
    factory = load_factory(model, context.model_dir, what="options.model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_WEIGHTS_SEED)
        try:
            module = factory(**options.model_options)
        except Exception as error:
            raise ConfigError(
                f"options.model {model!r}: calling it failed: {type(error).__name__}: {error}",
                hint="options.model_options are its keyword arguments",
            ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"options.model {model!r} returned {type(module).__name__}, not a torch module"
        )
    if context.weights is not None:
        load_weights(module, context.weights, weights_only=context.weights_only)
    else:
        logger.warning(
            "no weights in the models file: %s makes them, random with seed %d unless it loads "
            "its own",
            model,
            RANDOM_WEIGHTS_SEED,
            extra={"model": context.model_name},
        )
    return module


def load_names(context: Context, index_to_name: str | None) -> dict[int, str]:
    """Return the names of classes by index, {} without the option; or raise ConfigError."""
    if index_to_name is None:
        return {}
    path = context.model_dir / Path(index_to_name).expanduser()
    where = f"model {context.model_name}: options.index_to_name: {path}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is not a JSON object", hint='write {"0": "tench", ...}')
    try:
        return {int(index): _name(value) for index, value in data.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}", hint='write {"0": "tench", ...}') from None


def _name(value: object) -> str:
    # ImageNet's list has [WordNet id, name].
    last = value[-1] if isinstance(value, list) and value else value
    if not isinstance(last, str):
        raise TypeError(f"a name must be text, not {value!r}")
    return last
