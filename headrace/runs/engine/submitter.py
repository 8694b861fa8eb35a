"""The threads that read the source and submit what it gives, as long as there is room."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.client.inputs import InputRef, encode_input
from headrace.client.models import Failure
from headrace.client.requests import job_line
from headrace.errors import (
    ConfigError,
    Conflict,
    HeadraceError,
    InputForbidden,
    InvalidId,
    InvalidRequest,
    JobNotFound,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)
from headrace.runs.engine.in_flight import InFlight, PendingInput
from headrace.runs.engine.spec import RunSpec
from headrace.runs.interfaces import Cursor, Entry, Row, Source
from headrace.runs.range_set import RangeSet

#: So many lines, and so many bytes of them, go in one request.
PACK_LINES: Final = 1000
PACK_BYTES: Final = 4 * 1024 * 1024
#: A source that is slower than this is not waited for to fill a request.
GATHER_S: Final = 0.05
#: So many requests are under way at once.
THREADS: Final = 2

#: What is wrong with one input; every other refusal would meet each of them.
OF_ONE_INPUT: Final = (
    Conflict, InputForbidden, InvalidId, InvalidRequest, PayloadTooLarge, UnsupportedMedia,
)  # fmt: skip

Submit = Callable[[list[bytes], bool], list[HeadraceError | None]]
Refuse = Callable[[list[tuple[PendingInput, Row]]], None]


class Lines:
    """Makes the line that submits an entry.

    Args:
        order: the run's.

    Attributes:
        quiet: their jobs are forgotten anyway, and nobody is to hear of them.
        by_ref: a file is named, and the server reads it.
    """

    def __init__(self, order: RunSpec) -> None:
        self._order = order
        self.quiet = order.forget
        self.by_ref = order.by_ref
        head = msgspec.json.encode({"model": order.model})[:-1]
        rest: dict[str, Any] = {}
        if order.version is not None:
            rest["version"] = order.version
        if order.options:
            rest["options"] = order.options
        self._head = head + b',"id":"'
        self._middle = b'",' + msgspec.json.encode(rest)[1:-1] + (b"," if rest else b"")

    def __call__(self, entry: Entry, job_id: str) -> bytes:
        """The line.

        Raises:
            RequestError: the input cannot be sent, or the entry says so.
        """
        value = entry.input
        if isinstance(value, msgspec.Raw):
            return b'%b%b%b"input":%b}' % (self._head, job_id.encode(), self._middle, value)
        kind = entry.content_type or self._order.content_type
        if self.by_ref and isinstance(value, Path):
            value = _reference(value)
        if isinstance(value, HeadraceError):
            raise value
        if callable(value):
            line: bytes = value(job_id)
            return line
        if isinstance(value, InputRef):
            order = self._order
            return job_line(order.model, value, kind, order.version, order.options, job_id)
        text = encode_input(value, kind)
        return b'%s%s%s"input":%s}' % (self._head, job_id.encode(), self._middle, text)


class Submitter:
    """Reads, and submits. Ends when the source does, the run stops, or something fails.

    Its threads take turns to read a pack, so that inputs are under way in their order, and while
    one waits for the answer of the server the next pack is made and sent.

    Args:
        source: the source.
        flight: what is under way.
        start: where the source goes on, and which numbers behind it have their row.
        lines: makes a line.
        name_of: makes a job's id from a number.
        submit: submits lines, quietly or not, and says of each None, or why there is no job of it;
            raises where the run stops.
        refuse: takes rows of entries of which no job is made.

    Attributes:
        error: what it has ended by, where that is no normal end.
        from_source: whether that is of the source, so that what is under way may end first.
    """

    def __init__(
        self,
        source: Source,
        flight: InFlight,
        start: tuple[Cursor | None, int, RangeSet],
        lines: Lines,
        name_of: Callable[[int], str],
        submit: Submit,
        refuse: Refuse,
    ) -> None:
        self._source = source
        self._flight = flight
        self._cursor, self._n, self._done = start
        self._lines = lines
        self._name_of = name_of
        self._submit = submit
        self._refuse = refuse
        self.error: BaseException | None = None
        self.from_source = False
        self._has_rows = self._n > 0 or bool(self._done)
        self._ended = self._failed = False
        self._reading = threading.Lock()
        self._ending = threading.Lock()
        self._unread: Generator[Entry] | None = None
        self._threads = [
            threading.Thread(target=self._run, name="headrace-feeder", daemon=True)
            for _ in range(THREADS)
        ]
        self._left = len(self._threads)

    def start(self) -> None:
        """Begin to feed."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, for so long at the most."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        """One thread: feed, to the end."""
        error: BaseException | None = None
        try:
            while (pack := self._next()) is not None:
                self._send(pack)
        except Stopping:
            pass
        except BaseException as failed:  # noqa: BLE001 - raised again by the engine
            error = failed
        with self._ending:
            if error is not None and (self.error is None or self.from_source):
                # Also where the source has ended by one before: what is under way was not all sent.
                self.error, self.from_source = error, False
                # The other thread is to read nothing more.
                self._failed = True
            self._left -= 1
            last = self._left == 0
        if last:
            if self._unread is not None:
                self._unread.close()  # files are let go of
            self._flight.end_taking()

    def _next(self) -> _Pack | None:
        """The next pack, once there is room for it; None at the end.

        Raises:
            Stopping: the run stops.
        """
        with self._reading:
            if self._ended or self._failed:
                return None
            pack = self._read()
            if not self._flight.take(pack.items, self._cursor, self._n):
                raise Stopping
            return pack

    def _read(self) -> _Pack:
        """Read as much as goes in one request, or up to the end."""
        if self._unread is None:
            self._unread = self._entries()
        pack = _Pack(min(PACK_LINES, max(1, self._flight.most // 4)))
        before, n = self._cursor, self._n
        done, name_of, lines = self._done or (), self._name_of, self._lines
        self._ended = True
        for entry in self._unread:
            if entry.n not in done:
                item = PendingInput(entry, name_of(entry.n), before)
                try:
                    line: bytes | HeadraceError = lines(entry, item.job_id)
                except RequestError as error:
                    line = error
                pack.add(item, line)
            before, n = entry.cursor, entry.n + 1
            if pack.full():
                self._ended = False
                break
        # Also where the last entries had their rows: the run stands behind them then.
        self._cursor, self._n = before, n
        return pack

    def _entries(self) -> Generator[Entry]:
        """What the source gives; its error is kept until all before it is sent."""
        try:
            yield from self._source.entries(self._cursor, self._n)
        except OSError as error:
            why = error.strerror or str(error)
            self._ended_by(ConfigError(f"the source cannot be read on: {why}"))
        except Exception as error:  # noqa: BLE001 - raised again by the engine
            self._ended_by(error)

    def _ended_by(self, error: Exception) -> None:
        """The source gives no more, which is told unless the other thread could not send its pack.

        That pack is never sent, so that the engine is not to wait for the end of all.
        """
        with self._ending:
            if self.error is None:
                self.from_source, self.error = True, error

    def _send(self, pack: _Pack) -> None:
        """Submit what is to be submitted.

        Raises:
            Stopping: the run stops.
            HeadraceError: what would meet every other input too.
        """
        items, lines = pack.items, pack.lines
        good, said, bad = items, [line for line in lines if isinstance(line, bytes)], []
        if len(said) < len(lines):
            both = list(zip(items, lines, strict=True))
            good = [item for item, line in both if isinstance(line, bytes)]
            bad = [(item, line) for item, line in both if not isinstance(line, bytes)]
        if good:
            errors = self._submit(said, self._lines.quiet)
            if any(errors):
                told = list(zip(good, errors, strict=True))
                bad += [(item, error) for item, error in told if error is not None]
                good = [item for item, error in told if error is None]
            _check(error for _, error in bad)
            if self._lines.by_ref and not (good or self._has_rows):
                # Nothing may be named, as it seems; later a file that may not fails alone.
                forbidden = [error for error in errors if isinstance(error, InputForbidden)]
                if forbidden:
                    raise forbidden[0]
            self._has_rows = self._has_rows or bool(good)
            self._flight.sent(good)
        if bad:
            self._refuse([(item, rejected(item.entry, error)) for item, error in bad])


class _Pack:
    """Items that go in one request, with their lines; in place of one that cannot go, why."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.items: list[PendingInput] = []
        self.lines: list[bytes | HeadraceError] = []
        self._size = 0
        self._late = 0.0

    def add(self, item: PendingInput, line: bytes | HeadraceError) -> None:
        """Take one in."""
        size = len(line) if isinstance(line, bytes) else 0
        for raw in item.entry.carried.values():
            size += memoryview(raw).nbytes
        item.size = size
        self._size += size
        if not self.items:
            self._late = time.monotonic() + GATHER_S
        self.items.append(item)
        self.lines.append(line)

    def full(self) -> bool:
        """Whether it is to go."""
        count = len(self.items)
        if count >= self._most or self._size >= PACK_BYTES:
            return True
        return count > 0 and time.monotonic() > self._late


class Stopping(Exception):
    """The run stops: what was about to be asked is not asked."""


def _reference(path: Path) -> InputRef:
    """What names a file to the server.

    Raises:
        InvalidRequest: its name is no text.
    """
    name = os.path.abspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{name!a}: the name is not UTF-8, so that it cannot be named to the server",
            hint="Rename the file, or leave --by-ref out.",
        ) from None
    return InputRef(f"file:{name}")


def rejected(entry: Entry, error: HeadraceError) -> Row:
    """The row of an entry that no job was made of."""
    said = error.message
    if error.hint:
        said = f"{said.removesuffix('.')}. {error.hint}"
    failure = Failure(type=error.code, message=said, retryable=error.retryable)
    return Row(entry.n, entry.key, "rejected", error=failure, carried=entry.carried)


def _check(errors: Iterable[HeadraceError]) -> None:
    """Raise what is not of one input alone."""
    for error in errors:
        if isinstance(error, JobNotFound):
            raise Conflict(
                "the server has jobs of this run that another API key has submitted",
                hint="Go on with that key, or remove the output and its .run to begin anew.",
            )
        if not isinstance(error, OF_ONE_INPUT):
            raise error
