"""Images as files, for tests."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image as a file of this kind; `options` are Pillow's."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
