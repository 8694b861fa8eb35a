"""Inputs of every kind as JSON: what the worker reads back is what was given."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from handlers.common.images import decode
from headrace.client import calls
from headrace.client.http.retries import Session
from headrace.client.inputs import (
    NPY_TYPE,
    InputRef,
    checked_options,
    encode_input,
    job_line,
    plain_parameters,
)
from headrace.errors import InvalidRequest
from headrace.jobs.values.encoding import decode_input, decode_nested
from tests.harness.pictures import oriented


def received(value: Any, content_type: str | None = None) -> tuple[Any, str]:
    """The value that a handler sees, and its content type."""
    return decode_input(encode_input(value, content_type))


@pytest.mark.parametrize(
    ("value", "expected", "kind"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, {"a": [1, 2.5, None, True, "ü"]}, "application/json"),
        ("text", "text", "application/json"),
        ((1, 2), [1, 2], "application/json"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z", "application/json"),
        (b"\x89PNG\r\n\x1a\n123", b"\x89PNG\r\n\x1a\n123", "image/png"),
        (b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b'{"a": 1}', b'{"a": 1}', "application/octet-stream"),
        (bytearray(b"\0"), b"\0", "application/octet-stream"),
        (memoryview(b"RIFF....WEBPVP8"), b"RIFF....WEBPVP8", "image/webp"),
    ],
)
def test_each_kind_has_its_form(value: Any, expected: Any, kind: str) -> None:
    assert received(value) == (expected, kind)


def test_parts_that_are_not_json_have_their_form_inside_json(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n123"
    (tmp_path / "x.txt").write_text("hi")
    value = {
        "image": png,
        "list": [bytearray(b"\0"), {"file": tmp_path / "x.txt"}, np.eye(1), torch.zeros(1), None],
        "pillow": Image.new("L", (1, 1)),
        "numbers": [1, 2.5],
    }
    sent, _ = received(value)
    assert sent["image"] == {"content_type": "image/png", "base64": "iVBORw0KGgoxMjM="}
    found, types = decode_nested(sent)
    assert found["image"] == png
    assert found["list"] == [b"\0", {"file": "hi"}, [[1.0]], [0.0], None]
    assert Image.open(io.BytesIO(found["pillow"])).size == (1, 1)
    assert found["numbers"] == [1, 2.5]
    assert types == {
        "image": "image/png", "list[0]": "application/octet-stream", "list[1].file": "text/plain",
        "pillow": "image/png",
    }  # fmt: skip
    # What the caller gave stays as it was.
    assert value["image"] is png


def test_parameters_of_a_job_are_json() -> None:
    sent = plain_parameters({"top_k": np.int64(3), "t": 0.5, "of": {1: (None, np.ones(2))}})
    assert sent == {"top_k": 3, "t": 0.5, "of": {"1": [None, [1.0, 1.0]]}}
    line = job_line("m", 1, None, None, {}, parameters=sent)
    assert msgspec.json.decode(line)["parameters"] == sent
    assert b"parameters" not in job_line("m", 1, None, None, {}, parameters={})
    assert plain_parameters(None) == {}
    with pytest.raises(InvalidRequest, match="a parameter cannot be sent"):
        plain_parameters({"top_k": object()})
    with pytest.raises(InvalidRequest, match="parameters: expected a mapping, got list"):
        plain_parameters(["top_k"])  # type: ignore[arg-type]
    assert plain_parameters({"top_k": None}) == {"top_k": None}


@pytest.mark.parametrize("value", [math.nan, -math.inf, np.float32("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize(
    ("place", "wrap"),
    [
        ("x", lambda value: value),
        (r"x\[1\]", lambda value: [1, value]),
        (r"x\[0\]\.y", lambda value: ({"y": value},)),
        (r"x\.1", lambda value: {1: value}),
    ],
)
def test_a_parameter_or_an_option_that_is_no_number_does_not_become_null(
    value: Any, place: str, wrap: Callable[[Any], Any]
) -> None:
    problem = r": -?(nan|inf) is not a number"
    with pytest.raises(InvalidRequest, match=f"parameter {place}{problem}"):
        plain_parameters({"before": 1.5, "x": wrap(value)})
    metadata = {"metadata": {"x": wrap(value)}}
    checks: list[Callable[[Any], Any]] = [checked_options, partial(job_line, "m", 1, None, None)]
    for check in checks:
        with pytest.raises(InvalidRequest, match=rf"option metadata\.{place}{problem}"):
            check(metadata)
        with pytest.raises(InvalidRequest, match=f"option timeout{problem}"):
            check({"timeout": value})


def test_an_array_in_a_parameter_keeps_no_nan() -> None:
    with pytest.raises(InvalidRequest, match=r"parameter x\[0\]\[1\]: nan is not a number"):
        plain_parameters({"x": np.array([[1, math.nan]])})


def test_the_callers_type_wins() -> None:
    assert received(b'{"a": 1}', "application/json") == ({"a": 1}, "application/json")
    assert received("a,b", "text/csv") == ("a,b", "text/csv")
    assert received('{"a": 1}', "application/json") == ('{"a": 1}', "application/json")
    assert received(b"x", "audio/wav") == (b"x", "audio/wav")


def test_a_file_is_its_content_by_its_name_and_then_by_its_first_bytes(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n123"
    for name, content, expected in [
        ("a.json", b'{\n  "a": [1.0,\r\n 2]\n}\n', ({"a": [1.0, 2]}, "application/json")),
        ("a.txt", "ä\nb".encode(), ("ä\nb", "text/plain")),
        ("a.png", png, (png, "image/png")),
        ("without", png, (png, "image/png")),
        ("a.json.gz", b"\x1f\x8b", (b"\x1f\x8b", "application/octet-stream")),
        ("empty", b"", (b"", "application/octet-stream")),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        assert received(path) == expected
        assert b"\n" not in encode_input(path)
    assert received(tmp_path / "a.json", "text/plain")[0].startswith("{\n")


def test_files_that_cannot_be_sent_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(b'{"a": ')
    for path, why in [
        (broken, "is not JSON"),
        (tmp_path / "missing", "No such file"),
        (tmp_path, "Is a directory"),
    ]:
        with pytest.raises(InvalidRequest, match=why) as refused:
            encode_input(path)
        assert str(path) in refused.value.message


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK", "YCbCr", "F"])
def test_a_pillow_image_is_a_png(mode: str) -> None:
    image = Image.new("L", (3, 2), 255).convert(mode) if mode != "I;16" else Image.new(mode, (3, 2))
    body, kind = received(image)
    assert kind == "image/png"
    with Image.open(io.BytesIO(body)) as read:
        assert (read.format, read.size) == ("PNG", (3, 2))
        assert read.mode == {"CMYK": "RGB", "YCbCr": "RGB", "F": "L"}.get(mode, mode)


def test_a_pillow_image_of_another_type() -> None:
    image = Image.new("RGB", (8, 8), "red")
    body, kind = received(image, "image/jpeg")
    assert (body[:3], kind) == (b"\xff\xd8\xff", "image/jpeg")
    for wrong, asked in [("text/plain", image), ("image/jpeg", image.convert("RGBA"))]:
        with pytest.raises(InvalidRequest, match="Pillow image"):
            encode_input(asked, wrong)


def test_an_array_is_nested_lists_or_npy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3) / 2
    assert received(array) == (array.tolist(), "application/json")
    body, kind = received(array, NPY_TYPE)
    assert kind == NPY_TYPE
    loaded = np.load(io.BytesIO(body), allow_pickle=False)
    assert loaded.dtype == array.dtype
    assert np.array_equal(loaded, array)
    with pytest.raises(InvalidRequest, match="object"):
        encode_input(np.array([object()]), NPY_TYPE)


def test_what_json_holds_may_be_numpy_and_torch() -> None:
    @dataclass
    class Point:
        x: float

    value = {"a": np.float32(1.5), "b": np.arange(2), "c": torch.tensor([[1.0]]), "d": Point(2.0)}
    assert received(value)[0] == {"a": 1.5, "b": [0, 1], "c": [[1.0]], "d": {"x": 2.0}}


@pytest.mark.parametrize("value", [object(), {"a": object()}, open, {1: {2: object}}])
def test_what_json_cannot_say_is_refused_with_what_can_be_sent(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent") as refused:
        encode_input(value)
    assert "pathlib.Path" in refused.value.hint


def test_a_type_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent as image/png"):
        encode_input({"a": 1}, "image/png")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        encode_input(deep)
    assert msgspec.json.decode(encode_input(float("nan"))) is None


def test_a_reference_is_told_as_one_and_only_in_the_place_of_an_input() -> None:
    ref = InputRef("s3://scans/1.png")
    line = msgspec.json.decode(job_line("m", ref, "image/png", None, {"priority": 3}, "a"))
    assert line == {
        "model": "m", "input_ref": "s3://scans/1.png", "content_type": "image/png", "id": "a",
        "options": {"priority": 3},
    }  # fmt: skip
    own = InputRef("file:/a.txt", "text/plain")
    assert msgspec.json.decode(job_line("m", own, "image/png", None, {}))["content_type"] == (
        "text/plain"
    )
    assert b"content_type" not in job_line("m", ref, None, None, {})
    assert repr(own) == "InputRef('file:/a.txt', 'text/plain')"
    with pytest.raises(InvalidRequest, match="InputRef is not a JSON value"):
        job_line("m", {"x": ref}, None, None, {})
    with pytest.raises(InvalidRequest, match=r"must be a str, not a value of type pathlib\."):
        InputRef(Path("/a.txt"))  # type: ignore[arg-type]


def test_a_submit_has_one_input() -> None:
    session = Session("http://nowhere", 0)
    with pytest.raises(InvalidRequest, match="either input or input_ref"):
        next(calls.submit(session, "m"))
    with pytest.raises(InvalidRequest, match="either input or input_ref"):
        next(calls.submit(session, "m", None, input_ref="file:/a"))


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "image/webp", "image/bmp"])
@pytest.mark.parametrize("orientation", [2, 6])
def test_a_pillow_image_is_as_upright_as_its_file(
    tmp_path: Path, kind: str, orientation: int
) -> None:
    photo = Image.new("RGB", (16, 8), "white")
    photo.paste("black", (0, 0, 8, 8))
    path = tmp_path / "photo.png"
    photo.save(path, exif=oriented(orientation))
    wanted = decode(path.read_bytes())
    with Image.open(path) as opened:
        text = encode_input({"photos": [opened]}) if kind == "image/png" else b""
        sent = [received(opened, kind)[0]]
    if text:
        sent.append(decode_nested(msgspec.json.decode(text))[0]["photos"][0])
    for body in sent:
        found = decode(body)
        assert found.size == wanted.size
        corner = (found.width - 1, found.height - 1)
        assert (found.getpixel(corner) == (0, 0, 0)) == (wanted.getpixel(corner) == (0, 0, 0))


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "image/tiff"])
def test_a_tiff_that_is_not_read_yet_is_turned_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "scan.tif"
    Image.new("RGB", (16, 8), "white").save(path, exif=oriented(6))
    with Image.open(path) as opened:
        body = received(opened, kind)[0]
    assert decode(body, formats=("PNG", "JPEG", "TIFF")).size == (8, 16)


def test_wide_tones_of_a_pillow_image_are_sent_whole_or_refused() -> None:
    tones = [258, 772, 1286, 65535]
    big = Image.frombytes("I;16B", (4, 1), b"".join(tone.to_bytes(2, "big") for tone in tones))
    for image in (big, big.convert("I"), big.convert("I").convert("I;16")):
        with Image.open(io.BytesIO(received(image)[0])) as read:
            assert np.asarray(read).tolist() == [tones]
        for kind in ("image/webp", "image/jpeg", "image/gif"):
            with pytest.raises(InvalidRequest, match="8 bits"):
                encode_input(image, kind)
    for wrong in (np.array([[-1, 70_000]], np.int32), np.array([[0.1, 0.9]], np.float32)):
        with pytest.raises(InvalidRequest, match="its tones are"):
            encode_input(Image.fromarray(wrong))
