"""Numbers against the definitions of torchvision's transforms, which is not installed here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD
from ts.handler_utils.transforms import CenterCrop, Normalize, Resize, ToTensor, imagenet_transform
from ts.torch_handler.object_detector import takes_list


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    tones = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3))
    return Image.fromarray(tones.astype(np.uint8)).convert(mode)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((300, 500), (256, 426)),  # 256 * 500 / 300 = 426.67, cut off
        ((500, 300), (426, 256)),
        ((100, 100), (256, 256)),
        ((256, 700), (256, 700)),
        ((1, 10), (256, 2560)),
    ],
)
def test_the_shorter_side_is_resized(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert Resize(256)(photo(*size)).size == expected


def test_resizing_is_a_triangle_filter_as_wide_as_the_reduction() -> None:
    image = Resize(4)(photo(8, 8, "L"))
    source = np.asarray(photo(8, 8, "L"), float)
    expected = resampled(resampled(source, 4).T, 4).T
    # Pillow rounds between its two passes.
    assert np.abs(np.asarray(image, float) - expected).max() <= 1


def resampled(rows: Any, size: int) -> Any:
    """Bilinear with antialiasing, along the second axis, straight from its definition."""
    scale = rows.shape[1] / size
    out = np.zeros((rows.shape[0], size))
    for x in range(size):
        centre = (x + 0.5) * scale
        weights = [max(0.0, 1 - abs(n + 0.5 - centre) / scale) for n in range(rows.shape[1])]
        out[:, x] = rows @ np.array(weights) / sum(weights)
    return out


def test_the_crop_is_the_middle_and_halves_round_to_even() -> None:
    image = photo(227, 229)
    cut = np.asarray(CenterCrop(224)(image))
    # (229 - 224) / 2 = 2.5 becomes 2, (227 - 224) / 2 = 1.5 becomes 2.
    assert np.array_equal(cut, np.asarray(image)[2:226, 2:226])


def test_a_smaller_image_gets_a_black_margin_like_torchvisions() -> None:
    image = photo(3, 10)
    cut = np.asarray(CenterCrop(6)(image))
    expected = np.zeros((6, 6, 3), np.uint8)
    expected[:, 1:4] = np.asarray(image)[2:8]  # padded (3 // 2, 2) left and right
    assert np.array_equal(cut, expected)


@pytest.mark.parametrize(
    ("mode", "channels", "kind"),
    [("RGB", 3, torch.float32), ("L", 1, torch.float32), ("RGBA", 4, torch.float32),
     ("I", 1, torch.int32), ("F", 1, torch.float32), ("1", 1, torch.float32)],
)  # fmt: skip
def test_tensors_have_the_channels_of_the_mode(mode: str, channels: int, kind: torch.dtype) -> None:
    image = photo(5, 4, mode)
    tensor = ToTensor()(image)
    assert tensor.shape == (channels, 4, 5)
    assert tensor.dtype is kind
    for y in range(4):
        for x in range(5):
            pixel = image.getpixel((x, y))
            tones = pixel if isinstance(pixel, tuple) else (pixel,)
            scale = 1 if mode in {"I", "F"} else 255
            expected = [float(tone or 0) / scale for tone in tones]
            assert tensor[:, y, x].tolist() == pytest.approx(expected)


def test_normalising() -> None:
    image = torch.rand(3, 2, 2)
    done = Normalize([0.1, 0.2, 0.3], [0.5, 2, 4])(image)
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 2.0), (0.3, 4.0)]):
        assert torch.allclose(done[channel], (image[channel] - mean) / std)


def test_the_whole_preparation() -> None:
    image = photo(640, 480)
    resized = image.resize((341, 256), Image.Resampling.BILINEAR)
    tones = np.asarray(resized, np.float32)[16:240, 58:282] / 255
    expected = (tones - np.array(IMAGENET_MEAN, np.float32)) / np.array(IMAGENET_STD, np.float32)
    prepared = imagenet_transform()(image)
    assert prepared.shape == (3, 224, 224)
    assert np.allclose(prepared.permute(1, 2, 0).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK"])
def test_images_of_other_modes_are_prepared_too(mode: str) -> None:
    assert imagenet_transform(8, 8)(photo(9, 9, mode)).shape == (3, 8, 8)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_program_tells_whether_it_takes_a_list() -> None:
    class OfList(torch.nn.Module):
        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            return images[0]

    class OfTensor(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images

    assert takes_list(torch.jit.script(OfList()))
    assert not takes_list(torch.jit.script(OfTensor()))
    assert not takes_list(OfList())


@pytest.mark.parametrize("size", [(1, 16_000), (16_000, 1), (3, 1201), (2, 333)])
def test_of_a_long_image_only_the_middle_grows(size: tuple[int, int]) -> None:
    image = photo(*size)
    resized = Resize(64)(image)
    assert max(resized.size) < 64 * 33
    if max(size) < 2000:
        longer = 64 * max(size) // min(size)
        whole = image.resize((64, longer), Image.Resampling.BILINEAR)
        assert CenterCrop(56)(resized).tobytes() == CenterCrop(56)(whole).tobytes()
