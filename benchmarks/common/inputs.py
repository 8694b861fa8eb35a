"""The inputs that several benchmarks send: a small JSON, and photographs."""

from __future__ import annotations

import io
from typing import Final

#: The body of a request, as clients write it.
BODY: Final = b'{"x": 1}'
#: The same input in a message.
INPUT: Final = b'{"x":1}'
#: The images of a batch.
BATCH: Final = 32
#: The width and height of a photograph.
CROP_PX: Final = (500, 375)


def jpegs(count: int) -> list[bytes]:
    """Return different crops of the two photographs of scikit-learn."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    width, height = CROP_PX
    made = []
    for n in range(count):
        image = photographs[n % len(photographs)]
        left = n * 13 % (image.width - width)
        top = n * 7 % (image.height - height)
        file = io.BytesIO()
        image.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made
