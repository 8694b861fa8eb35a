"""When the clients of a log are woken, and what they read."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headrace.queue.following.piece_log import (
    LogEntry,
    LogEvent,
    LogFollower,
    LogRead,
    Missing,
    PieceLog,
    Pieces,
    Place,
    Restarted,
)


class Channels:
    """A subscription that Redis confirms when the test allows it."""

    def __init__(self) -> None:
        self.confirmation = asyncio.Event()
        self.calls: list[str] = []

    def add(self, *_: Any, **__: Any) -> None:
        self.calls.append("add")

    async def subscribe(self, _: Any, channel: str) -> None:
        self.calls.append(f"subscribe {channel}")

    async def unsubscribe(self, _: Any, channel: str) -> None:
        self.calls.append(f"unsubscribe {channel}")

    async def confirmed(self, channel: str) -> None:
        await self.confirmation.wait()


def test_a_client_reads_again_once_redis_has_confirmed_its_channel() -> None:
    """What was published between its first read and the confirmation did not arrive."""

    async def run() -> None:
        queue: Any = None
        channels: Any = Channels()
        log = PieceLog(channels, queue)
        with log.follow("m", "job", Place()) as follower:
            waiting = asyncio.create_task(follower.woken(3600))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            channels.confirmation.set()
            for _ in range(10):
                await asyncio.sleep(0)
            assert waiting.done()
        await asyncio.sleep(0)
        assert [call.split()[0] for call in channels.calls] == ["add", "subscribe", "unsubscribe"]
        await log.stop()

    asyncio.run(run())


BEGINNING = Place()


class Log:
    """A log whose reads the test gives."""

    def __init__(self, *reads: LogRead) -> None:
        self._reads = list(reads)

    async def read(self, _: str, after: Place) -> LogRead:
        return self._reads.pop(0) if self._reads else LogRead(after, False, [])


def written(*texts: str, last: int, run: str = "1", head: bytes = b"") -> LogEntry:
    return LogEntry(Place(last, run), pieces(*texts), head)


def pieces(*texts: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(text.encode()) for text in texts]


def read(*reads: LogRead, after: Place = BEGINNING) -> list[LogEvent]:
    """Return the events of these reads, for a client that has the log up to a place."""

    async def run() -> list[LogEvent]:
        log: Any = Log(*reads)
        follower = LogFollower(log, "m", "job", after, keeps=False)
        found = [event for _ in reads for event in await follower.read()]
        for event in found[-1:]:
            assert follower.place == event.place
        return found

    return asyncio.run(run())


def test_a_client_reads_on_behind_its_place() -> None:
    assert read(
        LogRead(Place(), False, [written("a", "b", last=2, head=b"{}")]),
        LogRead(Place(2, "1"), False, [written("b", "c", last=3, run="2")]),
    ) == [Pieces(Place(2, "1"), pieces("a", "b"), b"{}"), Pieces(Place(3, "2"), pieces("c"))]


@pytest.mark.parametrize("has_pieces", [False, True])
def test_only_a_client_with_pieces_is_told_of_a_restart(has_pieces: bool) -> None:
    again = [Pieces(Place(2, "2"), pieces("a"))]
    mark = LogEntry(Place(1, "2"), [])
    told = [Restarted(Place(1, "2"))] if has_pieces else []
    first = Place(1, "1") if has_pieces else Place()
    assert read(LogRead(first, False, [mark, written("a", last=2, run="2")]), after=first) == [
        *told,
        *again,
    ]


def test_a_lost_place_is_a_restart_from_the_beginning_of_the_log() -> None:
    assert read(LogRead(Place(), True, []), after=Place(3, "1")) == [Restarted(Place())]
    assert read(LogRead(Place(), True, [written("a", last=1, run="2")]), after=Place(3, "1")) == [
        Restarted(Place()),
        Pieces(Place(1, "2"), pieces("a")),
    ]


def test_a_gap_is_told() -> None:
    assert read(
        LogRead(Place(1, "1"), False, [written("b", last=2), written("d", last=4)]),
        after=Place(1, "1"),
    ) == [
        Pieces(Place(2, "1"), pieces("b")),
        Missing(3, Place(3, "1")),
        Pieces(Place(4, "1"), pieces("d")),
    ]
