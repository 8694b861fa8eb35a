"""What handlers of images share: how bytes become a Pillow image.

Inputs are untrusted. The format must be in a short list. The size is checked in the header before
anything is decoded. Any error that Pillow raises becomes an `InputError`.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from PIL import Image, ImageChops, ImageFile, UnidentifiedImageError
from typing_extensions import override

from handlers.common.items import ItemHandler
from headrace.errors import InputError, InvalidRequest
from headrace.jobs.values.encoding import unbase64
from headrace.jobs.values.media_types import UPRIGHT, exif_orientation
from headrace.jobs.values.media_types import upright as turned_upright

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
_APP0, _APP1, _APP14, _COMMENT, _SCAN = 0xE0, 0xE1, 0xEE, 0xFE, 0xDA
#: The least lengths with which a JPEG decoder reads these segments.
_LENGTHS: Final = {_APP0: 16, _APP14: 14}
#: What scales a transparent tone of a PNG to the depth that Pillow decodes to, by Pillow's rawmode.
_KEY_SCALES: Final = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}


def pixels_only(data: bytes) -> bytes:
    """Return a PNG or JPEG without metadata but EXIF, and its first image; other data as it is."""
    if data.startswith(_PNG):
        spans = _png_spans(data)
    elif data.startswith(_JPEG):
        spans = _jpeg_spans(data)
    else:
        return data
    return b"".join(memoryview(data)[start:end] for start, end in spans)


def _png_spans(data: bytes) -> list[tuple[int, int]]:
    spans, at = [(0, len(_PNG))], len(_PNG)
    while at + 8 <= len(data):
        kind, end = data[at + 4 : at + 8], at + 12 + int.from_bytes(data[at : at + 4], "big")
        critical = not kind[0] & 0x20
        if critical or kind == b"tRNS" or (kind == b"eXIf" and _is_whole(data[at:end])):
            spans.append((at, end))
        if kind == b"IEND":
            break
        at = end
    return spans


def _is_whole(chunk: bytes) -> bool:
    return zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:], "big")


def _jpeg_spans(data: bytes) -> list[tuple[int, int]]:
    spans, at = [(0, len(_JPEG))], len(_JPEG)
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:
            at += 1
            continue
        if marker == _SCAN:
            break
        end = at + 2 + length
        if marker in _LENGTHS:
            kept = length >= _LENGTHS[marker]
        elif marker == _APP1:
            kept = data[at + 4 : at + 10] == b"Exif\0\0"
        else:
            kept = not (_APP0 <= marker <= 0xEF or marker == _COMMENT)
        if kept:
            spans.append((at, end))
        at = end
    return [*spans, (at, len(data))]


def scale_key(image: Image.Image) -> None:
    """Scale the transparent tone of a PNG that is opened, and not yet decoded.

    Pillow keeps the number of the file, also if it decodes to another depth.
    """
    key = image.info.get("transparency")
    if image.format != "PNG" or key is None or not isinstance(image, ImageFile.ImageFile):
        return
    arguments: Any = image.tile[0].args if image.tile else ""
    scale = _KEY_SCALES.get(arguments if isinstance(arguments, str) else str(arguments[0]))
    if scale is not None:
        scaled = [int(tone * scale) for tone in (key if isinstance(key, tuple) else (key,))]
        image.info["transparency"] = tuple(scaled) if isinstance(key, tuple) else scaled[0]


#: The accepted formats. Pillow has dozens more, some of them with parsers that see little use.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
DEFAULT_MAX_PIXELS: Final = 50_000_000
#: Above this Pillow itself warns of a decompression bomb.
HIGHEST_MAX_PIXELS: Final = 89_478_485
#: The longest side, as in a JPEG. Pillow needs memory and time for each row, however short it is.
HIGHEST_SIDE_PX: Final = 65_535
DRAWING_SIDE_PX: Final = 32
PHOTOGRAPH_PX: Final = (500, 375)

SEND_AN_IMAGE: Final = (
    "send the bytes of a PNG or JPEG as the request's body, "
    'or {"content_type": "image/png", "base64": "..."} as the input'
)


def decode(
    data: object,
    *,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    draft_px: int | None = None,
    upright: bool = True,
    formats: Sequence[str] = FORMATS,
) -> Image.Image:
    """Return the first frame of an image, decoded and turned upright.

    Args:
        data: the input, as the handler got it.
        max_pixels: an image with more pixels is refused before it is decoded, and so is one with
            more than HIGHEST_SIDE_PX on a side. None for no limit but Pillow's own.
        draft_px: a JPEG may be decoded at a smaller size, with no side below this, which saves most
            of the work.
        upright: turn the image by its EXIF data.

    Raises:
        InputError: it is not an image, cannot be decoded, or is too large.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InputError(f"expected an image, got {_json_name(data)}; {SEND_AN_IMAGE}")
    if not data:
        raise InputError(f"expected an image, got 0 bytes; {SEND_AN_IMAGE}")
    try:
        with warnings.catch_warnings():
            limited = max_pixels is not None and max_pixels <= HIGHEST_MAX_PIXELS
            action: Literal["error", "ignore"] = "error" if limited else "ignore"
            warnings.simplefilter("ignore")
            warnings.simplefilter(action, Image.DecompressionBombWarning)
            image = _opened(bytes(data), max_pixels, draft_px, formats)
            turned: Image.Image = turned_upright(image) if upright else image
            return turned
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"not an image: {len(data)} bytes in none of the formats {', '.join(formats)}; "
            f"{SEND_AN_IMAGE}"
        ) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(f"more than {HIGHEST_MAX_PIXELS:,}", max_pixels) from None
    except Exception as error:  # noqa: BLE001 - parsers raise any error on a broken file
        raise InputError(
            f"the image cannot be decoded: {str(error) or type(error).__name__}; "
            "is the file complete?"
        ) from None


