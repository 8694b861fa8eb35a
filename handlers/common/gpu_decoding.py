"""Decodes JPEGs on a CUDA device, by torchvision (nvJPEG)."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor

from headrace.errors import ConfigError
from headrace.handler import Context

_SIDE_PX: Final = 16


class JpegDecoder:
    """Decodes the JPEGs of one model.

    Args:
        decode: as `torchvision.io.decode_jpeg`.
        device: where the images are decoded.
    """

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
    """Return the decoder of a model, after it has decoded an image.

    Raises:
        ConfigError: the model runs on no CUDA device, or torchvision is missing or cannot do it.
    """
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
    Image.new("RGB", (_SIDE_PX, _SIDE_PX), "white").save(file, "JPEG")
    encoded = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    try:
        decode(encoded, mode="RGB", device=device)
    except Exception as error:
        raise ConfigError(
            f"{where}: torchvision cannot decode a JPEG on {context.device}: {error}",
            hint="install a torchvision that was built with CUDA, or leave the option out",
        ) from error
    return JpegDecoder(decode, context.device)
