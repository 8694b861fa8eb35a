"""Which pieces of a log belong to one reply of TorchServe's API."""

from __future__ import annotations

import msgspec
import pytest

from api.http.messages import ResponseCutShort
from api.torchserve.streams import _ReplyStream
from headrace.queue.piece_log import LogEntry, LogRead, Place


def reply_stream(*, has_begun: bool) -> _ReplyStream:
    stream = object.__new__(_ReplyStream)
    stream._place, stream._has_begun = Place(), has_begun
    return stream


def pieces(*texts: str, last: int, run: str = "1") -> LogEntry:
    return LogEntry(Place(last, run), [msgspec.Raw(text.encode()) for text in texts])


def texts(found: list[msgspec.Raw]) -> list[str]:
    return [bytes(piece).decode() for piece in found]


def test_a_reply_goes_on_behind_its_place() -> None:
    stream = reply_stream(has_begun=True)
    found, _ = stream._pieces(LogRead(Place(), False, [pieces("a", "b", last=2)]))
    assert texts(found) == ["a", "b"]
    found, _ = stream._pieces(LogRead(Place(2, "1"), False, [pieces("b", "c", last=3, run="2")]))
    assert texts(found) == ["c"]
    assert stream._place == Place(3, "2")


@pytest.mark.parametrize(
    "read",
    [
        LogRead(Place(), True, []),
        LogRead(Place(), True, [pieces("a", last=1, run="2")]),
        LogRead(Place(2, "1"), False, [LogEntry(Place(3, "2"), [])]),
        LogRead(Place(2, "1"), False, [pieces("d", last=4)]),
    ],
    ids=["lost", "lost, and written again", "a restart mark", "a piece is missing"],
)
def test_a_reply_of_two_runs_is_cut_short(read: LogRead) -> None:
    with pytest.raises(ResponseCutShort):
        reply_stream(has_begun=True)._pieces(read)


def test_a_reply_that_has_not_begun_takes_the_new_run() -> None:
    stream = reply_stream(has_begun=False)
    found, _ = stream._pieces(LogRead(Place(), True, [pieces("a", last=1, run="2")]))
    assert texts(found) == ["a"]
