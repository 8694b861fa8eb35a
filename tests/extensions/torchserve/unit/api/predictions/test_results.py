"""Results and headers as clients of TorchServe receive them."""

from __future__ import annotations

import pytest

from extensions.torchserve.api.predictions.results import _chosen_type, _headers, shown


@pytest.mark.parametrize(
    ("result", "body"),
    [
        (b'"two\\nlines \\u00e9"', "two\nlines é".encode()),
        (b'{"a":[1,2]}', b'{\n  "a": [\n    1,\n    2\n  ]\n}'),
        (b"null", b"null"),
        (b"[]", b"[]"),
        (b'{"a": NaN}', b'{"a": NaN}'),
        (b"", b""),
    ],
)
def test_a_string_is_its_text_and_other_json_is_indented(result: bytes, body: bytes) -> None:
    assert shown(result) == body


def test_headers_of_a_handler_are_sent_except_those_of_the_server() -> None:
    given = {
        "Dummy": "1", "X-Text": "a\r\nb: c", "Content-Length": "9", "cache-control": "public",
        "Transfer-Encoding": "chunked", "Content-Type": "text/plain", "bad name": "x",
    }  # fmt: skip
    assert _headers(given) == ((b"dummy", b"1"), (b"x-text", b"a  b: c"))


@pytest.mark.parametrize(
    ("headers", "kind", "chosen"),
    [
        ({"Content-Type": "text/plain"}, "application/octet-stream", b"text/plain"),
        ({}, "image/png", b"image/png"),
        ({}, "application/octet-stream", b""),
        ({}, "application/json", b""),
        ({}, "", b""),
    ],
)
def test_an_answer_has_the_type_that_the_handler_has_chosen(
    headers: dict[str, str], kind: str, chosen: bytes
) -> None:
    assert _chosen_type(headers, kind) == chosen
