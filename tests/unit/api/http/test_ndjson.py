"""Lines out of pieces, whatever the pieces are."""

from __future__ import annotations

import random

import pytest

from api.http.bodies import Line, LineSplitter, batches

LIMIT = 10


def split(*pieces: bytes) -> list[tuple[int, bytes | None]]:
    splitter = LineSplitter(LIMIT)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return [(line.number, line.text) for line in [*lines, *splitter.finish()]]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        (b"\xef\xbb\xbf\nb", [(2, b"b")]),
        (b"\n\n a\r\n \t\r\nb\n", [(3, b" a\r"), (5, b"b")]),
        (b"0123456789\nb", [(1, b"0123456789"), (2, b"b")]),
        (b"a\n0123456789x\nb", [(1, b"a"), (2, None), (3, b"b")]),
        (b"0123456789x", [(1, None)]),
        (b"           \na", [(1, None), (2, b"a")]),
    ],
)
def test_lines_do_not_depend_on_the_pieces(
    body: bytes, lines: list[tuple[int, bytes | None]]
) -> None:
    assert split(body) == lines
    assert split(*(body[at : at + 1] for at in range(len(body)))) == lines
    rng = random.Random(7)
    for _ in range(20):
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(3))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert split(*pieces) == lines


def test_of_a_line_that_is_too_long_no_more_than_the_limit_is_kept() -> None:
    splitter = LineSplitter(LIMIT)
    for _ in range(1000):
        assert splitter.feed(b"x" * 8) == []
        assert sum(map(len, splitter._begun)) <= LIMIT
    assert splitter.feed(b"\nb\n") == [Line(1, None), Line(2, b"b")]


def test_batches_are_bounded_by_lines_and_by_bytes() -> None:
    def texts(*sizes: int, max_lines: int = 3, max_bytes: int = 10) -> list[list[int]]:
        lines = [Line(at, b"x" * size) for at, size in enumerate(sizes)]
        runs = batches(lines, max_lines, max_bytes)
        return [[len(line.text or b"") for line in run] for run in runs]

    assert texts() == []
    assert texts(1, 1, 1, 1) == [[1, 1, 1], [1]]
    assert texts(5, 5, 5) == [[5, 5], [5]]
    assert texts(1, 99, 1, 1) == [[1], [99], [1, 1]]
    assert list(batches([Line(1, None)], 3, 10)) == [[Line(1, None)]]
