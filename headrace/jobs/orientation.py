"""The orientation of a photo, which its EXIF data has."""

from __future__ import annotations

from typing import Any, Final

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