def _opened(
    data: bytes, max_pixels: int | None, draft_px: int | None, formats: Sequence[str]
) -> Image.Image:
    with Image.open(io.BytesIO(pixels_only(data)), formats=list(formats)) as image:
        if max_pixels is not None:
            _check_size(image.size, max_pixels)
        if draft_px is not None:
            image.draft(None, (draft_px, draft_px))
        scale_key(image)
        image.load()
        return image


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise _too_large(f"{width} x {height}", max_pixels)
    if max(size) > HIGHEST_SIDE_PX:
        raise InputError(
            f"the image is too large: {width} x {height} pixels, at most {HIGHEST_SIDE_PX:,} "
            "on a side are allowed; send a smaller one"
        )


def is_upright_jpeg(data: object, max_pixels: int) -> bool:
    """Return whether data is a JPEG in grey or RGB, within the limits, that need not be turned.

    It reads the header alone, so the rest of the file may be broken.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return False
    try:
        with Image.open(io.BytesIO(pixels_only(bytes(data))), formats=["JPEG"]) as image:
            _check_size(image.size, max_pixels)
            return image.mode in ("L", "RGB") and exif_orientation(image) == UPRIGHT
    except Exception:  # noqa: BLE001 - parsers raise any error, and `decode` names what is wrong
        return False


def from_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, such as an image in JSON; raise InputError if none."""
    try:
        return unbase64(text)
    except InvalidRequest:
        raise InputError(
            f"expected an image, got text that is not base64; {SEND_AN_IMAGE}"
        ) from None


