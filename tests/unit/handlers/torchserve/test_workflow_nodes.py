"""The rows of handlers that are nodes of a workflow."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.torchserve.entry import Entry, fed_by_nodes

PICTURE = {"content_type": "image/png", "base64": "AAE="}


def rows_of(sources: list[str], *bodies: Any) -> Any:
    entry = Entry(lambda context: None, lambda rows, context: rows)
    return fed_by_nodes(entry, sources).handle([{"body": body} for body in bodies], None)


@pytest.mark.parametrize(
    ("result", "expected"),
    [("wörd", "wörd".encode()), ({"n": 1}, b'{\n  "n": 1\n}'), (None, b"null"),
     (bytearray(b"\0"), b"\0"), (PICTURE, b"\x00\x01")],
)  # fmt: skip
def test_the_result_of_one_node_is_the_body(result: Any, expected: bytes) -> None:
    (row,) = rows_of(["a"], result)
    assert row == {"body": bytearray(expected)}
    assert isinstance(row["body"], bytearray)


def test_results_of_several_nodes_have_their_names() -> None:
    (row,) = rows_of(["a", "b"], {"a": "x", "b": [1]})
    assert row == {"a": bytearray(b"x"), "b": bytearray(b"[\n  1\n]")}


def test_a_handler_that_is_no_node_gets_its_rows_as_they_are() -> None:
    assert rows_of([], "x", {"y": 1}) == [{"body": "x"}, {"body": {"y": 1}}]
