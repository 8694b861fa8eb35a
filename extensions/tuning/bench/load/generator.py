"""The generator: sends the requests of a load at their times and notes what became of each.

It is one thread on asyncio, with raw connections and the parser httptools. It runs in a process of
its own, so that nothing else delays it: processes.py starts
`python -m extensions.tuning.bench.load.generator FD`, and talks to it over this socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
from typing_extensions import override

from extensions.tuning.bench.load.plan import Cut, Plan, Sent
from extensions.tuning.bench.load.rows import NEVER, NOT_SENT, Row
from extensions.tuning.bench.load.targets import reader


class Alarm:
    """Calls back at a time, with the precision of the kernel's timers.

    Timers of asyncio are rounded up to a millisecond. That would be a part of each latency.
    """

    _MONOTONIC: Final = 1
    _ABSOLUTE: Final = 1

    class _Time(ctypes.Structure):
        _fields_ = [(name, ctypes.c_long) for name in ("repeat_s", "repeat_ns", "s", "ns")]

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop, self._call = loop, call
        self._libc = ctypes.CDLL(None)
        self._file = self._libc.timerfd_create(self._MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(self._file, self._ring)

    def set(self, at: float) -> None:
        """Call back at a time of `time.monotonic`; it replaces an earlier one."""
        seconds = int(at)
        when = self._Time(0, 0, seconds, max(1, int((at - seconds) * 1e9)))
        self._libc.timerfd_settime(self._file, self._ABSOLUTE, ctypes.byref(when), None)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        self._call()

    def close(self) -> None:
        """Free the timer."""
        self._loop.remove_reader(self._file)
        os.close(self._file)


#: The most connections of one generator; more requests wait for a free one.
CONNECTIONS_MAX: Final = 4000
#: The most requests of one generator that have no answer yet; a load with more cannot be sent.
UNDER_WAY_MAX: Final = 200_000
#: Late requests are sent in groups of this size, so that answers are read in between.
_GROUP: Final = 32
_TICK_S: Final = 0.02
#: A user of a closed load waits so long after a connection that failed.
_PAUSE_S: Final = 0.1
READY: Final = b"R"


@dataclass(slots=True, eq=False)
class _Request:
    input: int
    due: float
    sent: float
    connection: _Connection | None = None
    again: bytes = b""
    repeated: bool = False
    late: bool = False


class _Connection(asyncio.Protocol):
    """A connection that is kept alive; one request at a time."""

    def __init__(self, owner: Generator, request: _Request) -> None:
        import httptools

        self.request: _Request | None = request
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._used = False
        self._keep = True
        self.transport: Any = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.request is None:
            transport.close()
        else:
            self.send(self.request)

    def send(self, request: _Request) -> None:
        self.request = request
        request.connection = self
        if self.transport is not None:
            self.transport.write(request.again or self._owner.requests[request.input])

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except Exception:  # noqa: BLE001 - the parser has a class for each problem
            self.end("unreadable answer")

    def on_body(self, part: bytes) -> None:
        """Keep a part of the body; the parser calls it."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """Hand over a complete answer; the parser calls it."""
        status = self._parser.get_status_code()
        body = b"".join(self._body)
        self._body.clear()
        if status < 200 or self.request is None:
            return
        request, self.request, self._used = self.request, None, True
        self._keep = self._parser.should_keep_alive()
        self._owner.answered(self, request, status, body, keep=self._keep)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        request, self.request = self.request, None
        self._owner.lost(self)
        if request is not None:
            # A server may close an idle connection at the moment at which it is used again.
            if self._used and not request.repeated and not self._body:
                request.repeated = True
                self._owner.place(request)
            else:
                self._owner.ended(request, "connection lost")

    def end(self, error: str) -> None:
        """Close the connection, and fail its request."""
        request, self.request = self.request, None
        if self.transport is not None:
            self.transport.abort()
        if request is not None:
            self._owner.ended(request, error)


class Generator:
    """Sends one load from a time of `time.monotonic` on."""

    def __init__(self, plan: Plan, start_at: float) -> None:
        self.requests = plan.target.requests
        self._plan = plan
        self._start = start_at
        self._read = reader(plan.target.protocol)
        self._host, self._port, secure = plan.target.address
        self._tls = (
            ssl.create_default_context(cafile=plan.target.ca_file or None) if secure else None
        )
        self._due: Iterator[float] = plan.scenario.arrivals(plan.duration_s, plan.seed)
        self._closed = plan.scenario.kind in ("closed", "single")
        self._end = plan.duration_s
        self._last_answer_s = plan.duration_s + plan.timeout_s
        self._rows: list[Row] = []
        self._ticks: list[float] = []
        self._under_way: dict[_Request, None] = {}
        self._idle: list[_Connection] = []
        self._waiting: deque[_Request] = deque()
        self._open: set[_Connection] = set()
        self._most = CONNECTIONS_MAX
        self._sent = self._late = 0
        self._users = 0
        self._exhausted = self._was_cut = self._overrun = False
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """Return the seconds since the start of the load."""
        return time.monotonic() - self._start

    async def run(self) -> Sent:
        """Send the load, wait for its answers, and return what was seen."""
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._most = min(CONNECTIONS_MAX, _open_files() - 64)
        # uvloop wakes up to a millisecond early. A request due before the start would not count.
        while (left_s := self._start - time.monotonic()) > 0:  # noqa: ASYNC110 - it is a time
            await asyncio.sleep(left_s)
        cpu_s = time.process_time()
        self._alarm = Alarm(self._loop, self._send_due)
        if self._plan.scenario.concurrency:
            self._users = self._plan.scenario.concurrency
            for _ in range(self._users):
                self._next_of_user()
        else:
            self._next_due = next(self._due, None)
            self._send_due()
        self._expected_tick = self.now() + _TICK_S
        self._tick()
        try:
            await self._done
        finally:
            self._alarm.close()
            self._close()
        used_s = time.process_time() - cpu_s
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        length_s = min(self.now(), self._end)
        return Sent(
            self._rows, self._ticks, length_s, used_s, self._was_cut, used_s, memory_mb,
            overrun=self._overrun,
        )  # fmt: skip

    def _send_due(self) -> None:
        """Send what is due by the clock, and set the alarm for the next request."""
        for _ in range(_GROUP):
            due, now = self._next_due, self.now()
            if due is None or self._was_cut:
                self._exhausted = True
                self._check_end()
                return
            if due > now:
                self._alarm.set(self._start + due)
                return
            if now >= self._last_answer_s or len(self._under_way) >= UNDER_WAY_MAX:
                # No answer could come in time, or requests would fill the memory.
                self._exhausted = self._overrun = True
                self._check_end()
                return
            self._start_request(due, now)
            self._next_due = next(self._due, None)
        self._loop.call_soon(self._send_due)

    def _next_of_user(self) -> None:
        """Send the next request of a user of a closed or an offline load."""
        now = self.now()
        due = next(self._due, None)
        if due is None or self._was_cut or (self._closed and now >= self._end):
            self._users -= 1
            self._exhausted = self._users <= 0
            self._check_end()
            return
        self._start_request(now if self._closed else due, now)

    def _start_request(self, due: float, now: float) -> None:
        request = _Request(self._sent % len(self.requests), due, now)
        self._sent += 1
        self._under_way[request] = None
        self.place(request)

    def place(self, request: _Request) -> None:
        """Send a request on an idle connection or a new one, or let it wait for one."""
        if self._idle:
            self._idle.pop().send(request)
        elif len(self._open) < self._most:
            connection = request.connection = _Connection(self, request)
            self._open.add(connection)
            task = self._loop.create_task(self._connect(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._waiting.append(request)

    async def _connect(self, request: _Request) -> None:
        connection = request.connection
        if connection is None:
            return
        try:
            await self._loop.create_connection(
                lambda: connection, self._host, self._port, ssl=self._tls
            )
        except (OSError, ssl.SSLError) as error:
            self._open.discard(connection)
            if connection.request is not None:
                connection.request = None
                reason = (
                    "connection refused" if isinstance(error, ConnectionError) else "no connection"
                )
                self.ended(request, reason)

    def answered(
        self, connection: _Connection, request: _Request, status: int, body: bytes, *, keep: bool
    ) -> None:
        """Take an answer; its connection is free again if it is kept."""
        now = self.now()
        if not keep:
            connection.transport.close()
        elif (waiting := self._next_waiting()) is not None:
            connection.send(waiting)
        else:
            self._idle.append(connection)
        if request not in self._under_way:
            return
        answer = self._read(status, body)
        if answer.again:
            request.again = (
                f"GET {answer.again} HTTP/1.1\r\n".encode() + self._plan.target.headers + b"\r\n"
            )
            self.place(request)
            return
        self._finish(
            request,
            Row(
                request.input, request.due, request.sent, now, answer.error, answer.stages,
                answer.batch_size,
            ),
        )  # fmt: skip
        if self._users:
            self._next_of_user()

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that is closed."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        if not self._done.done() and (waiting := self._next_waiting()) is not None:
            self.place(waiting)

    def _next_waiting(self) -> _Request | None:
        """Return the next request that waits for a connection; those that have ended stay there."""
        while self._waiting:
            request = self._waiting.popleft()
            if request in self._under_way:
                return request
        return None

    def ended(self, request: _Request, error: str) -> None:
        """Take a request that has no answer."""
        if self._done.done() or request not in self._under_way:
            return
        self._finish(request, Row(request.input, request.due, request.sent, NEVER, error))
        if self._users:
            self._loop.call_later(_PAUSE_S, self._next_of_user)

    def _finish(self, request: _Request, row: Row) -> None:
        del self._under_way[request]
        self._rows.append(row)
        cut = self._plan.cut
        if cut is not None and not request.late and row.due_s >= cut.after_s:
            late = row.error != "" or row.latency_ms > cut.latency_ms
            self._late += late
        self._check_end()

    def _tick(self) -> None:
        """Measure the delay of timers, fail what has waited too long, and stop what is lost."""
        if self._done.done():
            return
        now = self.now()
        self._ticks.append(max(0.0, now - self._expected_tick))
        for request in list(self._overdue(now - self._plan.timeout_s)):
            self._give_up(request, "timeout")
        cut = self._plan.cut
        if cut is not None and not self._was_cut:
            for request in self._overdue(now - cut.latency_ms / 1000):
                if not request.late and request.due >= cut.after_s:
                    request.late = True
                    self._late += 1
            if self._late > cut.allowed:
                self._stop(now, cut)
        self._expected_tick = now + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        self._check_end()

    def _overdue(self, before: float) -> Iterator[_Request]:
        """Yield the requests under way that were due before a time; they are in that order."""
        for request in self._under_way:
            if request.due > before:
                return
            yield request

    def _give_up(self, request: _Request, error: str) -> None:
        connection = request.connection
        if connection is None:
            self.ended(request, NOT_SENT)
        elif connection.request is request:
            connection.end(error)
        else:
            self.ended(request, error)

    def _stop(self, now: float, cut: Cut) -> None:
        """Stop a load that cannot meet its objective; what may still be in time is left out."""
        self._was_cut = self._exhausted = True
        self._end = now
        self._users = 0
        for request in list(self._under_way):
            del self._under_way[request]
            if request.due <= now - cut.latency_ms / 1000:
                self._rows.append(
                    Row(request.input, request.due, request.sent, NEVER, "unanswered")
                )

    def _check_end(self) -> None:
        if self._exhausted and not self._under_way and not self._done.done():
            self._done.set_result(None)

    def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for connection in self._open:
            if connection.transport is not None:
                connection.transport.abort()


def _open_files() -> int:
    """Allow as many open files as this process may, and return the number."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 20 if most == resource.RLIM_INFINITY else most
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def generate(plan: Plan, start_at: float | None = None) -> Sent:
    """Send a load in this thread, now or from a time of `time.monotonic`; return what was seen."""
    start_at = time.monotonic() if start_at is None else start_at
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop
    # A collection stops the thread for milliseconds, and a load makes no cycles worth it.
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(Generator(plan, start_at).run())
    finally:
        gc.enable()


def main() -> None:
    """Read a plan, report that it can start, read when to start, and write what was seen."""
    # Ctrl-C reaches the whole group; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Connection(int(sys.argv[1]))
    plan = msgspec.msgpack.decode(parent.recv_bytes(), type=Plan)
    parent.send_bytes(READY)
    start_at = msgspec.msgpack.decode(parent.recv_bytes(), type=float)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    parent.send_bytes(msgspec.msgpack.encode(generate(plan, start_at)))


def _end_with(parent: Connection) -> None:
    """End when the parent has closed the socket, as it does when it dies."""
    with contextlib.suppress(EOFError, OSError):
        parent.recv_bytes()
    os._exit(1)


if __name__ == "__main__":
    main()
