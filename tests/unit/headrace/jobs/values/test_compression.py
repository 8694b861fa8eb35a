"""Compressed bodies: kombu's methods, and a bound on what comes out."""

from __future__ import annotations

import lzma

import pytest
from kombu.compression import compress

from headrace.errors import InvalidRequest
from headrace.jobs import message
from headrace.jobs.message import DECOMPRESSED_MAX_BYTES, decompress

BODY = b'[[], {"model": "m", "input": 1}, {}]' * 100


@pytest.mark.parametrize("name", ["zlib", "gzip", "bzip2", "bzip", "lzma", "xz"])
def test_what_kombu_compresses_is_read(name: str) -> None:
    body, method = compress(BODY, name)
    assert body != BODY
    assert decompress(body, method) == BODY


@pytest.mark.parametrize("name", ["zlib", "bzip2", "lzma"])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "other"])
def test_broken_bodies_are_refused(name: str, damage: str) -> None:
    body, method = compress(BODY, name)
    other, _ = compress(BODY, "zlib" if name != "zlib" else "bzip2")
    broken = {"cut": body[:-9], "empty": b"", "noise": b"\x00\x01" * 50, "other": other}[damage]
    with pytest.raises(InvalidRequest, match=r"the (compressed )?body is"):
        decompress(broken, method)


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"'application/x-brotli' is not supported.*x-gzip"):
        decompress(b"", "application/x-brotli")


@pytest.mark.parametrize("name", ["zlib", "bzip2", "lzma"])
def test_what_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(message, "DECOMPRESSED_MAX_BYTES", 10_000)
    body, method = compress(b"\x00" * 10_000, name)
    assert len(decompress(body, method)) == 10_000
    bomb, method = compress(b"\x00" * 50_000_000, name)
    assert len(bomb) < 100_000
    with pytest.raises(InvalidRequest, match="more than 10000 bytes"):
        decompress(bomb, method)


def test_an_lzma_header_cannot_ask_for_much_memory() -> None:
    body = bytearray(lzma.compress(BODY, format=lzma.FORMAT_ALONE))
    assert decompress(bytes(body), "application/x-lzma") == BODY
    body[1:5] = (1 << 30).to_bytes(4, "little")  # the dictionary's size in the header
    with pytest.raises(InvalidRequest, match=r"[Mm]emory"):
        decompress(bytes(body), "application/x-lzma")


def test_the_bound_is_far_above_what_the_api_takes() -> None:
    assert DECOMPRESSED_MAX_BYTES >= 4 * 32 * 1024 * 1024
