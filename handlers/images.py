"""Decodes the bytes of a request to a Pillow image; every failure is an `InputError`.

Inputs are untrusted. The format must be in a short list, the size is checked in the header before
anything is decoded, and any error that Pillow raises becomes an `InputError`.
"""

from __future__ import annotations

import io
import warnings
from typing import Final

from PIL import Image, ImageOps, UnidentifiedImageError

from headrace.errors import InputError

#: The accepted formats. Pillow has dozens more, some of them with parsers that see little use.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
DEFAULT_MAX_PIXELS: Final = 50_000_000
#: Above this Pillow itself warns of a decompression bomb.
HIGHEST_MAX_PIXELS: Final = 89_478_485
DRAWING_SIDE_PX: Final = 32

SEND_AN_IMAGE: Final = (
    "send the bytes of a PNG or JPEG as the request's body, "
    'or {"content_type": "image/png", "base64": "..."} as the input'
)


def decode(
    data: object, *, max_pixels: int = DEFAULT_MAX_PIXELS, draft_px: int | None = None
) -> Image.Image:
    """Return the first frame of an image, decoded and turned upright.

    Args:
        data: the input, as the handler got it.
        max_pixels: an image with more pixels is refused before it is decoded.
        draft_px: a JPEG may be decoded at a smaller size, with no side below this, which saves most
            of the work.

    Raises:
        InputError: it is not an image, cannot be decoded, or is too large.
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
            f"not an image: {len(data)} bytes in none of the formats {', '.join(FORMATS)}; "
            f"{SEND_AN_IMAGE}"
        ) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(f"more than {HIGHEST_MAX_PIXELS:,}", max_pixels) from None
    except Exception as error:  # noqa: BLE001 - parsers raise any error on a broken file
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
    """Return a small drawing as a PNG: the example of every handler that takes images.

    Pillow imports its formats here, so that no job waits for it.

    Args:
        max_pixels: the handler's limit; above it no drawing is returned.
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
    """Return the image in 8-bit RGB; transparent parts become white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return _eight_bit(image).convert("RGB")


def to_grey(image: Image.Image) -> Image.Image:
    """Return the image in 8-bit grey; transparent parts get the tone that contrasts with it."""
    if not image.has_transparency_data:
        return _eight_bit(image).convert("L")
    grey, alpha = image.convert("LA").split()
    histogram = grey.histogram(alpha.point(lambda value: 255 if value > 127 else 0))
    visible = sum(histogram)
    bright = sum(count for tone, count in enumerate(histogram) if tone > 127)
    paper = 0 if bright * 2 > visible else 255
    return Image.composite(grey, Image.new("L", grey.size, paper), alpha)


def _eight_bit(image: Image.Image) -> Image.Image:
    # convert() clips 16-bit tones at 255, which gives a white image.
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda value: value / 257).convert("L")
    return image


def _too_large(size: str, max_pixels: int) -> InputError:
    return InputError(
        f"the image is too large: {size} pixels, at most {max_pixels:,} are allowed; "
        "send a smaller one"
    )


def _json_name(data: object) -> str:
    if isinstance(data, str):
        return "text"
    names = {dict: "a JSON object", list: "a JSON array", type(None): "null", bool: "a boolean"}
    return names.get(type(data), "a JSON number")
