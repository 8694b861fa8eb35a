"""Online answers beside an offline batch.

    python -m benchmarks.generation.online_during_batch [--write]

A batch of 10,000 lines is sent to the model `python_docs`. Meanwhile online clients send requests
at a fixed rate. Three runs take turns: the clients alone, the batch alone, and both. The model
process has one thread, so that a core is left for the rest.

Each run of the batch alone begins when no online request has come for so long that its steps have
no limit. With both, the clients begin a moment before they are measured: the first request after a
quiet time waits for a full step.

The batch could have what the clients leave of the model process. This is measured in CPU time of
that process, because other programs may use the cores too. It is the time with both, less the time
that as many answers took with the clients alone. `--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import psutil

from benchmarks.common.systems import Headrace, process
from benchmarks.common.tables import Table, write_tables
from benchmarks.generation.output_tokens import NAMES, ONE_THREAD, PATH, SLOTS, first_piece_s
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until
from workers.model_process.generation.offline_limit import ONLINE_S

LINES: Final = 10_000
#: New tokens of a line of the batch, and of an online answer; tokens of an online prompt.
LINE_TOKENS: Final = 64
ANSWER_TOKENS: Final = 32
PROMPT_TOKENS: Final = 300
#: For how long clients send requests before they are measured beside the batch, in seconds.
BEGIN_S: Final = 3
ENDED: Final = re.compile(
    r'^headrace_jobs_ended_total\{.*model="writer".* ([0-9.e+]+)$', re.MULTILINE
)
COLUMNS: Final = (
    "", "first token p50, ms", "first token p99, ms", "online answers/s", "batch, tokens/s",
    "CPU of the model process",
)  # fmt: skip


@dataclass
class Run:
    """What one run measured.

    Attributes:
        first_ms: the times to the first token of the online answers.
        answers: online answers a second.
        batch: new tokens of the batch a second.
        cpu: CPU seconds of the model process a second.
    """

    first_ms: list[float] = field(default_factory=list)
    answers: float = 0.0
    batch: float = 0.0
    cpu: float = 0.0


class Clients:
    """Online clients. They send requests at a fixed rate, answered or not."""

    def __init__(self, url: str, rate: float) -> None:
        self._url = url
        self._gap_s = 1 / rate
        self._random = random.Random(1)

    def run(self, seconds: float) -> list[float]:
        """Return the seconds to the first token of each answer."""
        with ThreadPoolExecutor(64) as pool:
            started = time.perf_counter()
            asked = []
            for number in range(round(seconds / self._gap_s)):
                time.sleep(max(0.0, started + number * self._gap_s - time.perf_counter()))
                asked.append(pool.submit(first_piece_s, self._url, self._prompt()))
            return [one.result() for one in asked]

    def _prompt(self) -> bytes:
        # No two prompts begin alike, so none is in the cache.
        tokens = [self._random.randrange(16, 2000) for _ in range(PROMPT_TOKENS)]
        return msgspec.json.encode(
            {"prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        )


class Ended:
    """How many jobs of the model have ended, while it is looked at."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http
        self._seen: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def count(self) -> float:
        return sum(float(found) for found in ENDED.findall(self._http.get("/metrics").text))

    def _look(self) -> None:
        while not self._stop.is_set():
            found = self.count()
            if not self._seen or found != self._seen[-1][1]:
                self._seen.append((time.perf_counter(), found))
            self._stop.wait(0.1)

    def __enter__(self) -> Ended:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Workers report once a second.
        wait_until(lambda: len(self._seen) > 3, "three reports come", timeout_s=60)
        self._stop.set()
        self._thread.join()

    @property
    def rate(self) -> float:
        """Jobs a second, between the first and the last change."""
        changes = self._seen[1:]
        (first_at, first), (last_at, last) = changes[0], changes[-1]
        return (last - first) / (last_at - first_at)


@contextmanager
def batch(http: httpx2.Client, count: Callable[[], float]) -> Iterator[None]:
    """Run a batch, from when its first jobs have ended; cancel it afterwards."""
    lines = "\n".join(json.dumps(line(number)) for number in range(LINES))
    file = http.post(
        "/v1/files", files={"file": ("lines.jsonl", lines.encode())}, data={"purpose": "batch"}
    ).json()
    made = http.post(
        "/v1/batches",
        json={"input_file_id": file["id"], "endpoint": PATH, "completion_window": "24h"},
    ).json()
    before = count()
    wait_until(lambda: count() >= before + 2 * SLOTS, "the batch runs", timeout_s=120)
    try:
        yield
    finally:
        url = f"/v1/batches/{made['id']}"
        http.post(f"{url}/cancel")
        ended = ("cancelled", "completed", "failed")
        wait_until(lambda: http.get(url).json()["status"] in ended, "it ends", timeout_s=120)


def line(number: int) -> dict[str, Any]:
    """Return a line of the batch."""
    message = {"role": "user", "content": f"What is {NAMES[number % len(NAMES)]}? ({number})"}
    value = {"messages": [message], "max_tokens": LINE_TOKENS, "temperature": 0, "ignore_eos": True}
    return {"custom_id": str(number), "method": "POST", "url": PATH, "body": value}


