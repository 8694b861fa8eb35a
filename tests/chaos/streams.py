"""A million pieces over kills of API processes: `python -m tests.chaos.streams`.

Each client follows one job, whose pieces are numbers. After a lost connection it goes on behind the
last event that it has. It fails if its next piece has not the next number: a piece is lost, or has
come twice. API processes are killed with `kill -9` while the clients read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.servers.api_processes import ApiProcesses, api_processes
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

CLIENTS = 64
PROCESSES = 2
#: How long the clients may take from one kill to the next.
PATIENCE_S = 300.0
#: Seconds between two attempts to connect.
RECONNECT_S = 0.02
LINE_MAX_BYTES = 1 << 24


@dataclass
class Follower:
    """A client that follows one job.

    Attributes:
        count: how many pieces it has, which is also the number of the next one.
        connections: how many it has made.
    """

    port: int
    job_id: str
    total: int
    count: int = 0
    last: str = ""
    connections: int = 0
    ended: bool = False

    async def follow(self) -> None:
        """Read the stream to the end of the job, over any number of connections."""
        while not self.ended:
            try:
                await self._read()
            except (OSError, EOFError):
                await asyncio.sleep(RECONNECT_S)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=LINE_MAX_BYTES)
        self.connections += 1
        try:
            writer.write(
                f"GET /api/v1/jobs/{self.job_id}/stream HTTP/1.1\r\nHost: x\r\n"
                f"Last-Event-ID: {self.last}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                return
            fields: dict[bytes, bytes] = {}
            while not self.ended and (line := await reader.readline()).endswith(b"\n"):
                name, _, value = line.strip().partition(b": ")
                fields[name] = value
                if line == b"\n" and b"data" in fields:  # else the event is not whole
                    self._take(
                        fields[b"event"], fields[b"id"].decode(), json.loads(fields[b"data"])
                    )
                    fields = {}
        finally:
            writer.close()

    def _take(self, event: bytes, event_id: str, data: Any) -> None:
        assert event in (b"pieces", b"ended"), f"{self.job_id}: {event!r} {data}"
        self.last = event_id
        if event == b"ended":
            assert (data["status"], data["result"]) == ("succeeded", self.total), data
            assert self.count == self.total, f"{self.job_id}: ended after {self.count} pieces"
            self.ended = True
            return
        wanted = list(range(self.count, self.count + len(data)))
        assert data == wanted, f"{self.job_id}: after {self.count} pieces came {data[:3]}"
        self.count += len(data)
        assert int(event_id.split(".")[0]) == self.count, (
            f"{self.job_id}: {event_id} is piece {self.count}"
        )


async def _kill(
    followers: list[Follower], api: ApiProcesses, gate: Path, kills: int, chance: random.Random
) -> None:
    """Let the pieces come in equal parts, and kill an API process in the middle of each."""
    total = sum(one.total for one in followers)
    for number in range(1, kills + 1):
        await _until(lambda: len(api.pids()) == PROCESSES, "all API processes run")
        share = (number - 1 + chance.random()) / kills
        have = lambda share=share: sum(one.count for one in followers) >= share * total  # noqa: E731
        await _until(have, f"{share:.1%} of the pieces have come")
        os.kill(chance.choice(api.pids()), signal.SIGKILL)
        if number % 10 == 0:
            _say(f"{number} kills")
        (gate / str(number)).touch()


async def _until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {description}"
        await asyncio.sleep(0.01)


async def _follow(
    followers: list[Follower], api: ApiProcesses, gate: Path, kills: int, chance: random.Random
) -> None:
    async with asyncio.TaskGroup() as group:
        for one in followers:
            group.create_task(one.follow())
        group.create_task(_kill(followers, api, gate, kills, chance))


def run(folder: Path, seed: int, *, pieces: int, kills: int, clients: int = CLIENTS) -> None:
    """Run it; raise AssertionError if a piece is lost or comes twice.

    Args:
        folder: where everything lies; empty.
        seed: the moments of the kills and their victims are drawn from it.
        pieces: how many, of all clients together.
        kills: how many.
        clients: how many, with a job each.
    """
    (gate := folder / "gate").mkdir()
    each = -(-pieces // clients)
    every = -(-each // kills)
    handler = f"{HANDLERS / 'generation/counting.py'}:Numbers"
    models = write_models(folder, m={"handler": handler, "max_batch_size": clients})
    _say(f"--seed {seed}: {each * clients:,} pieces, {clients} clients, {kills} kills")
    with (
        redis_server() as server,
        celery_worker(server.url, models, folder) as worker,
        Client(server.url, models) as client,
        api_processes(folder / "api", server.url, PROCESSES) as api,
    ):
        worker.wait_ready("m")
        value = {"pieces": each, "every": every, "until": str(gate)}
        ids = client.submit("m", *(value for _ in range(clients)), timeout=3600)
        followers = [Follower(api.port, job_id, each) for job_id in ids]
        began = time.monotonic()
        asyncio.run(_follow(followers, api, gate, kills, random.Random(seed)))
        seconds = time.monotonic() - began
    connections = sum(one.connections for one in followers)
    # A killed process breaks the connections of its clients; half of them by chance.
    assert connections > clients + kills, connections
    _say(f"{seconds:.0f} s, {connections:,} connections: no piece is lost, none has come twice")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.streams", description=__doc__)
    parser.add_argument("--pieces", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="headrace-streams-") as folder:
        run(Path(folder), seed, pieces=given.pieces, kills=given.kills, clients=given.clients)


if __name__ == "__main__":
    main()
