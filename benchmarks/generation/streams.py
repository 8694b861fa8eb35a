"""Pieces a second of streams, and hang-ups: `python -m benchmarks.generation.streams [--write]`.

Clients read streams of pieces that cost nothing to make. One server is Headrace, whose pieces go
through a model process and Redis. The other is a bare loop of server-sent events in FastAPI.
`--litserve PYTHON` adds LitServe, which that Python has. All are measured in turns within one run.
Then many clients ask a language model for long answers and hang up; what counts is when the next
short answer comes. `--write` puts the tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common.systems import Headrace, answers, process
from benchmarks.common.tables import Table, write_tables
from headrace.server.ports import free_port
from tests.harness.wait import wait_until

CLIENTS = 64
PIECES = 64
HANG_UPS = 200
#: Seconds after which the clients hang up.
PATIENCE_S = 0.5
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
HERE = Path(__file__).parent
HANDLER = HERE / "pieces_handler.py"
COLUMNS = ("", "pieces/s", "of bare FastAPI", "first piece alone, p50 ms")


@dataclass
class Run:
    """What was read at the same time: pieces a second, and the seconds to each first piece."""

    rate: float
    firsts_s: list[float]


async def post(url: str, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a POST on a new connection; return the connection, before the answer."""
    netloc = urlsplit(url).netloc
    host, _, port = netloc.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    send(writer, "POST", path, body)
    return reader, writer


def send(writer: asyncio.StreamWriter, method: str, path: str, body: Any = None) -> None:
    """Send a request."""
    text = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    writer.write(head.encode() + text)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Read an answer with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    return await reader.readexactly(length)


async def read_events(reader: asyncio.StreamReader, started: float) -> tuple[int, float]:
    """Read a stream to its end; return how many pieces came, and when the first one did."""
    count, first = 0, 0.0
    while line := await reader.readline():
        if line.startswith(b"data: "):
            found = json.loads(line[6:])
            if isinstance(found, dict):
                break
            count += len(found) if isinstance(found, list) else 1
            first = first or time.perf_counter() - started
        elif line == b"0\r\n":
            break
    return count, first


async def ask_headrace(url: str, pieces: int) -> tuple[int, float]:
    """Submit a job, and read its stream."""
    started = time.perf_counter()
    reader, writer = await post(url, "/api/v1/models/pieces/jobs", {"pieces": pieces})
    try:
        job = json.loads(await read_answer(reader))
        send(writer, "GET", f"{job['urls']['self']}/stream")
        return await read_events(reader, started)
    finally:
        writer.close()


async def ask_other(url: str, pieces: int) -> tuple[int, float]:
    """Read a stream of another server."""
    started = time.perf_counter()
    reader, writer = await post(url, "/predict", {"pieces": pieces})
    try:
        return await read_events(reader, started)
    finally:
        writer.close()


Ask = Callable[[int], Awaitable[tuple[int, float]]]


async def _all(ask: Ask, clients: int, rounds: int, pieces: int) -> Run:
    async def one() -> list[tuple[int, float]]:
        return [await ask(pieces) for _ in range(rounds)]

    started = time.perf_counter()
    found = [
        pair for some in await asyncio.gather(*(one() for _ in range(clients))) for pair in some
    ]
    seconds = time.perf_counter() - started
    lost = [count for count, _ in found if count != pieces]
    if lost:
        raise AssertionError(
            f"{len(lost)} of {len(found)} streams have not {pieces} pieces: {lost}"
        )
    return Run(len(found) * pieces / seconds, [first for _, first in found])


def measured(ask: Ask, clients: int, rounds: int, pieces: int) -> Run:
    """Let clients read streams at the same time."""
    return asyncio.run(_all(ask, clients, rounds, pieces))


@contextmanager
def other_server(name: str, python: str, folder: Path) -> Iterator[str]:
    """Run one of the servers to compare with; yield its URL."""
    port = free_port()
    command = [python, str(HERE / f"{name}_streams.py"), str(port)]
    with process(command, folder / f"{name}.log", PYTHONPATH=""):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url + "/docs"), f"{name} serves", 60)
        yield url


