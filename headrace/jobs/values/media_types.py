"""Media types of bytes, and sizes and orientation of images. Independent of requests."""

from __future__ import annotations

import codecs
import mimetypes
import struct
from typing import Any, Final

JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"
#: The byte order mark that some editors write before text. It is no part of the text.
BOM: Final = codecs.BOM_UTF8
#: The marks of UTF-16, which is no text here.
UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

#: Only Python's own table: with the host's, a type would depend on the host.
_TYPES: Final = mimetypes.MimeTypes()
_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
#: Where width and height are: the beginning of the file, their layout, their offset.
_SIZES: Final = (
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ">II", 16),
    (b"GIF87a", "<HH", 6),
    (b"GIF89a", "<HH", 6),
    (b"BM", "<ii", 18),
)
#: JPEG: a marker's first byte, markers without a length, and the frames that hold the size.
_MARK: Final = 0xFF
_BARE_MARKERS: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_type(body: bytes) -> str:
    """Return the media type of a PNG, JPEG, GIF or WebP; "" for everything else."""
    for signature, kind in _SIGNATURES:
        if body.startswith(signature):
            return kind
    return "image/webp" if body[:4] == b"RIFF" and body[8:12] == b"WEBP" else ""


def type_by_name(name: str) -> str | None:
    """Return the media type of a file or object by the end of its name; None if that shows none.

    A packed file (`x.json.gz`) has no type of its own: its name is that of the content.
    """
    # With "./", a colon in a name does not make it a URL.
    kind, packing = _TYPES.guess_type(f"./{name.rpartition('/')[2]}", strict=False)
    return None if packing else kind


def is_json(kind: str) -> bool:
    """Return whether a media type, in lower case and without parameters, is JSON."""
    return kind == JSON_TYPE or kind.endswith("+json")


def image_size(body: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, JPEG, GIF, WebP or BMP, from its header alone.

    Args:
        body: the image or its beginning; for a JPEG, everything before its first frame.

    Returns:
        None for another format, or if `body` does not include the size.
    """
    try:
        if body.startswith(b"\xff\xd8"):
            return _jpeg_size(body)
        for signature, layout, at in _SIZES:
            if body.startswith(signature):
                width, height = struct.unpack_from(layout, body, at)
                return width, abs(height)
        return _webp_size(body) if body[:4] == b"RIFF" and body[8:12] == b"WEBP" else None
    except (struct.error, IndexError):
        return None


def _jpeg_size(body: bytes) -> tuple[int, int] | None:
    at = 2
    while body[at] == _MARK:
        kind = body[at + 1]
        if kind == _MARK or kind in _BARE_MARKERS:
            at += 1 if kind == _MARK else 2
            continue
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", body, at + 5)
            return width, height
        (length,) = struct.unpack_from(">H", body, at + 2)
        at += 2 + length
    return None


def _webp_size(body: bytes) -> tuple[int, int] | None:
    form = body[12:16]
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 26)
        return width & 0x3FFF, height & 0x3FFF
    if form == b"VP8L":
        (bits,) = struct.unpack_from("<I", body, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8X" and len(body) >= 30:
        width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    return None


ORIENTATION_TAG: Final = 0x0112
UPRIGHT: Final = 1
#: The number of Pillow's `Transpose` that turns an image upright, by its orientation.
_TURNS: Final = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_XMP: Final = frozenset({"xmp", "XML:com.adobe.xmp"})


def exif_orientation(image: Any) -> int:
    """Return the EXIF orientation of a Pillow image, from 1 to 8.

    It is 1 if the image has no EXIF data, or has some that cannot be read. XMP does not count.
    """
    try:
        exif = image.getexif()
        if not _XMP.isdisjoint(image.info):
            # Pillow adds what XMP has.
            exif = type(exif)()
            exif.load(image.info.get("exif", b""))
        return next((value for value in range(1, 9) if value == exif.get(ORIENTATION_TAG)), UPRIGHT)
    except Exception:  # noqa: BLE001 - the parser raises any error on broken data
        return UPRIGHT


def upright(image: Any) -> Any:
    """Return a Pillow image, turned by its EXIF orientation."""
    turn = _TURNS.get(exif_orientation(image))
    return image if turn is None else image.transpose(turn)
