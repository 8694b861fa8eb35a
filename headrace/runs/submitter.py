"""The threads that read the source and submit its inputs while there is room."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.client.inputs import InputRef, encode_input, job_line
from headrace.errors import (
    ConfigError,
    Conflict,
    HeadraceError,
    InputForbidden,
    InvalidId,
    InvalidInput,
    InvalidRequest,
    JobNotFound,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)
from headrace.jobs.job import JobFailure
from headrace.runs.in_flight import InFlight, PendingInput
from headrace.runs.interfaces import Cursor, Entry, Row, RunSpec, Source
from headrace.runs.range_set import RangeSet

#: The most lines and bytes of one request.
PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
#: A page is sent after this time even if the source has not filled it.
GATHER_S: Final = 0.05
#: Requests at a time.
THREADS: Final = 2

#: Errors of one input; any other error would concern every input.
OF_ONE_INPUT: Final = (
    Conflict, InputForbidden, InvalidId, InvalidInput, InvalidRequest, PayloadTooLarge,
    UnsupportedMedia,
)  # fmt: skip

#: Receives the places of lines whose jobs now exist.
Accepted = Callable[[list[int]], None]
Submit = Callable[[list[bytes], bool, Accepted], list[HeadraceError | None]]
Refuse = Callable[[list[tuple[PendingInput, Row]]], None]


class Lines:
    """Makes the lines of a bulk submit.

    Attributes:
        quiet: the run deletes its jobs, so that the server need not publish their ends.
        by_ref: a file is sent as a reference, which the server reads.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.quiet = spec.forget
        self.by_ref = spec.by_ref
        head = msgspec.json.encode({"model": spec.model})[:-1]
        rest: dict[str, Any] = {}
        if spec.version is not None:
            rest["version"] = spec.version
        if spec.parameters:
            rest["parameters"] = spec.parameters
        if spec.options:
            rest["options"] = spec.options
        self._head = head + b',"id":"'
        self._middle = b'",' + msgspec.json.encode(rest)[1:-1] + (b"," if rest else b"")

    def __call__(self, entry: Entry, job_id: str) -> bytes:
        """Return an entry's line; raise RequestError if it cannot be sent, or is an error."""
        value = entry.input
        if isinstance(value, msgspec.Raw):
            return b'%b%b%b"input":%b}' % (self._head, job_id.encode(), self._middle, value)
        content_type = entry.content_type or self._spec.content_type
        if self.by_ref and isinstance(value, Path):
            value = _reference(value)
        if isinstance(value, HeadraceError):
            raise value
        if callable(value):
            line: bytes = value(job_id)
            return line
        if isinstance(value, InputRef):
            spec = self._spec
            return job_line(
                spec.model, value, content_type, spec.version, spec.options, job_id,
                spec.parameters,
            )  # fmt: skip
        text = encode_input(value, content_type)
        return b'%s%s%s"input":%s}' % (self._head, job_id.encode(), self._middle, text)


