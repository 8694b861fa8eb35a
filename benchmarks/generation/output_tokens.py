"""Output tokens a second: `python -m benchmarks.generation.output_tokens [--write]`.

1, 8 and 32 clients read streams of the model `python_docs` through the whole system. It is compared
with transformers' bare manager in a process of its own, with the same model, prompts and options.
The turns change their order: A, B, B, A. The model process has one thread, so that a core is left
for the rest; the manager has one, or both. Each client asks again as soon as it has its answer. The
manager's clients are threads of its process, which wait; those of Headrace read HTTP in a process
of their own, on the same cores.

`--transformers PYTHON` measures `transformers serve --continuous-batching` instead, from a Python
that has `transformers[serving]`. The clients of both then read `/v1/chat/completions`. `--write`
puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from benchmarks.common.systems import ROOT, Headrace
from benchmarks.common.tables import Table, write_tables
from benchmarks.generation.transformers_serve import ask_chat, transformers_serve
from handlers.generation.continuous import ContinuousEngine
from handlers.language_model import INCLUDED, LanguageModel
from headrace.handler import Context

CLIENTS = (1, 8, 32)
SLOTS = 32
TOKENS = 128
COLUMNS = (
    "clients", "manager, 1 thread", "manager, 2 threads", "Headrace", "of 1 thread",
    "of 2 threads", "first token, manager, p50 ms", "first token, Headrace, p50 ms",
)  # fmt: skip
SERVED_COLUMNS = (
    "clients", "transformers serve", "Headrace", "of transformers serve",
    "first token, transformers serve, p50 ms", "p99 ms", "Headrace, p50 ms", "p99 ms", "p99, ratio",
)  # fmt: skip
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys(THREADS, "1")
#: Where jobs are submitted.
PATH = "/api/v1/models/writer/jobs"
NAMES = ("zip", "json.loads", "random.choice", "the with statement", "the yield statement", "dict")


@dataclass
class Run:
    """What some clients measured together: tokens a second, and ms to each first token."""

    rate: float
    first_ms: list[float]

    @property
    def first_p50_ms(self) -> float:
        """Return the median time to the first token."""
        return statistics.median(self.first_ms)

    @property
    def first_p99_ms(self) -> float:
        """Return the 99th percentile of the time to the first token."""
        return sorted(self.first_ms)[max(0, math.ceil(len(self.first_ms) * 0.99) - 1)]


def asked(number: int, tokens: int) -> dict[str, Any]:
    """Return an input of so many new tokens."""
    message = {"role": "user", "content": f"What is {NAMES[number % len(NAMES)]}?"}
    return {"messages": [message], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def measured(clients: int, rounds: int, tokens: int, ask: Callable[[int], float]) -> Run:
    """Let clients ask in turn; `ask` returns the seconds to the first token of one answer."""

    def one_client(number: int) -> list[float]:
        return [ask(number + turn) for turn in range(rounds)]

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        firsts = [first for found in pool.map(one_client, range(clients)) for first in found]
    seconds = time.perf_counter() - started
    return Run(clients * rounds * tokens / seconds, [first * 1000 for first in firsts])


def ask_headrace(url: str, tokens: int, number: int) -> float:
    """Submit a question, and return the seconds to the first piece of its answer."""
    return first_piece_s(url, msgspec.json.encode(asked(number, tokens)))


def first_piece_s(url: str, body: bytes) -> float:
    """Submit a job, read its stream to the end, and return the seconds to its first piece."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        started = time.perf_counter()
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        job = json.loads(connection.getresponse().read())
        connection.request("GET", f"{job['urls']['self']}/stream?format=text")
        answer = connection.getresponse()
        answer.read1()
        first = time.perf_counter() - started
        answer.read()
        return first
    finally:
        connection.close()


