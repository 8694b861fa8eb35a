"""A log whose reader is slow, idle or gone stops nobody."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest

from headrace.observability import log_output, logs
from headrace.observability.log_output import LogOutput
from headrace.redis.outages import LineLimit, OutageLog

LINES = 20_000


def notice(missing: int) -> str:
    return f"missing {missing}\n"


@pytest.fixture(params=["pipe", "another's pipe", "socket"])
def ends(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, TextIO]]:
    """A reader's descriptor, and the stream that it reads."""
    with ExitStack() as stack:
        if request.param == "socket":
            ours, theirs = socket.socketpair()
            reader, writer = ours.detach(), theirs.detach()
        else:
            reader, writer = os.pipe()
        if request.param == "another's pipe":

            def refused(*_: object) -> int:
                raise PermissionError

            monkeypatch.setattr("headrace.observability.log_output.os.open", refused)
        stack.callback(os.close, reader)
        stream = stack.enter_context(os.fdopen(writer, "w"))
        yield reader, stream


def read_all(reader: int) -> list[str]:
    os.set_blocking(reader, False)
    data = b""
    while True:
        try:
            data += os.read(reader, 1 << 20)
        except BlockingIOError:
            return data.decode().splitlines()


@pytest.fixture
def at_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_what_nobody_reads_is_left_out_and_counted(
    ends: tuple[int, TextIO], at_end: ExitStack
) -> None:
    reader, stream = ends
    output = LogOutput(stream, notice)
    at_end.callback(output.close)
    for n in range(LINES):
        output.write(f"line {n}\n")
    found = read_all(reader)
    kept = len(found)
    assert found[:3] == ["line 0", "line 1", "line 2"]
    output.write("one more\n")
    output.write("and another\n")
    rest = read_all(reader)
    if not rest[0].startswith("missing"):
        rest = rest[1:]  # the rest of a line for which there was no room
    assert rest[1:] == ["one more", "and another"]
    word, missing = rest[0].split()
    assert word == "missing"
    assert LINES - kept - 1 <= int(missing) <= LINES - kept
    assert os.get_blocking(stream.fileno()), "the stream is shared with others"


def test_a_reader_that_is_only_slow_loses_nothing(
    ends: tuple[int, TextIO], at_end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "WAIT_S", 60.0)
    reader, stream = ends
    output, found = LogOutput(stream, notice), b""
    at_end.callback(output.close)

    def write() -> None:
        for n in range(LINES):
            output.write(f"line {n}\n")
        output.write(b"x" * 20_000 + b"\nend\n")

    writer = threading.Thread(target=write)
    writer.start()
    while not found.endswith(b"\nend\n"):
        found += os.read(reader, 1 << 16)
    writer.join(60)
    assert found.decode().splitlines()[:LINES] == [f"line {n}" for n in range(LINES)]


def test_a_reader_that_is_gone_raises_nothing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        output = LogOutput(stream, notice)
        os.close(reader)
        output.write("to nobody\n")
        output.write("to nobody\n")


def test_a_file_gets_every_line_behind_what_was_printed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        stream.write("printed\n")
        LogOutput(stream, notice).write("line\n")
    assert path.read_text() == "printed\nline\n"


def test_the_log_of_a_process_says_what_is_missing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        handler = logs._Handler(stream)
        logger = logging.getLogger("workers.unread")
        logger.propagate = False
        logger.addHandler(handler)
        for n in range(LINES):
            logger.warning("line %d", n)
        kept = len(read_all(reader))
        logger.warning("last")
        logger.removeHandler(handler)
        handler.close()
        *_, told, last = read_all(reader)
        assert (told, last) == (
            f"{LINES - kept} lines of this log are missing: nothing read it", "last",
        )  # fmt: skip
    os.close(reader)


def test_an_outage_has_ever_fewer_lines_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("headrace.redis.outages.time.monotonic", lambda: now)
    limit = LineLimit()
    assert limit.allows("a") == ""
    assert [limit.allows("a") for _ in range(812)] == [None] * 812
    assert limit.allows("b") == ""
    now = 101.0
    assert limit.allows("a") == " (and 812 more)"
    lines = 0
    for _ in range(1000):
        now += 1
        lines += limit.allows("a") is not None
    assert 15 < lines < 25, "seldom, but not never"
    now += 11
    assert limit.allows("a") is not None, "another outage"
    now += 1
    assert limit.allows("a") == ""


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog(logging.getLogger("headrace.test"), "deliveries")
    with caplog.at_level("INFO", "headrace.test"):
        outage.ended()
        for _ in range(2):
            for _ in range(100):
                outage.began("Redis does not answer")
            for _ in range(100):
                outage.ended()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "Redis is unreachable; deliveries go on when it is back"),
        ("INFO", "Redis is back; deliveries go on"),
    ] * 2  # fmt: skip