class Submitter:
    """Reads and submits until the source ends, the run stops, or something fails.

    Its threads take turns to read a page, so that inputs are in flight in their order. While one
    waits for the server's response, the other reads and sends the next page.

    Args:
        start: where the source continues, and which numbers behind it have their row.
        job_id: returns the id of an input's job.
        submit: submits lines, quietly or not. Returns for each None or why it has no job, and
            reports those that have one as soon as it knows. Raises Stopping if the run stops.
        refuse: receives the rows of entries that have no job.

    Attributes:
        error: what ended it early.
        from_source: the error is the source's, so that what is in flight may end first.
    """

    def __init__(
        self,
        source: Source,
        in_flight: InFlight,
        start: tuple[Cursor | None, int, RangeSet],
        lines: Lines,
        job_id: Callable[[int], str],
        submit: Submit,
        refuse: Refuse,
    ) -> None:
        self._source = source
        self._in_flight = in_flight
        self._cursor, self._n, self._done = start
        self._lines = lines
        self._job_id = job_id
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
            threading.Thread(target=self._run, name="headrace-submitter", daemon=True)
            for _ in range(THREADS)
        ]
        self._left = len(self._threads)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the threads, at most `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (page := self._next()) is not None:
                self._send(page)
        except Stopping:
            pass
        except BaseException as failed:  # noqa: BLE001 - raised again by the engine
            error = failed
        with self._ending:
            if error is not None and (self.error is None or self.from_source):
                # Not the source's error any more: a page was not sent, so not all can end.
                self.error, self.from_source = error, False
                # The other thread must read nothing more.
                self._failed = True
            self._left -= 1
            last = self._left == 0
        if last:
            if self._unread is not None:
                self._unread.close()  # closes the source's files
            self._in_flight.end_adding()

    def _next(self) -> _Page | None:
        """Return the next page once there is room, None at the end; raise Stopping at a stop."""
        with self._reading:
            if self._ended or self._failed:
                return None
            page = self._read()
            if not self._in_flight.add(page.inputs, self._cursor, self._n):
                raise Stopping
            return page

    def _read(self) -> _Page:
        """Read a page, or up to the end of the source."""
        if self._unread is None:
            self._unread = self._entries()
        page = _Page(min(PAGE_LINES, max(1, self._in_flight.most // 4)))
        before, n = self._cursor, self._n
        done, job_id, lines = self._done or (), self._job_id, self._lines
        self._ended = True
        for entry in self._unread:
            if entry.n not in done:
                pending = PendingInput(entry, job_id(entry.n), before)
                try:
                    line: bytes | HeadraceError = lines(entry, pending.job_id)
                except RequestError as error:
                    line = error.kept()
                page.add(pending, line)
            before, n = entry.cursor, entry.n + 1
            if page.full():
                self._ended = False
                break
        # Also if the last entries already had their rows.
        self._cursor, self._n = before, n
        return page

    def _entries(self) -> Generator[Entry]:
        """Yield the source's entries; its error is stored until all before it were sent."""
        try:
            yield from self._source.entries(self._cursor, self._n)
        except OSError as error:
            why = error.strerror or str(error)
            self._source_failed(ConfigError(f"the source cannot be read further: {why}"))
        except Exception as error:  # noqa: BLE001 - raised again by the engine
            self._source_failed(error)

    def _source_failed(self, error: Exception) -> None:
        """Store the source's error, unless the other thread could not send its page.

        That page is never sent, so that the engine must not wait until all inputs have ended.
        """
        with self._ending:
            if self.error is None:
                self.from_source, self.error = True, error

    def _send(self, page: _Page) -> None:
        """Submit a page; raise Stopping, or an error that would concern all other inputs too."""
        good, bad = page.inputs, []
        lines = [line for line in page.lines if isinstance(line, bytes)]
        if len(lines) < len(page.lines):
            pairs = list(zip(page.inputs, page.lines, strict=True))
            good = [pending for pending, line in pairs if isinstance(line, bytes)]
            bad = [(pending, line) for pending, line in pairs if not isinstance(line, bytes)]
        if good:
            sent = good

            def accepted(places: list[int]) -> None:
                # The others may wait for a limit until these have ended.
                self._in_flight.mark_sent([sent[at] for at in places])

            errors = self._submit(lines, self._lines.quiet, accepted)
            if any(errors):
                results = list(zip(good, errors, strict=True))
                bad += [(pending, error) for pending, error in results if error is not None]
                good = [pending for pending, error in results if error is None]
            _check(error for _, error in bad)
            if self._lines.by_ref and not (good or self._has_rows):
                # No file of the first page is allowed: probably none is. Later ones fail alone.
                forbidden = [error for error in errors if isinstance(error, InputForbidden)]
                if forbidden:
                    raise forbidden[0]
            self._has_rows = self._has_rows or bool(good)
        if bad:
            self._refuse([(pending, rejected(pending.entry, error)) for pending, error in bad])


class _Page:
    """Inputs of one request with their lines; an input that cannot be sent has an error instead."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.inputs: list[PendingInput] = []
        self.lines: list[bytes | HeadraceError] = []
        self._size = 0
        self._due = 0.0

    def add(self, pending: PendingInput, line: bytes | HeadraceError) -> None:
        """Add an input."""
        size = len(line) if isinstance(line, bytes) else 0
        for raw in pending.entry.carried.values():
            size += memoryview(raw).nbytes
        pending.size = size
        self._size += size
        if not self.inputs:
            self._due = time.monotonic() + GATHER_S
        self.inputs.append(pending)
        self.lines.append(line)

    def full(self) -> bool:
        """Return whether the page is complete or due."""
        count = len(self.inputs)
        if count >= self._most or self._size >= PAGE_BYTES:
            return True
        return count > 0 and time.monotonic() > self._due


class Stopping(Exception):
    """The run stops: the next request is not sent."""


def _reference(path: Path) -> InputRef:
    """Return the reference to a file; raise InvalidRequest if its name is not UTF-8."""
    name = os.path.abspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{name!a}: the name is not UTF-8, so it cannot be sent as a reference",
            hint="Rename the file, or run without --by-ref.",
        ) from None
    return InputRef(f"file:{name}")


def rejected(entry: Entry, error: HeadraceError) -> Row:
    """Return the row of an entry that has no job."""
    failure = JobFailure(
        type=error.code, message=error.message_with_hint, retryable=error.retryable
    )
    return Row(entry.n, entry.key, "rejected", error=failure, carried=entry.carried)


def _check(errors: Iterable[HeadraceError]) -> None:
    """Raise an error that does not concern one input alone."""
    for error in errors:
        if isinstance(error, JobNotFound):
            raise Conflict(
                "the server has jobs of this run that another API key has submitted",
                hint="Resume with that key, or remove the output and its .run to start a new run.",
            )
        if not isinstance(error, OF_ONE_INPUT):
            raise error
