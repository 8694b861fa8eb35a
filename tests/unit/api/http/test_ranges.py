"""One range of bytes, as RFC 9110 has it."""

from __future__ import annotations

import pytest

from api.http.messages import ByteRange, UnsatisfiableRange, requested_range

ETAG = b'"5f"'


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (b"bytes=0-0", (0, 1)), (b"bytes=0-9", (0, 10)), (b"bytes=3-5", (3, 6)),
        (b"bytes=5-", (5, 10)), (b"bytes=-3", (7, 10)), (b"bytes=-99", (0, 10)),
        (b"bytes=0-99", (0, 10)), (b"bytes=9-9", (9, 10)), (b" bytes = 1 - 2 ", (1, 3)),
        (b"bytes=0-9999999999999999999", (0, 10)),
    ],
)  # fmt: skip
def test_one_range(header: bytes, span: tuple[int, int]) -> None:
    assert requested_range(header, b"", ETAG, 10) == ByteRange(*span)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"bytes=0-1,3-4", b"bytes=", b"bytes=-", b"bytes=5-2", b"lines=0-1", b"bytes=a-b",
        b"bytes 0-1", b"0-1", b"bytes=0-1;q", b"bytes=" + b"9" * 30 + b"-", b"bytes=--1",
    ],
)  # fmt: skip
def test_what_is_no_single_range_is_passed_over(header: bytes) -> None:
    assert requested_range(header, b"", ETAG, 10) is None


@pytest.mark.parametrize("header", [b"bytes=10-", b"bytes=10-11", b"bytes=999-", b"bytes=-0"])
def test_behind_the_end(header: bytes) -> None:
    with pytest.raises(UnsatisfiableRange):
        requested_range(header, b"", ETAG, 10)


def test_nothing_has_no_ranges() -> None:
    for header in (b"bytes=0-", b"bytes=-1"):
        with pytest.raises(UnsatisfiableRange):
            requested_range(header, b"", ETAG, 0)


def test_a_range_of_what_the_client_has_the_rest_of() -> None:
    assert requested_range(b"bytes=1-2", ETAG, ETAG, 10) == ByteRange(1, 3)
    for other in (b'"60"', b'W/"5f"', b"Wed, 21 Oct 2015 07:28:00 GMT"):
        assert requested_range(b"bytes=1-2", other, ETAG, 10) is None
        assert requested_range(b"bytes=99-", other, ETAG, 10) is None
