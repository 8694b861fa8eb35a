"""What a form may hold besides its parts."""

from __future__ import annotations

import pytest

from api.http.forms import read_parts
from headrace.errors import InvalidRequest

TYPE = "multipart/form-data; boundary=b"
FILE = b"--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\ndata\r\n--b--\r\n"


def test_a_short_text_around_the_parts_is_ignored() -> None:
    assert [part.body for part in read_parts(b"\r\n" + FILE + b"epilogue", TYPE)] == [b"data"]


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