def measure_streams(
    table: Table, stack: Headrace, litserve: str | None, *, clients: int, rounds: int, turns: int
) -> None:
    """Measure all servers in turns, and add a row for each."""
    with ExitStack() as others:
        folder = Path(others.enter_context(tempfile.TemporaryDirectory()))
        bare = others.enter_context(other_server("fastapi", sys.executable, folder))
        asks: dict[str, Ask] = {
            "bare FastAPI": partial(ask_other, bare),
            "Headrace": partial(ask_headrace, stack.url),
        }
        if litserve:
            lit = others.enter_context(other_server("litserve", litserve, folder))
            asks["LitServe"] = partial(ask_other, lit)
        runs: dict[str, list[Run]] = {name: [] for name in asks}
        firsts: dict[str, list[float]] = {name: [] for name in asks}
        for turn in range(turns + 1):
            for name, ask in asks.items():
                run = measured(ask, clients, rounds, PIECES)
                alone = measured(ask, 1, 20, 1)
                if turn:  # the first one warms up
                    runs[name].append(run)
                    firsts[name] += alone.firsts_s
        for name in asks:
            pairs = zip(runs[name], runs["bare FastAPI"], strict=True)
            share = statistics.median(one.rate / other.rate for one, other in pairs)
            rate = statistics.median(run.rate for run in runs[name])
            first_ms = statistics.median(firsts[name]) * 1000
            table.add(name, f"{rate:,.0f}", f"{share:.2f}", f"{first_ms:.1f}")


async def _hang_up(url: str, count: int) -> float:
    """Let clients hang up; return the seconds until the next short answer."""

    def asked(tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "What is zip?"}]
        return {"model": "writer", "messages": messages, "max_tokens": tokens, **more}

    path = "/v1/chat/completions"
    long = asked(900, ignore_eos=True)
    opened = await asyncio.gather(*(post(url, path, long) for _ in range(count)))
    await asyncio.sleep(PATIENCE_S)
    for _, writer in opened:
        writer.close()
    started = time.perf_counter()
    reader, writer = await post(url, path, asked(5))
    json.loads(await read_answer(reader))["choices"]
    writer.close()
    return time.perf_counter() - started


def measure_hang_ups(table: Table, stack: Headrace, count: int, turns: int) -> None:
    """Add a row with the time of a short answer alone, and after hang-ups."""
    alone = [asyncio.run(_hang_up(stack.url, 0)) for _ in range(turns)]
    after = [asyncio.run(_hang_up(stack.url, count)) for _ in range(turns)]
    table.add(
        f"{count} clients", f"{statistics.median(alone):.2f}", f"{statistics.median(after):.2f}",
        f"{max(after):.2f}",
    )  # fmt: skip


def main() -> None:
    """Measure and print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into docs/performance.md")
    parser.add_argument("--litserve", metavar="PYTHON", help="a Python that has litserve")
    parser.add_argument("--rounds", type=int, default=4, help="streams of each client")
    parser.add_argument("--turns", type=int, default=5, help="runs of which the median counts")
    given = parser.parse_args()
    streams = Table(*COLUMNS)
    hang_ups = Table("hang up together", "alone, s", "after it, s", "after it at most, s")
    with stack() as running:
        measure_streams(
            streams, running, given.litserve, clients=CLIENTS, rounds=given.rounds,
            turns=given.turns,
        )  # fmt: skip
        measure_hang_ups(hang_ups, running, HANG_UPS, given.turns)
    if given.write:
        described = f"{CLIENTS} clients, {PIECES} pieces of 17 characters a stream."
        write_tables("streaming", described, streams, hang_ups)


def stack() -> Headrace:
    """Return Headrace with a model of pieces and a language model."""
    models = {
        "pieces": {"handler": f"{HANDLER}:Pieces", "max_batch_size": CLIENTS},
        "writer": {"handler": "language_model", "max_batch_size": 32},
    }
    return Headrace(events=False, models=models, environ=ONE_THREAD)


if __name__ == "__main__":
    main()
