"""The option `decode: gpu`, with a decoder that is torchvision's in form and Pillow in fact."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from handlers.common.image_modules import JpegDecoder, jpeg_decoder
from handlers.common.images import is_upright_jpeg
from handlers.image_classifier import ImageClassifier
from headrace.errors import ConfigError, InputError
from headrace.handler import Context
from tests.harness import pictures

ORIENTATION = 0x0112


def photograph(
    size: tuple[int, int] = (300, 200), turned: int = 1, mode: str = "RGB"
) -> Image.Image:
    """An image whose tones change smoothly, with the tag that says how it is turned."""
    across, down = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    tones = np.stack([across, down, (across + down) / 2], axis=2).astype(np.uint8)
    image = Image.fromarray(tones).convert(mode)
    image.getexif()[ORIENTATION] = turned
    return image


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    return pictures.encoded(image, kind, exif=image.getexif(), quality=95)


class Decoder:
    """Decodes as torchvision would, on the CPU.

    Attributes:
        count: how many images it has decoded.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error

    def __call__(self, data: Tensor, *, mode: str, device: torch.device) -> Tensor:
        assert mode == "RGB"
        if self.error is not None:
            raise self.error
        self.count += 1
        with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
            tones = np.array(image.convert("RGB"))
        return torch.from_numpy(tones).permute(2, 0, 1)


def context(device: str = "cpu", **options: Any) -> Context:
    return Context("m", "1.0", device, Path(), options=options, channels_last="off")


@pytest.fixture(scope="module")
def handler() -> ImageClassifier:
    made = ImageClassifier()
    made.initialize(context(resize_px=72, crop_px=64))
    return made


@pytest.fixture
def decoder(handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """What the handler decodes JPEGs with."""
    fake = Decoder()
    monkeypatch.setattr(handler, "decoder", JpegDecoder(fake, "cpu"))
    return fake


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (64, 64), (40, 500)])
def test_its_item_is_that_of_the_cpu_but_for_rounding(
    handler: ImageClassifier, decoder: Decoder, size: tuple[int, int]
) -> None:
    data = encoded(photograph(size))
    item = handler.item(data)
    assert decoder.count == 1
    handler.decoder = None
    by_pillow = handler.item(data)
    assert (item.shape, item.dtype) == (by_pillow.shape, torch.uint8)
    assert (item.float() - by_pillow.float()).abs().mean() < 4


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encoded(photograph(), "PNG"), "no JPEG"),
        (encoded(photograph(turned=6)), "it must be turned"),
        (encoded(photograph(mode="CMYK")), "four colours"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_gpu_does_not_decode_is_decoded_on_the_cpu(
    handler: ImageClassifier, decoder: Decoder, data: bytes, why: str
) -> None:
    assert handler.item(data).shape == (64, 64, 3), why
    assert decoder.count == 0


def test_a_file_that_it_cannot_decode_goes_to_the_cpu(
    handler: ImageClassifier, decoder: Decoder
) -> None:
    decoder.error = RuntimeError("nvjpegDecode failed: 2")
    assert handler.item(encoded(photograph())).shape == (64, 64, 3)
    with pytest.raises(InputError, match="cannot be decoded"):
        handler.item(encoded(photograph())[:1000])


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: device-side assert"), torch.OutOfMemoryError("no memory")]
)
def test_a_failed_device_is_no_bad_file(
    handler: ImageClassifier, decoder: Decoder, error: Exception
) -> None:
    decoder.error = error
    with pytest.raises(RuntimeError, match=str(error)):
        handler.item(encoded(photograph()))


def test_an_image_that_is_too_large_is_refused_before_it_is_decoded(
    handler: ImageClassifier, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(photograph())
    assert is_upright_jpeg(data, 60_000)
    assert not is_upright_jpeg(data, 59_999)
    limited = SimpleNamespace(max_pixels=100, resize_px=72, crop_px=64)
    monkeypatch.setattr(handler, "options", limited)
    with pytest.raises(InputError, match="too large"):
        handler.item(data)
    assert decoder.count == 0


def test_without_a_cuda_device_the_load_fails() -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device, and the model runs on cpu"):
        ImageClassifier().initialize(context(decode="gpu"))


def test_without_torchvision_the_load_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ConfigError, match=r"options\.decode: gpu needs torchvision"):
        jpeg_decoder(context("cuda:0"))


def test_a_torchvision_without_cuda_is_named_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Decoder(RuntimeError("not compiled with nvJPEG support"))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    fake = SimpleNamespace(decode_jpeg=without)
    monkeypatch.setitem(sys.modules, "torchvision.io", fake)
    with pytest.raises(ConfigError, match="cannot decode a JPEG on cuda:0: not compiled"):
        jpeg_decoder(context("cuda:0"))


def test_a_preprocess_process_refuses_it() -> None:
    with pytest.raises(ConfigError, match="decodes in the model process"):
        ImageClassifier().initialize_preprocess(context(decode="gpu"))
