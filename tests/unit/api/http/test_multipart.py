"""What a form may hold besides its parts."""

from __future__ import annotations

import pytest

from api.http.multipart import OUTSIDE_MAX_BYTES, Upload, read_parts
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
    assert [part.body for part in read_parts(b"\r\n" + FILE + b"epilogue", TYPE)] == [b"data"]


@pytest.mark.parametrize("before", [b"\r\n", FILE], ids=["before the parts", "behind them"])
def test_a_text_without_end_around_the_parts_is_refused(before: bytes) -> None:
    piece = b"\r\n" + b"x" * 4094
    pieces = [piece] * (OUTSIDE_MAX_BYTES // len(piece) - 1)
    fed(before, *pieces)
    with pytest.raises(InvalidRequest, match="outside its parts"):
        fed(before, *pieces, piece, piece)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (FILE.replace(b"--b", b"--c"), "does not begin with the boundary of its Content-Type"),
        (b"plain text", "does not begin with the boundary of its Content-Type"),
        (FILE[:-8], "ends before its last boundary"),
    ],
)
def test_a_body_with_another_boundary_is_refused_by_name(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        read_parts(body, TYPE)
