"""Drawings as tensors and as files."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

MAX_PIXELS = 40_000_000


def pixels(data: bytes) -> Tensor:
    """Return an image as 3 x height x width, from 0 to 1.

    Raises:
        ValueError: as for `shrunk`.
    """
    return shrunk(data, MAX_PIXELS)[0]


def shrunk(data: bytes, longest_px: int) -> tuple[Tensor, float]:
    """Return an image whose sides are not longer, and how many times as large it was.

    Raises:
        ValueError: the bytes are no image, or it is too large.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            longest = max(image.size)
            if image.width * image.height <= MAX_PIXELS:
                image.draft("RGB", (longest_px, longest_px))  # a JPEG is decoded smaller
                paper = on_paper(image)
                paper.thumbnail((longest_px, longest_px))
                return tensor(paper), longest / max(paper.size)
    except UnidentifiedImageError:
        raise ValueError("this is no picture; send a PNG or a JPEG") from None
    except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
        raise ValueError(f"this drawing cannot be read: {error}; send a PNG or a JPEG") from None
    raise ValueError(f"this drawing has more than {MAX_PIXELS:,} pixels; send a smaller one")


def tensor(image: Image.Image) -> Tensor:
    """Return an image in RGB as 3 x height x width, from 0 to 1."""
    tones = np.asarray(image, np.float32)
    return torch.from_numpy(tones / 255).permute(2, 0, 1).contiguous()


def on_paper(image: Image.Image) -> Image.Image:
    """Return an image upright and in RGB; what is transparent becomes white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits; `convert` would make most of it white
        image = Image.fromarray((np.asarray(image) // 257).clip(0, 255).astype(np.uint8))
    if image.mode in {"RGBA", "LA", "P"}:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def png(image: Image.Image) -> bytes:
    """Return an image as the bytes of a PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def part(data: bytes) -> dict[str, str]:
    """Return the bytes of a PNG as a part of a result in JSON."""
    return {"content_type": "image/png", "base64": base64.b64encode(data).decode()}
