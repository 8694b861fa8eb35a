"""What the worker reads of an input: its cost and its key, whatever the input is."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headrace.config.inputs.tensors import TENSORS_TYPE
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.values.encoding import binary_input
from headrace.jobs.values.media_types import image_size
from tests.harness.pictures import encoded
from workers.batching.input_cost import UNREADABLE, InputCost

LIMIT = 1_000_000
Cost = Literal["bytes", "pixels", "tokens", "rows"]


def measure(cost: Cost = "bytes", key: str | None = None) -> InputCost:
    return InputCost(
        ModelConfig(name="m", handler="echo", max_batch_cost=LIMIT, cost=cost, batch_key=key)
    )


def picture(form: str, size: tuple[int, int], **options: Any) -> bytes:
    return encoded(Image.new("RGB", size, "red"), form, **options)


def key_of(pointer: str, value: Any) -> str | None:
    return measure(key=pointer).key(json.dumps(value).encode())


def test_a_model_without_the_two_keys_is_not_read() -> None:
    nothing = InputCost(ModelConfig(name="m", handler="echo"))
    assert not nothing.needed
    assert (nothing.cost(b"[1]"), nothing.key(b"[1]")) == (0, None)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("size", [(1, 1), (37, 500), (640, 480), (1000, 3)])
def test_pixels_are_those_of_the_header(form: str, size: tuple[int, int]) -> None:
    body = picture(form, size)
    assert image_size(body) == size
    assert measure("pixels").cost(binary_input(body, "image/x")) == size[0] * size[1]
    assert measure("pixels").cost(body, "image/x") == size[0] * size[1]


def test_other_forms_of_webp_and_jpeg() -> None:
    size = (321, 123)
    assert image_size(picture("WEBP", size, lossless=True)) == size
    assert image_size(picture("WEBP", size, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0")) == size
    assert image_size(picture("JPEG", size, progressive=True)) == size


def test_a_jpeg_with_much_before_its_picture_is_read_to_there() -> None:
    body = picture("JPEG", (640, 480), icc_profile=b"x" * 300_000)
    assert image_size(body[:200_000]) is None
    assert measure("pixels").cost(binary_input(body, "image/jpeg")) == 640 * 480


def test_a_client_that_wrote_its_base64_first_is_read_too() -> None:
    wire = json.loads(binary_input(picture("PNG", (30, 20)), "image/png"))
    swapped = json.dumps({"base64": wire["base64"], "content_type": "image/png"}).encode()
    assert measure("pixels").cost(swapped) == 600


@pytest.mark.parametrize(
    "raw", [b'"text"', b"{}", binary_input(b"no image", "image/png"), b'{"content_type":', b""]
)
def test_what_has_no_size_costs_a_whole_batch(raw: bytes) -> None:
    assert measure("pixels").cost(raw) == LIMIT


def test_bytes_are_those_of_the_input_and_not_of_its_base64() -> None:
    assert measure().cost(b'{"a": 1}') == 8
    for size in (0, 1, 2, 3, 1000):
        assert measure().cost(binary_input(b"x" * size, "image/png")) == size
        assert measure().cost(b"x" * size, "image/png") == size


def test_tokens_are_a_quarter_of_the_bytes() -> None:
    assert measure("tokens").cost(json.dumps("x" * 78).encode()) == 20
    assert measure("tokens").cost(b'"x"') == 1
    assert measure("tokens").cost(binary_input("é".encode() * 50, "text/plain")) == 25


def test_rows_are_those_of_the_content_type() -> None:
    rows = measure("rows")
    assert rows.cost(b"", f"{TENSORS_TYPE};header=9;rows=7") == 7
    assert rows.cost(binary_input(bytes(99), f"{TENSORS_TYPE};header=9;rows=0")) == 0
    assert rows.cost(b'{"x": [[1], [2]]}') == 1, "lists are one request, however many rows they are"
    assert rows.cost(b"", f"{TENSORS_TYPE};rows=x") == 1


def test_the_content_type_is_a_key_without_parameters() -> None:
    kind = measure(key="content_type").key
    assert kind(b"[1]") == "application/json"
    assert kind(binary_input(b"x", "Image/PNG")) == kind(b"x", "image/png") == "image/png"
    assert kind(binary_input(b"x", "text/plain; charset=utf-8")) == "text/plain"
    assert kind(b'{"__type__": "base64", "__value__": "eA=="}') == "application/octet-stream"


def test_a_pointer_leads_to_the_key() -> None:
    assert key_of("/language", {"language": "en", "text": "x"}) == '"en"'
    assert key_of("/a/1/b", {"a": [0, {"b": 7}]}) == "7"
    assert key_of("/a~1b/~0", {"a/b": {"~": True}}) == "true"
    assert key_of("/size", {"size": {"w": 1, "h": 2}}) == key_of(
        "/size", {"size": {"h": 2, "w": 1}}
    )
    assert key_of("/language", {"language": "1"}) != key_of("/language", {"language": 1})


def test_where_the_pointer_finds_nothing_the_inputs_are_alike() -> None:
    pointer = measure(key="/language")
    assert key_of("/language", {}) is None
    assert key_of("/language/0", {"language": "en"}) is None
    assert key_of("/7", [1, 2]) is None
    assert pointer.key(binary_input(b"x", "image/png")) is None
    assert pointer.key(b"x", "image/png") is None
    assert key_of("/language", {"language": None}) == "null"


def test_an_input_that_cannot_be_read_has_a_key_too() -> None:
    assert measure(key="/a").key(b"{no json") == UNREADABLE
    assert measure(key="/a").key(b'{"a": %s1%s}' % (b"[" * 5000, b"]" * 5000)) == UNREADABLE
    assert measure(key="/a").key(b'{"a": "\\ud800"}') is not None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    raw=st.one_of(
        st.binary(),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.binary().map(lambda body: binary_input(body, "image/png")),
        st.binary().map(lambda body: b'{"content_type":"image/png","base64":"' + body),
    ),
    kind=st.sampled_from(["", "image/png"]),
    cost=st.sampled_from(["bytes", "pixels", "tokens"]),
    key=st.sampled_from(["content_type", "/a", "/0", "/a/0/b"]),
)
def test_no_input_makes_it_raise(raw: bytes, kind: str, cost: Cost, key: str) -> None:
    reader = measure(cost, key)
    assert reader.cost(raw, kind) >= 0
    reader.key(raw, kind)


@given(
    body=st.binary(max_size=200),
    head=st.sampled_from([
        b"\xff\xd8", b"\xff\xd8\xff\xe0\0\x04ab\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a",
        b"BM", b"RIFF1234WEBPVP8 ", b"RIFF1234WEBPVP8L", b"RIFF1234WEBPVP8X",
    ]),
)  # fmt: skip
def test_broken_images_have_no_size_or_some(body: bytes, head: bytes) -> None:
    size = image_size(head + body)
    assert size is None or len(size) == 2
