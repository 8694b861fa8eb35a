"""Decompresses message bodies by kombu's names of methods, with a limit on the result."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.errors import InvalidRequest

#: How many bytes one compressed body may become.
DECOMPRESSED_MAX_BYTES: Final = 256 * 1024 * 1024
#: How much memory an LZMA header may request; its strongest preset needs 65 MiB.
LZMA_MAX_BYTES: Final = 128 * 1024 * 1024
#: What makes a decompressor of each method.
METHODS: Final[dict[str, Callable[[], Any]]] = {
    "application/x-gzip": zlib.decompressobj,  # kombu's name; its bytes are a zlib stream
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_MAX_BYTES),
}


def decompress(body: bytes, method: str) -> bytes:
    """Decompress a body by its `compression` header.

    Raises:
        InvalidRequest: an unknown method, broken data, or more than DECOMPRESSED_MAX_BYTES.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidRequest(f"compression {method!r} is not supported; use one of {known}")
    stream = METHODS[method]()
    try:
        text: bytes = stream.decompress(body, DECOMPRESSED_MAX_BYTES)
    except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
        raise InvalidRequest(f"the body is not {method}: {error}") from None
    if not stream.eof:
        raise InvalidRequest(
            f"the compressed body is incomplete, or has more than {DECOMPRESSED_MAX_BYTES} bytes"
        )
    return text
