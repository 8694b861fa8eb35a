"""The rows of handlers that are nodes of a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.config.workflow import SOURCES_OPTION
from extensions.torchserve.handlers.entry import Entry, fed_by_nodes
from extensions.torchserve.handlers.handler import TorchServeHandler
from handlers.loader import load_handler
from headrace.handler import Context
from tests.extensions.torchserve.harness.archives import json_of, request, run, write_archive
from workers.model_process.executor import BatchExecutor

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


@pytest.mark.parametrize("decodes", [True, False])
def test_nodes_get_results_whether_inputs_are_decoded_or_not(tmp_path: Path, decodes: bool) -> None:
    source = (
        "def join(data, context):\n    return data and [str(sorted(row.items())) for row in data]\n"
    )
    folder = write_archive(tmp_path, "steps:join", {"steps.py": source})
    for sources, result, expected in (
        (["a", "b"], {"a": "x", "b": [1]}, [("a", b"x"), ("b", b"[\n  1\n]")]),
        (["a"], "wörd", [("body", "wörd".encode())]),
        (["a"], PICTURE, [("body", b"\x00\x01")]),
    ):
        handler = load_handler("torchserve:steps:join", folder)
        assert isinstance(handler, TorchServeHandler)
        config = TorchServeConfig(decode_input_request=decodes)
        context = Context(
            "m", "1.0", "cpu", folder, max_batch_size=8, options={SOURCES_OPTION: sources}
        )
        own = TorchServeHandler(handler._reference, config)
        own.initialize(context)
        (outcome,) = run(BatchExecutor(own, context), [request(result)])
        row = [(name, bytearray(value)) for name, value in expected]
        assert json_of(outcome) == str(row)