class BareManager:
    """The manager of transformers, with the options of the handler and nothing else."""

    def __init__(self) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
        self._model = LanguageModel()
        context = Context("m", "1", "cpu", Path(), max_batch_size=SLOTS)
        self._model.initialize(context)
        engine = self._model.engine
        if not isinstance(engine, ContinuousEngine):
            raise TypeError("the model does not run with continuous batching")
        self.manager = engine.manager
        # In a thread of its own, as transformers itself runs it.
        self.manager.start()
        self._waiting: dict[str, tuple[threading.Event, threading.Event]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            output = self.manager.get_result(timeout=1)
            if output is not None:
                first, last = self._waiting[output.request_id]
                first.set()
                if output.is_finished():
                    last.set()

    def ask(self, tokens: int, number: int) -> float:
        """Run one request to its end, and return the seconds to its first token."""
        (request,) = self._model.preprocess([asked(number, tokens)])
        name = f"{number} {time.perf_counter()}"
        self._waiting[name] = first, last = threading.Event(), threading.Event()
        started = time.perf_counter()
        self.manager.add_request(
            request.tokens, request_id=name, max_new_tokens=tokens, streaming=True, eos_token_id=-1
        )
        first.wait(120)
        seconds = time.perf_counter() - started
        last.wait(120)
        return seconds


def serve_bare() -> None:
    """Measure the bare manager for each line of standard input; print each run as a line."""
    manager = BareManager()
    for line in sys.stdin:
        clients, rounds, tokens = map(int, line.split())
        run = measured(clients, rounds, tokens, partial(manager.ask, tokens))
        print(json.dumps(asdict(run)), flush=True)
    manager.manager.stop(hard_stop=True)


class Bare:
    """The bare manager in a process of its own, with so many threads; 0 for PyTorch's default."""

    def __init__(self, threads: int) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in THREADS}
        if threads:
            environ |= dict.fromkeys(THREADS, str(threads))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generation.output_tokens", "--serve-bare"],
            cwd=ROOT, text=True, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, clients: int, rounds: int, tokens: int) -> Run:
        """Measure so many clients."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{clients} {rounds} {tokens}\n")
        process.stdin.flush()
        return Run(**json.loads(process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Its figures have been read. An orderly end may take a minute on a busy machine.
        self._process.kill()
        self._process.communicate()


def in_turns(turns: int, *kinds: Callable[[], Run]) -> list[list[Run]]:
    """Run all kinds so many times, in both orders; return the runs of each turn."""
    runs = []
    for turn in range(turns + 1):
        order = range(len(kinds)) if turn % 2 else reversed(range(len(kinds)))
        found = {kind: kinds[kind]() for kind in order}
        runs.append([found[kind] for kind in range(len(kinds))])
    return runs[1:]  # the first one warms up


def spread(ratios: Iterable[float]) -> str:
    """Return the median, the least and the largest of some ratios."""
    found = sorted(ratios)
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def measure(
    table: Table, rounds: int, turns: int, tokens: int, counts: Sequence[int] = CLIENTS
) -> None:
    """Measure all in turns, and add a row for each number of clients."""
    writer = {"handler": "language_model", "max_batch_size": SLOTS}
    with (
        Bare(1) as one,
        Bare(0) as default,
        Headrace(events=False, models={"writer": writer}, environ=ONE_THREAD) as stack,
    ):
        ask = partial(ask_headrace, stack.url, tokens)
        for clients in counts:
            runs = in_turns(
                turns,
                partial(one.run, clients, rounds, tokens),
                partial(default.run, clients, rounds, tokens),
                partial(measured, clients, rounds, tokens, ask),
            )
            rates = [
                statistics.median(run.rate for run in kind) for kind in zip(*runs, strict=True)
            ]
            shares = [spread(turn[2].rate / turn[kind].rate for turn in runs) for kind in (0, 1)]
            firsts = [
                statistics.median(turn[kind].first_p50_ms for turn in runs) for kind in (0, 2)
            ]
            table.add(
                str(clients),
                *(f"{rate:,.0f}" for rate in rates),
                *shares,
                *(f"{first:.1f}" for first in firsts),
            )


def measure_served(
    table: Table,
    python: str,
    rounds: int,
    turns: int,
    tokens: int,
    clients: Sequence[int] = CLIENTS,
) -> None:
    """Measure `transformers serve` and Headrace in turns; add a row for each number of clients."""
    writer = {"handler": "language_model", "max_batch_size": SLOTS}
    with (
        transformers_serve(python, INCLUDED, SLOTS, ONE_THREAD) as (served, model),
        Headrace(events=False, models={"writer": writer}, environ=ONE_THREAD) as stack,
    ):

        def ask_served(number: int) -> float:
            return ask_chat(served, model, tokens, {"messages": asked(number, tokens)["messages"]})

        def ask(number: int) -> float:
            messages = asked(number, tokens)["messages"]
            return ask_chat(stack.url, "writer", tokens, {"messages": messages, "ignore_eos": True})

        for count in clients:
            # So many that the 99th percentile of one client means something.
            each = rounds * (4 if count == 1 else 1)
            runs = in_turns(
                turns,
                partial(measured, count, each, tokens, ask_served),
                partial(measured, count, each, tokens, ask),
            )
            other, own = (_joined(kind) for kind in zip(*runs, strict=True))
            share = spread(own.rate / other.rate for other, own in runs)
            table.add(
                str(count), f"{other.rate:,.0f}", f"{own.rate:,.0f}", share,
                *(f"{one:.1f}" for one in (
                    other.first_p50_ms, other.first_p99_ms, own.first_p50_ms, own.first_p99_ms,
                )), f"{own.first_p99_ms / other.first_p99_ms:.2f}",
            )  # fmt: skip


def _joined(runs: Sequence[Run]) -> Run:
    """Return runs as one: the median of their rates, and all first tokens."""
    rate = statistics.median(run.rate for run in runs)
    return Run(rate, [first for run in runs for first in run.first_ms])


def main() -> None:
    """Measure and print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into docs/performance.md")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="how many, in turn")
    parser.add_argument("--rounds", type=int, default=4, help="answers of each client")
    parser.add_argument("--turns", type=int, default=4, help="runs of which the median counts")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="new tokens of each answer")
    parser.add_argument("--transformers", metavar="PYTHON", help="one with transformers[serving]")
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_bare:
        serve_bare()
        return
    counts = arguments.rounds, arguments.turns, arguments.tokens, arguments.clients
    if arguments.transformers:
        name, table = "generation-served", Table(*SERVED_COLUMNS)
        measure_served(table, arguments.transformers, *counts)
    else:
        name, table = "generation", Table(*COLUMNS)
        measure(table, *counts)
    if arguments.write:
        write_tables(
            name, f"{arguments.turns} turns, {arguments.tokens} new tokens an answer.", table
        )


if __name__ == "__main__":
    main()
