"""Answers that wait for their client: in order, in memory, then in a file, then not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from api.http.send_buffer import TAKE_BYTES, Room, SendBuffer


def run(test: Callable[[SendBuffer], Coroutine[Any, Any, None]], **bounds: int) -> None:
    async def inside() -> None:
        memory, files = (bounds.get(f"{name}_max_bytes", 10**9) for name in ("memory", "file"))
        with SendBuffer(memory, files) as buffer:
            await test(buffer)

    asyncio.run(inside())


async def filled(buffer: SendBuffer, count: int) -> None:
    for n in range(count):
        await buffer.put(b"%03d" % n)
    buffer.end()


async def drained(buffer: SendBuffer) -> bytes:
    found = b""
    while data := await buffer.take():
        assert len(data) <= TAKE_BYTES
        found += data
    return found


def test_order_is_kept_over_memory_and_file() -> None:
    async def test(buffer: SendBuffer) -> None:
        pieces = [b"%06d," % n for n in range(3000)]
        taken = b""
        for at, piece in enumerate(pieces):
            await buffer.put(piece)
            if at % 500 == 499:
                assert buffer.spooled_bytes > 0
                taken += await buffer.take() + await buffer.take()
        buffer.end()
        assert taken + await drained(buffer) == b"".join(pieces)
        assert buffer.spooled_bytes == 0

    run(test, memory_max_bytes=100)


def test_a_fast_reader_never_needs_the_file() -> None:
    async def test(buffer: SendBuffer) -> None:
        for n in range(1000):
            await buffer.put(b"%d" % n)
            assert await buffer.take() == b"%d" % n
        assert buffer.spooled_bytes == 0

    run(test, memory_max_bytes=10)


def test_where_all_is_full_the_answers_wait_for_the_reader() -> None:
    async def test(buffer: SendBuffer) -> None:
        filling = asyncio.create_task(filled(buffer, 100))
        # Every task that can continue does, until none can.
        for _ in range(300):
            await asyncio.sleep(0)
        assert not filling.done()
        assert buffer.spooled_bytes == 30
        assert await drained(buffer) == b"".join(b"%03d" % n for n in range(100))
        await filling

    run(test, memory_max_bytes=9, file_max_bytes=30)


def test_a_full_disk_is_as_a_full_buffer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.pwrite
    written = 0

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        nonlocal written
        if written + len(data) > 12:
            raise OSError(28, "No space left on device")
        written += len(data)
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def test(buffer: SendBuffer) -> None:
        filling = asyncio.create_task(filled(buffer, 20))
        assert await drained(buffer) == b"".join(b"%03d" % n for n in range(20))
        await filling

    run(test, memory_max_bytes=3)
    assert "not spooled to a file" in caplog.text


def test_the_end_wakes_a_waiting_reader() -> None:
    async def test(buffer: SendBuffer) -> None:
        taking = asyncio.create_task(buffer.take())
        await asyncio.sleep(0)
        buffer.end()
        assert await taking == b""

    run(test)


def test_buffers_share_the_room_of_their_process() -> None:
    async def held(buffer: SendBuffer) -> int:
        """How many bytes it keeps until it waits."""
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                await buffer.put(b"0123456789", stalled_s=0)
                count += 10
        return count

    async def test() -> None:
        memory, files = Room(400), Room(4000)
        with (
            SendBuffer(100, 10**9, memory=memory, files=files) as first,
            SendBuffer(100, 10**9, memory=memory, files=files) as second,
        ):
            assert await held(first) == 100 + 2000, "half of what is free"
            assert await held(second) == 100 + 1000
            assert (memory.used_bytes, files.used_bytes) == (200, 3000)
            await first.take()
            while first.spooled_bytes:
                await first.take()
            assert files.used_bytes == 1000
            assert await held(second) == 1000, "half of what is free by now"
        assert (memory.used_bytes, files.used_bytes) == (0, 0)

    asyncio.run(test())
