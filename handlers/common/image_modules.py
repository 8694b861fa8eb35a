"""What the built-in handlers of images and torch modules share.

A job gets a prediction, or an explanation if it asks for one (explanations.py). Images of one size
run as one batch.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from handlers.common.explanations import ExplainingHandler, explain_image, read_target
from handlers.common.images import (
    ImageHandler,
    decode,
    from_base64,
    is_upright_jpeg,
    photograph,
    to_rgb,
)
from handlers.common.items import grouped
from handlers.common.modules import CroppedImageOptions, load_module
from handlers.common.tensors import Fetched, Transfer, in_order, use_channels_last
from handlers.common.vision import centre_square, centre_square_of, tensor_of
from headrace.errors import ConfigError, InputError
from headrace.handler import Context, Exportable

#: The batch size at which the memory format is tried at load.
_TRIAL_BATCH: Final = 4


class JpegDecoder:
    """Decodes the JPEGs of one model."""

    def __init__(self, decode: Callable[..., Any], device: str) -> None:
        self._decode = decode
        self._device = torch.device(device)

    def __call__(self, data: bytes) -> Tensor | None:
        """Return the tones (3, H, W) on the device; None if nvJPEG cannot decode this file.

        Raises:
            RuntimeError: the device failed, or has no memory left.
        """
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            image: Tensor = self._decode(encoded, mode="RGB", device=self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "CUDA error" in str(error):
                raise
            return None
        return image


def jpeg_decoder(context: Context) -> JpegDecoder:
    """Return a decoder that has decoded an image; raise ConfigError if the model can have none."""
    where = f"model {context.model_name}: options.decode: gpu"
    device = torch.device(context.device)
    if device.type != "cuda":
        raise ConfigError(
            f"{where} needs a CUDA device, and the model runs on {context.device}",
            hint="leave the option out; JPEGs are then decoded on the CPU",
        )
    try:
        decode = importlib.import_module("torchvision.io").decode_jpeg
    except ImportError as error:
        raise ConfigError(
            f"{where} needs torchvision: {error}",
            hint="run `pip install 'headrace[vision]'`, or leave the option out",
        ) from error
    file = io.BytesIO()
    Image.new("RGB", (16, 16), "white").save(file, "JPEG")
    encoded = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    try:
        decode(encoded, mode="RGB", device=device)
    except Exception as error:
        raise ConfigError(
            f"{where}: torchvision cannot decode a JPEG on {context.device}: {error}",
            hint="install a torchvision that was built with CUDA, or leave the option out",
        ) from error
    return JpegDecoder(decode, context.device)


#: The places of a group of items, and their outputs.
Group = tuple[list[int], Fetched]


class CroppedImageHandler(ExplainingHandler, ImageHandler):
    """Brings images to one size, normalises them on the device, and runs a torch module."""

    options_kind = CroppedImageOptions
    dtype: torch.dtype = torch.float32
    #: The module, or its replacement for predictions. Explanations need the module itself.
    forward: Callable[[Tensor], Any]

    def outputs(self, output: Any) -> tuple[Tensor, ...]:
        """Return what a result needs of the module's output, a row for each image."""
        raise NotImplementedError

    def result(self, *rows: Any) -> Any:
        """Return the result of one image, of its rows as lists."""
        raise NotImplementedError

    def scores(self, output: Any) -> Tensor:
        """Return a score for each image and class (N, classes), for explanations."""
        raise NotImplementedError

    #: Decodes JPEGs on the device; None for the CPU.
    decoder: JpegDecoder | None = None

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        options: CroppedImageOptions = self.options
        options.check(context.model_name)
        if options.decode == "gpu":
            self.decoder = jpeg_decoder(context)
        self.model = load_module(context, options).to(context.device, self.dtype).eval()
        self.use(self.model)
        self.transfer = Transfer(context.device)
        size = min(context.max_batch_size, _TRIAL_BATCH)
        # A separate generator, as the state of the global one belongs to the user.
        trial = torch.rand(
            size, 3, options.crop_px, options.crop_px, generator=torch.Generator().manual_seed(0)
        )
        self.channels_last = use_channels_last(
            self.model,
            trial.to(context.device, self.dtype),
            context.channels_last,
            context.model_name,
            self.scores,
        )
        self.mean = torch.tensor(options.mean, device=context.device).view(3, 1, 1) * 255
        self.std = torch.tensor(options.std, device=context.device).view(3, 1, 1) * 255

    @override
    def example_input(self) -> bytes | None:
        return photograph(self.options.max_pixels)

    @override
    def initialize_preprocess(self, context: Context) -> None:
        super().initialize_preprocess(context)
        options: CroppedImageOptions = self.options
        if options.decode == "gpu":
            raise ConfigError(
                f"model {context.model_name}: options.decode: gpu decodes in the model process, "
                "and a preprocess process has no device",
                hint="leave preprocess_processes out, or the option",
            )

    def use(self, forward: Callable[[Tensor], Any]) -> None:
        """Run this for predictions."""
        self.forward = forward

    @override
    def exportable(self) -> Exportable:
        return Exportable(self.model, self.use, self.scores)

    @override
    def item(self, data: Any) -> Tensor:
        """Return the tones (H, W, 3) of an image, or the tensor that a list is."""
        options: CroppedImageOptions = self.options
        if self.decoder is not None:
            data = from_base64(data) if isinstance(data, str) else data
            if is_upright_jpeg(data, options.max_pixels):
                tones = self.decoder(bytes(data))
                if tones is not None:
                    return centre_square_of(tones, options.resize_px, options.crop_px)
        image = image_or_tensor(data, options.max_pixels, options.resize_px)
        if isinstance(image, Tensor):
            return image
        square = centre_square(to_rgb(image), options.resize_px, options.crop_px)
        return torch.from_numpy(np.array(square))

    @override
    def predict(self, items: Sequence[Tensor]) -> list[Group]:
        with torch.inference_mode():
            groups = grouped(items, lambda item: (item.dtype, item.shape, item.device))
            return [(places, self._predict([items[n] for n in places])) for places in groups]

    def _predict(self, group: Sequence[Tensor]) -> Fetched:
        return self.transfer.to_host(*self.outputs(self.forward(self._prepared(group))))

    @override
    def results(self, outputs: list[Group]) -> list[Any]:
        found: dict[int, Any] = {}
        for places, fetched in outputs:
            rows = zip(*(tensor.tolist() for tensor in fetched.wait()), strict=True)
            found.update(zip(places, (self.result(*row) for row in rows), strict=True))
        return [found[place] for place in range(len(found))]

    @override
    def explain(self, item: Tensor, target: Any) -> Any:
        image = self._prepared([item])[0]

        def forward(images: Tensor) -> Tensor:
            return self.scores(self.model(images.to(self.dtype))).float()

        if target is None:
            with torch.inference_mode():
                target = int(forward(image.unsqueeze(0)).argmax())
        return explain_image(forward, image.float(), read_target(target))

    def _prepared(self, items: Sequence[Tensor]) -> Tensor:
        # Bytes are copied to the device, a quarter of the size of normalised floats.
        images = self.transfer.to_device(items)
        if images.dtype is not torch.uint8:
            return in_order(images, channels_last=self.channels_last).to(self.dtype)
        images = in_order(images.permute(0, 3, 1, 2), channels_last=self.channels_last)
        return (images - self.mean).div_(self.std).to(self.dtype)


def image_or_tensor(
    data: object, max_pixels: int, draft_px: int | None = None
) -> Image.Image | Tensor:
    """Return an image, or the tensor (C, H, W) that a nested list is.

    Args:
        data: the input: bytes of an image, the same as base64 text, or a nested list.
        draft_px: as for `decode`.

    Raises:
        InputError: it has another form, or the image is bad.
    """
    if isinstance(data, str):
        data = from_base64(data)
    if not isinstance(data, list):
        return decode(data, max_pixels=max_pixels, draft_px=draft_px)
    tensor = tensor_of(data)
    if tensor.ndim != 3 or not tensor.numel():
        raise InputError(
            f"the list has the shape {list(tensor.shape)}; send [channel][row][column] of numbers"
        )
    return tensor