class Site:
    """The system under measurement."""

    def __init__(self, stack: Headrace, http: httpx2.Client, rate: float, seconds: float) -> None:
        self._http = http
        self._clients = Clients(stack.url, rate)
        self._seconds = seconds
        states = stack.worker.states()
        self._process = psutil.Process(states["writer"]["pids"][0])

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def online(self) -> Run:
        """Measure the clients alone."""
        cpu, started = self._cpu_s(), time.perf_counter()
        firsts = self._clients.run(self._seconds)
        seconds = time.perf_counter() - started
        cpu = (self._cpu_s() - cpu) / seconds
        return Run([1000 * one for one in firsts], len(firsts) / seconds, cpu=cpu)

    def offline(self) -> Run:
        """Measure the batch alone."""
        time.sleep(ONLINE_S)
        ended = Ended(self._http)
        with batch(self._http, ended.count), ended:
            cpu, started = self._cpu_s(), time.perf_counter()
            time.sleep(self._seconds)
            cpu = (self._cpu_s() - cpu) / (time.perf_counter() - started)
        return Run(batch=ended.rate * LINE_TOKENS, cpu=cpu)

    def both(self) -> Run:
        """Measure the clients beside the batch."""
        ended = Ended(self._http)
        with batch(self._http, ended.count):
            self._clients.run(BEGIN_S)
            with ended:
                found = self.online()
        found.batch = (ended.rate - found.answers) * LINE_TOKENS
        return found


@contextmanager
def served(rate: float, seconds: float) -> Iterator[Site]:
    """Run the system, with a batch runner."""
    writer = {
        "handler": "language_model", "max_batch_size": SLOTS, "options": {"cache_tokens": 32_768},
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        Headrace(events=False, models={"writer": writer}, environ=ONE_THREAD) as stack,
        process(
            [sys.executable, "-m", "headrace", "runner"], Path(folder, "runner.log"),
            HEADRACE_REDIS_URL=stack.redis.url, HEADRACE_URL=stack.url,
        ),
        httpx2.Client(base_url=stack.url, timeout=60, verify=PLAIN) as http,
    ):  # fmt: skip
        yield Site(stack, http, rate, seconds)


def share_of_rest(online: Run, offline: Run, both: Run) -> float:
    """Return what the batch had beside the clients, as a share of what they left.

    It is infinite if they left nothing, as on a machine that stands still.
    """
    left_cpu = both.cpu - online.cpu / online.answers * both.answers
    possible = offline.batch / offline.cpu * left_cpu if offline.cpu else 0.0
    return both.batch / possible if possible else math.inf


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(site: Site, turns: int) -> tuple[Table, Table]:
    """Measure all in turns; return the table, and that of the ratios."""
    runs = []
    site.online()  # it warms up
    for _ in range(turns):
        runs.append((site.online(), site.offline(), site.both()))
        print([f"{one.batch:.0f} tokens/s, CPU {one.cpu:.2f}" for one in runs[-1]], flush=True)
    names = ("online alone", "batch alone", "both")
    table = Table(*COLUMNS)
    for name, kind in zip(names, zip(*runs, strict=True), strict=True):
        firsts = [first for run in kind for first in run.first_ms]
        table.add(
            name,
            f"{statistics.median(firsts):.1f}" if firsts else "",
            f"{percentile(firsts, 0.99):.1f}" if firsts else "",
            f"{statistics.median(run.answers for run in kind):.1f}" if firsts else "",
            f"{statistics.median(run.batch for run in kind):,.0f}" if kind[0].batch else "",
            f"{statistics.median(run.cpu for run in kind):.2f}",
        )
    ratios = Table("during the batch", "measured", "aim")
    alone, beside = ([first for turn in runs for first in turn[place].first_ms] for place in (0, 2))
    for share, aim in ((0.5, ""), (0.99, "at most 1.15")):
        slower = percentile(beside, share) / percentile(alone, share)
        ratios.add(f"first token p{100 * share:g}, of that alone", f"{slower:.2f}", aim)
    ratios.add(
        "tokens of the batch, of what the clients leave",
        f"{statistics.median(share_of_rest(*turn) for turn in runs):.2f}",
        "at least 0.85",
    )
    return table, ratios


def main() -> None:
    """Measure and print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into docs/performance.md")
    parser.add_argument("--turns", type=int, default=3, help="runs of each kind")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--rate", type=float, default=3, help="online requests a second")
    given = parser.parse_args()
    with served(given.rate, given.seconds) as site:
        table, ratios = measure(site, given.turns)
    if given.write:
        about = (
            f"{given.turns} runs of {given.seconds:g} s, {given.rate:g} online requests a second "
            f"with prompts of {PROMPT_TOKENS} tokens and answers of {ANSWER_TOKENS}; "
            f"lines with answers of {LINE_TOKENS}."
        )
        write_tables("generation-classes", about, table, ratios)


if __name__ == "__main__":
    main()
