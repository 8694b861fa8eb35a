"""The parts of image files that make pixels: all other parts may be broken, and are left out.

Pillow refuses a file with, for example, a broken comment or colour profile. Viewers show it.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from PIL import Image, ImageFile

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
_APP0, _APP1, _APP14, _COMMENT, _SCAN = 0xE0, 0xE1, 0xEE, 0xFE, 0xDA
#: The least lengths with which a JPEG decoder reads these segments.
_LENGTHS: Final = {_APP0: 16, _APP14: 14}
#: What scales a transparent tone of a PNG to the depth that Pillow decodes to, by Pillow's rawmode.
_KEY_SCALES: Final = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}


def pixels_only(data: bytes) -> bytes:
    """Return a PNG or JPEG without metadata other than EXIF; other data as it is.

    An animated PNG becomes its first image.
    """
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
