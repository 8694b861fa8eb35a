"""From the bytes of a request to a Pillow image, and every way to fail as an input's own error.

The input comes from anybody: its format is checked against a short list, its size is read from the
header before anything is decoded, and whatever Pillow raises becomes an `InputError`.
"""

from __future__ import annotations

import io
import warnings
from typing import Final

from PIL import Image, ImageOps, UnidentifiedImageError

from headrace.errors import InputError

#: Formats that are tried; Pillow knows dozens more, some with parsers that few have looked at.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
DEFAULT_MAX_PIXELS: Final = 50_000_000
#: Above this Pillow itself warns of a decompression bomb, whatever is asked of us.
HIGHEST_MAX_PIXELS: Final = 89_478_485
DRAWING_SIDE_PX: Final = 32

SEND_AN_IMAGE: Final = (
    "send the bytes of a PNG or JPEG as the request's body, "
    'or {"content_type": "image/png", "base64": "..."} as the input'
)


def decode(
    data: object, *, max_pixels: int = DEFAULT_MAX_PIXELS, draft_px: int | None = None
) -> Image.Image:
    """The first frame of an image, decoded, the right way up.

    Args:
        data: the input, as the handler got it.
        max_pixels: more than this are refused before they are decoded.
        draft_px: a JPEG may come smaller, but with no side under this; it saves most of the work.

    Raises:
        InputError: it is no image, cannot be decoded, or is too large.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InputError(f"expected an image, got {_json_name(data)}; {SEND_AN_IMAGE}")
    if not data:
        raise InputError(f"expected an image, got 0 bytes; {SEND_AN_IMAGE}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decode(bytes(data), max_pixels, draft_px)
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"not an image: {len(data)} bytes that are none of {', '.join(FORMATS)}; "
            f"{SEND_AN_IMAGE}"
        ) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(f"more than {HIGHEST_MAX_PIXELS:,}", max_pixels) from None
    except Exception as error:  # noqa: BLE001 - parsers raise all sorts on a broken file
        raise InputError(
            f"the image cannot be decoded: {str(error) or type(error).__name__}; "
            "is the file complete?"
        ) from None


def _decode(data: bytes, max_pixels: int, draft_px: int | None) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise _too_large(f"{width} x {height}", max_pixels)
        if draft_px is not None:
            image.draft(None, (draft_px, draft_px))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return image


def drawing(max_pixels: int = DEFAULT_MAX_PIXELS) -> bytes | None:
    """A stroke on paper as a PNG: an example for every handler that takes images.

    Pillow imports its formats when they are first needed; here, so that no job waits for that.

    Args:
        max_pixels: what the handler takes; None is given if it does not take even this.
    """
    Image.init()
    if max_pixels < DRAWING_SIDE_PX**2:
        return None
    image = Image.new("RGB", (DRAWING_SIDE_PX, DRAWING_SIDE_PX), "white")
    image.paste("black", (DRAWING_SIDE_PX // 3, 0, DRAWING_SIDE_PX // 2, DRAWING_SIDE_PX))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB; what is transparent becomes white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return _eight_bit(image).convert("RGB")


def to_grey(image: Image.Image) -> Image.Image:
    """The image in 8-bit grey; what is transparent gets the tone that sets off what is not."""
    if not image.has_transparency_data:
        return _eight_bit(image).convert("L")
    grey, alpha = image.convert("LA").split()
    histogram = grey.histogram(alpha.point(lambda value: 255 if value > 127 else 0))
    visible = sum(histogram)
    bright = sum(count for tone, count in enumerate(histogram) if tone > 127)
    paper = 0 if bright * 2 > visible else 255
    return Image.composite(grey, Image.new("L", grey.size, paper), alpha)


def _eight_bit(image: Image.Image) -> Image.Image:
    # convert() would cut 16-bit tones off at 255, which leaves a white image.
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda value: value / 257).convert("L")
    return image


def _too_large(size: str, max_pixels: int) -> InputError:
    return InputError(
        f"the image is too large: {size} pixels, and at most {max_pixels:,} are taken; "
        "send a smaller one"
    )


def _json_name(data: object) -> str:
    if isinstance(data, str):
        return "text"
    names = {dict: "a JSON object", list: "a JSON array", type(None): "null", bool: "a boolean"}
    return names.get(type(data), "a JSON number")
