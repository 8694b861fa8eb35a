"""The training images and the held-out images of `digits`, from scikit-learn.

For training and tests. It needs the extra `dev`; the server does not import it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HELD_OUT: Final = 360
PNG_PX: Final = 64


@dataclass(frozen=True, slots=True)
class Samples:
    """Some of the 1,797 images.

    Attributes:
        images: (N, 8, 8), ink is 1 and paper 0.
        labels: the digits.
        indices: the position of each image in scikit-learn's set.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]


def split() -> tuple[Samples, Samples]:
    """Return 1,437 images for training and 360 held-out images, always the same ones."""
    # Imported here: it takes two seconds, and `to_png` does not need it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    indices = np.arange(len(data.target))
    train, test = train_test_split(
        indices, test_size=HELD_OUT, random_state=0, stratify=data.target
    )
    images = (data.images / 16).astype(np.float32)
    labels = data.target.astype(np.int64)
    return tuple(  # type: ignore[return-value]
        Samples(images[part], labels[part], part) for part in (train, test)
    )


def to_png(image: NDArray[np.float32], *, side_px: int = PNG_PX, dark_ink: bool = True) -> bytes:
    """Return an image as a smoothly enlarged PNG."""
    tones = np.rint(image * 255).astype(np.uint8)
    if dark_ink:
        tones = 255 - tones
    buffer = io.BytesIO()
    large = Image.fromarray(tones).resize((side_px, side_px), Image.Resampling.BICUBIC)
    large.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def held_out() -> list[tuple[bytes, int]]:
    """Return the 360 held-out images as PNG, dark on light, with their labels."""
    _, test = split()
    return [
        (to_png(image), int(label)) for image, label in zip(test.images, test.labels, strict=True)
    ]
