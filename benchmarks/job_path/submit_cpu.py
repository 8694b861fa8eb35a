"""What two pieces of the API give that exist for speed alone.

    python -m benchmarks.job_path.submit_cpu

Two API processes on one Redis take submits in turn, one with a piece and one without it. One piece
is `write_whole` (api/http/uvicorn_protocol.py): without it an answer is two messages of ASGI. The
other is the access log's own lines (api/observability/access_log.py): without it `logging` writes
them. The figure is the CPU of the process for each submit, because other load on the machine
changes it less than the rate.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from api import process as api_process
from api.http import answers as http_answers
from api.observability.access_log import LOGGER, AccessLog
from benchmarks.common.http_load import run_load
from benchmarks.common.inputs import BODY
from benchmarks.common.systems import Cpu, answers, process
from benchmarks.common.tables import Table
from headrace.server.ports import free_port
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

#: Each piece, with the setting under which it is used.
PIECES: Final[dict[str, dict[str, str]]] = {
    "write_whole": {},
    "access_log": {"HEADRACE_ACCESS_LOG": "true"},
}
PATH: Final = "/api/v1/models/echo/jobs?wait=0"


def without(piece: str) -> None:
    """Remove a piece from this process."""
    if piece == "write_whole":
        setattr(http_answers, piece, lambda *_: False)
        return
    logger = logging.getLogger(LOGGER)

    def write_line(_: AccessLog, fields: dict[str, Any]) -> bytes:
        logger.info("request", extra=fields)
        return b""

    for name in ("_json", "_text"):
        setattr(AccessLog, name, write_line)


@contextmanager
def served(
    server: RedisServer, folder: Path, piece: str, removed: str
) -> Iterator[tuple[str, Cpu]]:
    """Run an API process for one side of a pair; yield the URL of its submits, and its CPU."""
    models = write_models(folder, echo={"handler": "echo", "max_queue_depth": 10_000_000})
    port = free_port()
    environ = {
        "HEADRACE_REDIS_URL": server.url, "HEADRACE_MODELS_FILE": str(models),
        "HEADRACE_PORT": str(port), **PIECES[piece],
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.job_path.submit_cpu", "--serve", removed]
    with process(command, folder / f"{removed}.log", **environ) as child:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/live"), "the API responds", 60)
        yield url + PATH, Cpu({"api": [child.pid]})


def measure(piece: str, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Return the CPU seconds per 1,000 submits with a piece and without it, in pairs."""
    pairs = []
    with redis_server() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            served(server, folder, piece, "nothing") as present,
            served(server, folder, piece, piece) as removed,
            server.client() as client,
        ):
            for number in range(-1, rounds):
                taken = []
                for url, cpu in (present, removed) if number % 2 else (removed, present):
                    cpu.start()
                    load = run_load(url, BODY, 64, seconds)
                    if load.bad:
                        raise RuntimeError(f"requests failed: {load}")
                    taken.append(cpu.per_1000(load.requests)["api"])
                    client.flushall()
                if number >= 0:  # the first pair warms up
                    pairs.append((taken[0], taken[1]) if number % 2 else (taken[1], taken[0]))
    return pairs


def main() -> None:
    """Measure both pieces and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of each load")
    parser.add_argument("--rounds", type=int, default=7, help="pairs")
    parser.add_argument("--serve", metavar="PIECE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        sys.argv = sys.argv[:1]
        if arguments.serve in PIECES:
            without(arguments.serve)
        sys.exit(api_process.main())
    table = Table("piece", "CPU s per 1,000 submits", "without it", "saves")
    for piece in PIECES:
        pairs = measure(piece, arguments.seconds, arguments.rounds)
        saved = statistics.median(1 - present / removed for present, removed in pairs)
        present, removed = (statistics.median(side) for side in zip(*pairs, strict=True))
        table.add(piece, f"{present:.3f}", f"{removed:.3f}", f"{saved:.0%}")


if __name__ == "__main__":
    main()
