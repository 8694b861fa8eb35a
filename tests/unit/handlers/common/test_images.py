from __future__ import annotations

import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from handlers.common.images import HIGHEST_MAX_PIXELS, decode, photograph, to_grey, to_rgb
from headrace.errors import InputError
from tests.harness.pictures import encoded, oriented, png, with_segment


def gradient(width: int = 40, height: int = 30) -> Image.Image:
    ramp = np.linspace(0, 255, width * height).reshape(height, width).astype(np.uint8)
    return Image.fromarray(ramp).convert("RGB")


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises more than its few bytes hold."""
    png = bytearray(encoded(Image.new("L", (1, 1)), "PNG"))
    png[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    return bytes(png)


def refusal(data: object, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        decode(data, **options)
    return caught.value.message


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_common_formats_are_read(kind: str) -> None:
    assert decode(encoded(gradient(), kind)).size == (40, 30)


def test_bytes_like_inputs_are_read() -> None:
    data = encoded(gradient(), "PNG")
    assert decode(bytearray(data)).size == decode(memoryview(data)).size == (40, 30)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "got 0 bytes"),
        (b"hello, this is text", "not an image: 19 bytes in none of the formats PNG, JPEG"),
        ({"url": "http://x"}, "got a JSON object"),
        ({"a": b"1", "b": b"2"}, "got 2 files ('a', 'b') in one job; send one job for each"),
        ({"a": b"1", "b": 2}, "got the file 'a' with other parts; send the file alone"),
        ([1, 2], "got a JSON array"),
        ("iVBORw0KGgo=", "got text"),
        (None, "got null"),
        (True, "got a boolean"),
        (7, "got a JSON number"),
    ],
)
def test_what_is_no_image_says_what_to_send(data: object, expected: str) -> None:
    message = refusal(data)
    assert expected in message
    assert "send the bytes of a PNG or JPEG" in message


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_truncated_file_is_refused(kind: str) -> None:
    data = encoded(gradient(200, 200), kind)
    assert "is the file complete?" in refusal(data[: len(data) // 2])


def test_a_format_that_is_not_listed_is_not_parsed() -> None:
    assert "not an image" in refusal(encoded(gradient(), "TIFF"))


def test_size_is_checked_before_decoding() -> None:
    message = refusal(bomb(10_000, 5_001))
    assert "10000 x 5001 pixels, at most 50,000,000 are allowed" in message
    assert "1 x 11 pixels, at most 10" in refusal(bomb(1, 11), max_pixels=10)


@pytest.mark.parametrize("size", [(1, 49_000_000), (65_536, 1)])
def test_a_side_is_bounded_however_few_pixels_there_are(size: tuple[int, int]) -> None:
    """Else 92 kB cost seconds and gigabytes."""
    assert "at most 65,535 on a side" in refusal(bomb(*size))


@pytest.mark.parametrize("side", [9_500, 30_000])
def test_what_pillow_takes_for_a_bomb_is_an_input_error(side: int) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert "too large" in refusal(bomb(side, side), max_pixels=HIGHEST_MAX_PIXELS)
    assert seen == []
    assert Image.MAX_IMAGE_PIXELS == HIGHEST_MAX_PIXELS


def test_draft_saves_decoding_but_keeps_the_size_asked_for() -> None:
    drafted = decode(encoded(gradient(1600, 1200), "JPEG"), draft_px=200)
    assert 200 <= min(drafted.size) < 1200
    assert decode(encoded(gradient(1600, 1200), "PNG"), draft_px=200).size == (1600, 1200)


def test_photos_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(gradient(40, 30), "JPEG", exif=exif)).size == (30, 40)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "I;16"])
def test_every_mode_becomes_grey_and_rgb(mode: str) -> None:
    dark = Image.new("L", (8, 8), 255)
    dark.paste(0, (0, 0, 4, 8))
    if mode == "I;16":
        tones = np.array(dark, dtype=np.uint16) * 257
        image = Image.fromarray(tones)
    else:
        image = dark.convert("RGB").convert(mode) if mode != "LA" else dark.convert("LA")
    data = encoded(image, "JPEG" if mode == "CMYK" else "PNG")
    for tones in (np.asarray(to_grey(decode(data))), np.asarray(to_rgb(decode(data)).convert("L"))):
        assert tones[:, 1].max() < 20
        assert tones[:, 6].min() > 235


def test_sixteen_bit_tones_are_scaled_not_cut_off() -> None:
    tones = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    grey = np.asarray(to_grey(decode(encoded(Image.fromarray(tones), "PNG"))))
    assert np.abs(grey.astype(int) - tones // 257).max() <= 1


@pytest.mark.parametrize(("ink", "paper"), [(0, 255), (255, 0)])
def test_transparent_paper_sets_off_the_ink(ink: int, paper: int) -> None:
    image = Image.new("LA", (8, 8), (ink, 0))
    image.paste((ink, 255), (2, 2, 4, 6))
    grey = np.asarray(to_grey(decode(encoded(image, "PNG"))))
    assert grey[3, 3] == ink
    assert grey[0, 0] == paper


def test_transparent_becomes_white_in_rgb() -> None:
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert to_rgb(decode(encoded(image, "PNG"))).getpixel((0, 0)) == (255, 255, 255)


BASES = [encoded(gradient(), kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")]


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from(BASES),
    changes=st.lists(
        st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=8)), max_size=6
    ),
)
def test_broken_files_end_as_input_errors_and_nothing_else(
    base: bytes, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(base)
    for at, patch in changes:
        start = at % len(data)
        data[start : start + len(patch)] = patch
    try:
        image = decode(bytes(data), max_pixels=1_000_000)
        to_grey(image)
        to_rgb(image)
    except InputError:
        return


@pytest.mark.parametrize(
    ("depth", "color", "row", "key", "tones"),
    [
        (2, 0, b"\x1b", b"\0\1", [0, 255, 170, 255]),
        (4, 0, b"\x05\xf2", b"\0\5", [0, 255, 255, 34]),
        (16, 0, b"\x80\0\x80\1\x10\0\0\0", b"\x80\0", [255, 128, 16, 0]),
        (16, 2, b"\x80\0" * 3 + b"\0" * 6, b"\x80\0" * 3, [255, 0]),
    ],
)
def test_the_transparent_tone_of_a_png_has_the_depth_of_its_tones(
    depth: int, color: int, row: bytes, key: bytes, tones: list[int]
) -> None:
    found = to_rgb(decode(png(len(tones), depth, color, row, (b"tRNS", key))))
    assert [round(tone) for tone in np.asarray(found)[0, :, 0]] == tones


def test_sixteen_bit_tones_with_transparency_are_scaled_in_grey_too() -> None:
    row = b"\x10\0" + b"\xf0\0" * 3
    grey = to_grey(decode(png(4, 16, 0, row, (b"tRNS", b"\xf0\0"))))
    assert np.asarray(grey).tolist() == [[16, 255, 255, 255]]


@pytest.mark.parametrize(
    "chunk",
    [b"eXIf", b"iCCP", b"iTXt", b"zTXt", b"tEXt", b"pHYs", b"cHRM", b"acTL", b"fcTL", b"fdAT"],
)
@pytest.mark.parametrize("body", [b"", b"\0", b"junk" * 9])
def test_broken_metadata_of_a_png_does_not_matter(chunk: bytes, body: bytes) -> None:
    assert decode(png(2, 8, 0, b"\x01\xff", (chunk, body))).tobytes() == b"\x01\xff"
    broken = png(2, 8, 0, b"\x01\xff", (chunk, body)).replace(chunk + body, chunk + body[::-1])
    assert decode(broken).tobytes() == b"\x01\xff"


@pytest.mark.parametrize("marker", [*range(0xE0, 0xF0), 0xFE])
@pytest.mark.parametrize(
    "name", [b"", b"JFIF\0", b"Exif\0\0", b"Exif\0\0II*\0", b"MPF\0", b"ICC_PROFILE\0", b"Adobe"]
)
@pytest.mark.parametrize("rest", [b"", b"\x01" * 3, b"\xff" * 40])
def test_broken_metadata_of_a_jpeg_does_not_matter(marker: int, name: bytes, rest: bytes) -> None:
    jpeg = encoded(gradient(), "JPEG")
    if (marker, name) != (0xEE, b"Adobe"):  # It names the colours.
        assert decode(with_segment(jpeg, marker, name + rest)).tobytes() == decode(jpeg).tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_only_exif_turns_an_image(kind: str) -> None:
    xmp = b'<x:xmpmeta tiff:Orientation="6"/>'
    image = gradient(40, 30)
    options: dict[str, Any] = {"xmp": xmp}
    if kind == "PNG":
        options = {"pnginfo": PngInfo()}
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", xmp.decode())
    assert decode(encoded(image, kind, **options)).size == (40, 30)
    for orientation in range(1, 9):
        turned = decode(encoded(image, kind, exif=oriented(orientation), **options))
        assert turned.size == ((40, 30) if orientation < 5 else (30, 40))


@pytest.mark.parametrize(
    ("max_pixels", "size"), [(500 * 375, (500, 375)), (500 * 375 - 1, (32, 32))]
)
def test_the_example_is_as_large_as_a_photograph_within_the_limit(
    max_pixels: int, size: tuple[int, int]
) -> None:
    assert decode(photograph(max_pixels), max_pixels=max_pixels).size == size
