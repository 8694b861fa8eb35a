"""Time from a job's end to the waiter's response.

    python -m benchmarks.job_path.answer_delay

Two API processes share one Redis. A job is claimed, two clients wait for it, then it is settled.
Two spans are measured:

- *answered*: from the job's end until the kernel stamps the last packet of the response at the
  waiter's socket. The job's end is the time by Redis' clock when `jobs/settle.lua` begins. This is
  the time of Headrace and Redis, without the client.
- *read*: from before the call of `jobs/settle.lua` until the client has read the whole response. It
  includes the call to Redis and the wake-up of the client.
"""

from __future__ import annotations

import select
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

import msgspec
import redis

from headrace.redis import keys
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_processes import api_processes
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until

ROUNDS: Final = 300
WARM_UP: Final = 30
TIMEOUT_S: Final = 90
#: Linux' SO_TIMESTAMPNS_OLD, which Python does not name: the wall-clock time of a packet.
SO_TIMESTAMPNS: Final = 35
_STAMP: Final = struct.Struct("qq")


class Span(NamedTuple):
    """The spans of one waiter, in seconds; see this module."""

    answered_s: float
    read_s: float


class _Ended(msgspec.Struct):
    finished_at: str


class Caller:
    """One keep-alive connection, read packet by packet.

    Attributes:
        stamped_s: when the kernel received the last packet, in seconds since 1970.
        read_s: when it was read, in seconds of `perf_counter`.
    """

    def __init__(self, port: int) -> None:
        self.stamped_s = self.read_s = 0.0
        self._answer = b""
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request."""
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._answer = b""
        self._socket.sendall(head.encode() + body)

    def read(self) -> bool:
        """Read what has arrived; return whether the response is complete."""
        data, stamps, _, _ = self._socket.recvmsg(65536, 256)
        self.read_s = time.perf_counter()
        assert data, "the API hung up"
        for level, kind, stamp in stamps:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, ns = _STAMP.unpack(stamp)
                self.stamped_s = seconds + ns / 1e9
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return False
        (length,) = (
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        return len(body) == length

    def ended_s(self) -> float:
        """Return the job's end in the response, in seconds since 1970."""
        head, _, body = self._answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        job = msgspec.json.decode(body, type=_Ended)
        return datetime.fromisoformat(job.finished_at).timestamp()


def read_all(callers: Sequence[Caller]) -> None:
    """Read the responses of all."""
    waiting = list(callers)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], TIMEOUT_S)
        assert ready, "no response"
        waiting = [caller for caller in waiting if caller not in ready or not caller.read()]


@contextmanager
def callers() -> Iterator[tuple[redis.Redis, Caller, Caller]]:
    """Yield Redis, a connection to one API process, and one to another."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(redis_server())
        apis = [
            stack.enter_context(api_processes(folder / name, server.url)) for name in ("a", "b")
        ]
        client = stack.enter_context(server.client())
        own, foreign = (stack.enter_context(closing(Caller(api.port))) for api in apis)
        yield client, own, foreign


def measure(client: redis.Redis, own: Caller, foreign: Caller) -> tuple[Span, Span]:
    """Run one job; return the spans of its submitter and of the waiter at the other process."""
    own.send("POST", "/api/v1/models/echo/jobs?wait=60", b"1")
    claimed = wait_until(lambda: claim(client, "echo"), "the job")
    job_id = claimed[0][0].id
    foreign.send("GET", f"/api/v1/jobs/{job_id}?wait=60")

    def subscribed() -> bool:
        found: Any = client.pubsub_numsub(keys.meta(job_id))
        return int(found[0][1]) == 1

    wait_until(subscribed, "the other process is subscribed")
    before = time.perf_counter()
    settle(client, "echo", claimed, [Answer(result=b"1")])
    read_all([own, foreign])
    return _span(own, before), _span(foreign, before)


def _span(caller: Caller, before: float) -> Span:
    return Span(caller.stamped_s - caller.ended_s(), caller.read_s - before)


def row(name: str, seconds: Sequence[float]) -> str:
    """Return percentiles in milliseconds."""
    cut = quantiles(seconds, n=100)
    return (
        f"{name:28} p50 {cut[49] * 1000:5.2f}  p90 {cut[89] * 1000:5.2f}  "
        f"p99 {cut[98] * 1000:5.2f}  max {max(seconds) * 1000:5.2f}"
    )


def main() -> None:
    with callers() as (client, own, foreign):
        for _ in range(WARM_UP):
            measure(client, own, foreign)
        found = [measure(client, own, foreign) for _ in range(ROUNDS)]
    print(f"ms, {ROUNDS} jobs; answered: from the job's end to the response at the waiter's socket")
    for at, name in enumerate(("submit and wait", "GET ?wait elsewhere")):
        spans = [pair[at] for pair in found]
        print(row(f"{name}, answered", [span.answered_s for span in spans]))
        print(row(f"{name}, read", [span.read_s for span in spans]))


if __name__ == "__main__":
    main()
