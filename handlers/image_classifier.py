"""Image classification with any torch module: decode, resize, crop, normalise, top-k.

`options.model` in the models file (path/to/file.py:name or package.module:name) is a function or
class that returns the module; it is called with `options.model_options`. Without `weights` the
module keeps its own, random with a fixed seed, and a warning is logged.

A result is `{"classes": [{"index": 281, "name": "tabby", "probability": 0.62}, ...]}`, best first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from handlers.images import ImageHandler, ImageOptions, decode, to_rgb
from handlers.loader import load_factory
from handlers.tensors import Fetched, Transfer, in_order, load_weights, use_channels_last
from headrace.errors import ConfigError
from headrace.handler import Context

logger = logging.getLogger(__name__)

RANDOM_WEIGHTS_SEED: Final = 0
#: The batch size at which the memory format is tried at load.
TRIAL_BATCH: Final = 4
_ROUNDED: Final = 6
_DTYPES: Final = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}

_Side = Annotated[int, Meta(ge=1, le=4096)]
_Three = Annotated[list[float], Meta(min_length=3, max_length=3)]
_Spread = Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=3, max_length=3)]


class ClassifierOptions(ImageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `image_classifier`.

    Attributes:
        model: the torch module's factory: path/to/file.py:name or package.module:name.
        model_options: its keyword arguments.
        index_to_name: JSON file {"0": "tench"} or {"0": ["n01440764", "tench"]}.
        top_k: how many classes a result has.
        resize_px: the shorter side after resizing.
        crop_px: the side of the square cut from the middle.
        mean: subtracted per channel, for values in 0..1.
        std: divides each channel.
        precision: the module's weights and activations; probabilities are always float.
    """

    model: Annotated[str, Meta(min_length=1)] = "handlers.resnet:resnet18"
    model_options: dict[str, Any] = msgspec.field(default_factory=dict)
    index_to_name: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 5
    resize_px: _Side = 256
    crop_px: _Side = 224
    mean: _Three = msgspec.field(default_factory=lambda: [0.485, 0.456, 0.406])
    std: _Spread = msgspec.field(default_factory=lambda: [0.229, 0.224, 0.225])
    precision: Literal["float", "half", "bfloat16"] = "float"


class ImageClassifier(ImageHandler):
    """Returns the likeliest classes of an image."""

    options_kind = ClassifierOptions

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        options: ClassifierOptions = self.options
        if options.crop_px > options.resize_px:
            raise ConfigError(
                f"model {context.model_name}: options.crop_px is {options.crop_px}, more than "
                f"resize_px, {options.resize_px}",
                hint="set crop_px to at most resize_px",
            )
        self.names = _names(context, options)
        self.dtype = _DTYPES[options.precision]
        self.model = _module(context, options).to(context.device, self.dtype).eval()
        self.transfer = Transfer(context.device)
        size = min(context.max_batch_size, TRIAL_BATCH)
        # A separate generator, as the state of the global one belongs to the user.
        trial = torch.rand(
            size, 3, options.crop_px, options.crop_px, generator=torch.Generator().manual_seed(0)
        )
        self.channels_last = use_channels_last(
            self.model,
            trial.to(context.device, self.dtype),
            context.channels_last,
            context.model_name,
        )
        self.mean = torch.tensor(options.mean, device=context.device).view(3, 1, 1) * 255
        self.std = torch.tensor(options.std, device=context.device).view(3, 1, 1) * 255

    @override
    def inference(self, items: Any) -> Any:
        with torch.inference_mode():
            # Bytes are copied to the device, a quarter of the size of normalised floats.
            images = self.transfer.to_device(items).permute(0, 3, 1, 2)
            images = in_order(images, channels_last=self.channels_last)
            logits = self.model((images - self.mean).div_(self.std).to(self.dtype))
            probabilities = logits.float().softmax(dim=1)
            best = probabilities.topk(min(self.options.top_k, probabilities.shape[1]), dim=1)
            return self.transfer.to_host(best.values, best.indices)

    @override
    def postprocess(self, outputs: Fetched) -> list[Any]:
        best, classes = outputs.wait()
        rows = zip(best.tolist(), classes.tolist(), strict=True)
        return [{"classes": self._classes(values, indices)} for values, indices in rows]

    @override
    def item(self, data: Any) -> Tensor:
        options: ClassifierOptions = self.options
        image = decode(data, max_pixels=options.max_pixels, draft_px=options.resize_px)
        square = _centre(to_rgb(image), options.resize_px, options.crop_px)
        return torch.from_numpy(np.array(square))

    def _classes(self, values: list[float], indices: list[int]) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "name": self.names.get(index, str(index)),
                "probability": round(value, _ROUNDED),
            }
            for value, index in zip(values, indices, strict=True)
        ]


def _centre(image: Image.Image, resize_px: int, crop_px: int) -> Image.Image:
    """Return the middle square of the image as if its shorter side were `resize_px`."""
    width, height = image.size
    # Only the cropped part is resampled, so that an image of 1 x 50,000,000 does not grow.
    side = min(width, height) * crop_px / resize_px
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize(
        (crop_px, crop_px),
        Image.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
        reducing_gap=2.0,
    )


def _module(context: Context, options: ClassifierOptions) -> nn.Module:
    factory = load_factory(options.model, context.model_dir, what="options.model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_WEIGHTS_SEED)
        try:
            module = factory(**options.model_options)
        except Exception as error:
            raise ConfigError(
                f"options.model {options.model!r}: calling it failed: "
                f"{type(error).__name__}: {error}",
                hint="options.model_options are its keyword arguments",
            ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"options.model {options.model!r} returned {type(module).__name__}, not a torch module"
        )
    if context.weights is not None:
        load_weights(module, context.weights, weights_only=context.weights_only)
    else:
        logger.warning(
            "no weights in the models file: %s makes them, random with seed %d unless it loads "
            "its own",
            options.model,
            RANDOM_WEIGHTS_SEED,
            extra={"model": context.model_name},
        )
    return module


def _names(context: Context, options: ClassifierOptions) -> dict[int, str]:
    if options.index_to_name is None:
        return {}
    path = context.model_dir / Path(options.index_to_name).expanduser()
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
