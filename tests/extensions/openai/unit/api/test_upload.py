"""What the form of an upload may hold besides its file."""

from __future__ import annotations

import pytest

from api.http.forms import OUTSIDE_MAX_BYTES
from extensions.openai.api.upload import Upload
from headrace.errors import InvalidRequest

TYPE = "multipart/form-data; boundary=b"
FILE = b"--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\ndata\r\n--b--\r\n"


def fed(*pieces: bytes) -> Upload:
    upload = Upload(TYPE, 1000)
    for piece in pieces:
        upload.feed(piece)
    return upload


def test_a_short_text_around_the_parts_is_ignored() -> None:
    upload = fed(b"\r\n", FILE, b"epilogue")
    upload.check_complete()
    assert upload.take(100) == b"data"


@pytest.mark.parametrize("before", [b"\r\n", FILE], ids=["before the parts", "behind them"])
def test_a_text_without_end_around_the_parts_is_refused(before: bytes) -> None:
    piece = b"\r\n" + b"x" * 4094
    pieces = [piece] * (OUTSIDE_MAX_BYTES // len(piece) - 1)
    fed(before, *pieces)
    with pytest.raises(InvalidRequest, match="outside its parts"):
        fed(before, *pieces, piece, piece)
