"""What bytes are, by their beginning. Knows nothing of requests."""

from __future__ import annotations

from typing import Final

JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(body: bytes) -> str:
    """The media type of a PNG, JPEG, GIF or WebP; "" for everything else."""
    for signature, kind in _SIGNATURES:
        if body.startswith(signature):
            return kind
    return "image/webp" if body[:4] == b"RIFF" and body[8:12] == b"WEBP" else ""


def is_json(kind: str) -> bool:
    """Whether a media type, in small letters and without parameters, is JSON."""
    return kind == JSON_TYPE or kind.endswith("+json")
