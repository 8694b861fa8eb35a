"""Images as files, for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image as a file of this kind; `options` are Pillow's."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, depth: int, color: int, row: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of one row of pixels, with further chunks before them."""
    header = struct.pack(">IIBBBBB", width, 1, depth, color, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def with_segment(jpeg: bytes, marker: int, body: bytes) -> bytes:
    """A JPEG with a segment more at its beginning."""
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def oriented(orientation: int) -> Image.Exif:
    """EXIF data with this orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
