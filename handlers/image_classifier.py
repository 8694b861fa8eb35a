"""Image classification with any torch module: decode, resize, crop, normalise, top-k.

`options.model` in the models file (path/to/file.py:name or package.module:name) is a function or
class that returns the module; it is called with `options.model_options`. Without `weights` the
module keeps its own, random with a fixed seed, and a warning is logged.

A result is `{"classes": [{"index": 281, "name": "tabby", "probability": 0.62}, ...]}`, best first.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from handlers.common.image_modules import CroppedImageHandler
from handlers.common.items import read_options
from handlers.common.modules import CroppedImageOptions, load_names
from handlers.common.vision import best_classes
from headrace.handler import Context

_ROUNDED: Final = 6
_DTYPES: Final = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


class ClassifierOptions(CroppedImageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `image_classifier`; docs/handlers.md lists them."""

    model: Annotated[str, Meta(min_length=1)] | None = "handlers.resnet:resnet18"
    index_to_name: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 5
    precision: Literal["float", "half", "bfloat16"] = "float"


class ImageClassifier(CroppedImageHandler):
    """Returns the likeliest classes of an image."""

    options_kind = ClassifierOptions

    @override
    def initialize(self, context: Context) -> None:
        options = read_options(context, ClassifierOptions)
        self.names = load_names(context, options.index_to_name)
        self.dtype = _DTYPES[options.precision]
        super().initialize(context)

    @override
    def outputs(self, output: Tensor) -> tuple[Tensor, ...]:
        return best_classes(output, self.options.top_k)

    @override
    def scores(self, output: Tensor) -> Tensor:
        return output

    @override
    def result(self, values: list[float], indices: list[int]) -> dict[str, Any]:
        return {
            "classes": [
                {
                    "index": index,
                    "name": self.names.get(index, str(index)),
                    "probability": round(value, _ROUNDED),
                }
                for value, index in zip(values, indices, strict=True)
            ]
        }
