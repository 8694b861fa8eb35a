"""When the clients of a log are woken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.queue.piece_log import PieceLog


class Channels:
    """A subscription that Redis confirms when the test allows it."""

    def __init__(self) -> None:
        self.confirmation = asyncio.Event()
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    async def subscribe(self, channel: str) -> None:
        self.calls.append(f"subscribe {channel}")

    async def unsubscribe(self, channel: str) -> None:
        self.calls.append(f"unsubscribe {channel}")

    async def confirmed(self, channel: str) -> None:
        await self.confirmation.wait()

    async def stop(self) -> None:
        self.calls.append("stop")


def test_a_client_reads_again_once_redis_has_confirmed_its_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was published between its first read and the confirmation did not arrive."""

    async def run() -> None:
        anything: Any = None
        log = PieceLog(anything, anything, "api")
        channels = Channels()
        monkeypatch.setattr(log, "_subscription", channels)
        with log.follow("m", "job") as follower:
            waiting = asyncio.create_task(follower.woken(3600))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            channels.confirmation.set()
            for _ in range(10):
                await asyncio.sleep(0)
            assert waiting.done()
        await asyncio.sleep(0)
        assert [call.split()[0] for call in channels.calls] == ["start", "subscribe", "unsubscribe"]
        await log.stop()

    asyncio.run(run())
