"""Decompresses message bodies by kombu's names of methods, with a limit on the result."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Final

from headrace.errors import InvalidRequest

#: How many bytes one compressed body may become.
DECOMPRESSED_MAX_BYTES: Final = 256 * 1024 * 1024
#: How much memory an LZMA header may request; its strongest preset needs 65 MiB.
LZMA_MAX_BYTES: Final = 128 * 1024 * 1024


def _zlib(body: bytes) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    return stream.decompress(body, DECOMPRESSED_MAX_BYTES), stream.eof


def _bz2(body: bytes) -> tuple[bytes, bool]:
    stream = bz2.BZ2Decompressor()
    return stream.decompress(body, DECOMPRESSED_MAX_BYTES), stream.eof


def _lzma(body: bytes) -> tuple[bytes, bool]:
    stream = lzma.LZMADecompressor(memlimit=LZMA_MAX_BYTES)
    return stream.decompress(body, DECOMPRESSED_MAX_BYTES), stream.eof


METHODS: Final[dict[str, Callable[[bytes], tuple[bytes, bool]]]] = {
    "application/x-gzip": _zlib,  # kombu's name; its bytes are a zlib stream
    "application/x-bz2": _bz2,
    "application/x-lzma": _lzma,
}


def decompress(body: bytes, method: str) -> bytes:
    """Decompress a body by its `compression` header.

    Raises:
        InvalidRequest: an unknown method, broken data, or more than DECOMPRESSED_MAX_BYTES.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidRequest(f"compression {method!r} is not supported; use one of {known}")
    try:
        text, complete = METHODS[method](body)
    except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
        raise InvalidRequest(f"the body is not {method}: {error}") from None
    if not complete:
        raise InvalidRequest(
            f"the compressed body is incomplete, or has more than {DECOMPRESSED_MAX_BYTES} bytes"
        )
    return text