def drawing(max_pixels: int = DEFAULT_MAX_PIXELS) -> bytes | None:
    """Return a small drawing as a PNG, the example of image handlers; None above `max_pixels`.

    Pillow imports its formats here, so that no job waits for it.
    """
    Image.init()
    if max_pixels < DRAWING_SIDE_PX**2:
        return None
    image = Image.new("RGB", (DRAWING_SIDE_PX, DRAWING_SIDE_PX), "white")
    image.paste("black", (DRAWING_SIDE_PX // 3, 0, DRAWING_SIDE_PX // 2, DRAWING_SIDE_PX))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def photograph(max_pixels: int = DEFAULT_MAX_PIXELS) -> bytes | None:
    """Return a JPEG of a common size, an example that takes as long to decode as a client's image.

    Where `preprocess` runs is chosen with it. Above `max_pixels` it is the drawing.
    """
    small = drawing(max_pixels)
    if max_pixels < PHOTOGRAPH_PX[0] * PHOTOGRAPH_PX[1]:
        return small
    file = io.BytesIO()
    Image.effect_mandelbrot(PHOTOGRAPH_PX, (-2, -1, 1, 1), 60).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def shrunk(image: Image.Image, side_px: int) -> Image.Image:
    """Return an 8-bit image with no side above `side_px`; no side becomes 0."""
    longest = max(image.size)
    if longest <= side_px:
        return image
    width, height = (max(1, round(side * side_px / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX, reducing_gap=2.0)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in 8-bit RGB; transparent parts become white."""
    image = _eight_bit(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def to_grey(image: Image.Image) -> Image.Image:
    """Return the image in 8-bit grey; transparent parts get the tone that contrasts with it."""
    image = _eight_bit(image)
    if not image.has_transparency_data:
        return image.convert("L")
    grey, alpha = image.convert("LA").split()
    histogram = grey.histogram(alpha.point(lambda value: 255 if value > 127 else 0))
    visible = sum(histogram)
    bright = sum(count for tone, count in enumerate(histogram) if tone > 127)
    paper = 0 if bright * 2 > visible else 255
    return Image.composite(grey, Image.new("L", grey.size, paper), alpha)


def _eight_bit(image: Image.Image) -> Image.Image:
    # convert() clips 16-bit tones at 255, which gives a white image.
    if not image.mode.startswith("I"):
        return image
    wide = image.convert("I")
    grey = wide.point(lambda value: value / 257 + 0.5).convert("L")
    grey.info.pop("transparency", None)
    key = image.info.get("transparency")
    if key is None:
        return grey
    # The tone `key` becomes 0, its neighbours become more.
    alpha = ImageChops.add(
        wide.point(lambda value: value - key).convert("L"),
        wide.point(lambda value: key - value).convert("L"),
    )
    return Image.merge("LA", (grey, alpha.point(lambda value: 255 if value else 0)))


def _too_large(size: str, max_pixels: int | None) -> InputError:
    most = 2 * HIGHEST_MAX_PIXELS if max_pixels is None else max_pixels
    return InputError(
        f"the image is too large: {size} pixels, at most {most:,} are allowed; send a smaller one"
    )


def _json_name(data: object) -> str:
    if isinstance(data, str):
        return "text"
    if isinstance(data, dict):
        files = [str(name)[:64] for name, value in data.items() if isinstance(value, bytes)]
        if len(files) > 1:
            shown = ", ".join(map(repr, files[:3]))
            return f"{len(files)} files ({shown}) in one job; send one job for each"
        if files:
            return f"the file {files[0]!r} with other parts; send the file alone"
    names = {dict: "a JSON object", list: "a JSON array", type(None): "null", bool: "a boolean"}
    return names.get(type(data), "a JSON number")


#: The option of every handler that takes images.
MaxPixels = Annotated[int, Meta(ge=1, le=HIGHEST_MAX_PIXELS)]


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of handlers that take images and have no other option."""

    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS


class ImageHandler(ItemHandler):
    """A handler of images, with an example."""

    preprocess_per_item = True
    options_kind: type[msgspec.Struct] = ImageOptions

    @override
    def example_input(self) -> bytes | None:
        return drawing(self.options.max_pixels)
