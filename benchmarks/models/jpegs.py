"""What decodes a JPEG fastest: `python -m benchmarks.models.jpegs`.

The handlers need a Pillow image, which they resize, or the tones as a tensor (3, H, W). Each
decoder that is installed (`pip install simplejpeg opencv-python-headless pyvips pyvips-binary`)
makes both of the same file, in turn with Pillow. The ratio is Pillow's time by its time. `differ`
is the largest and the mean difference of the tones. `draft` compares the square that
`image_classifier` makes of a drafted image with that of the whole one.
"""

from __future__ import annotations

import importlib
import io
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

from benchmarks.common.inputs import jpegs
from benchmarks.common.tables import Table
from handlers.common.images import DEFAULT_MAX_PIXELS, decode, is_upright_jpeg, to_rgb
from handlers.common.vision import centre_square, pixels

ROUNDS: Final = 25
#: Each takes its module and a JPEG, and returns an array (H, W, 3).
DECODERS: Final[dict[str, Callable[[Any, bytes], Any]]] = {
    "simplejpeg": lambda module, jpeg: module.decode_jpeg(jpeg, "RGB"),
    "cv2": lambda module, jpeg: module.imdecode(
        np.frombuffer(jpeg, np.uint8), module.IMREAD_COLOR_RGB
    ),
    "pyvips": lambda module, jpeg: module.Image.new_from_buffer(jpeg, "").numpy(),
}


def checked(jpeg: bytes) -> bytes:
    """Return a JPEG that need not be turned and is not too large, which only Pillow looks at."""
    if not is_upright_jpeg(jpeg, DEFAULT_MAX_PIXELS):
        raise ValueError("Pillow has to decode this file")
    return jpeg


def image_of(read: Callable[[bytes], Any], jpeg: bytes) -> Any:
    """Return a Pillow image."""
    return Image.fromarray(read(checked(jpeg)))


def tensor_of(read: Callable[[bytes], Any], jpeg: bytes) -> Any:
    """Return the tones (3, H, W)."""
    return torch.from_numpy(read(checked(jpeg))).permute(2, 0, 1).contiguous()


def pillow_tensor(jpeg: bytes) -> Any:
    """Return them as `object_detector` does."""
    return pixels(to_rgb(decode(jpeg)))


def pillow_array(jpeg: bytes) -> Any:
    """Return the tones (H, W, 3)."""
    return np.array(to_rgb(decode(jpeg)))


def ratio(base: Callable[[], Any], other: Callable[[], Any]) -> str:
    """Return by what the other is faster, measured in turn, and the time of the base."""
    ratios, times = [], []
    for n in range(2 * ROUNDS + 2):
        started = time.perf_counter()
        for _ in range(8):
            (other if n % 2 else base)()
        times.append((time.perf_counter() - started) / 8)
        if n % 2 and n > 1:
            ratios.append(times[-2] / times[-1])
    return f"{median(ratios):.2f} of {median(times[2::2]) * 1000:.2f} ms"


def differ(one: Any, other: Any) -> str:
    """Return the largest difference of two images or tensors, and the mean."""
    gap = np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int))
    return f"{gap.max()}, {gap.mean():.2f}"


def main() -> None:
    torch.set_num_threads(1)
    os.environ["VIPS_CONCURRENCY"] = "1"
    jpeg = jpegs(2)[1]
    image, tones = partial(decode, jpeg), partial(pillow_tensor, jpeg)
    table = Table("decoder", "image", "tensor", "differ")
    table.add("array of Pillow", "", ratio(tones, partial(tensor_of, pillow_array, jpeg)), "0, 0")
    for name, call in DECODERS.items():
        try:
            read = partial(call, importlib.import_module(name))
        except ImportError as error:
            print(f"# without {name}: {error}")
            continue
        as_image, as_tensor = partial(image_of, read, jpeg), partial(tensor_of, read, jpeg)
        gap = differ(to_rgb(image()), as_image())
        table.add(name, ratio(image, as_image), ratio(tones, as_tensor), gap)
    for scale in (1, 2, 4):
        file = io.BytesIO()
        size = [side * scale for side in image().size]
        image().resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=90)
        whole = partial(decode, file.getvalue())
        draft = partial(whole, draft_px=256)
        squares = [centre_square(to_rgb(one()), 256, 224) for one in (whole, draft)]
        table.add(f"draft of {size[0]} px", ratio(whole, draft), "", differ(*squares))


if __name__ == "__main__":
    main()
