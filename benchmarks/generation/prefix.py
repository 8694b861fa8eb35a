"""Offline lines that begin alike: with the prefix cache, and without it.

    python -m benchmarks.generation.prefix [--write]

An OpenAI batch of 1,000 chats with one system prompt of 500 tokens goes to the model `python_docs`,
which is served twice: `prefix_cache` is on in one, and off in the other. Their turns change their
order: A, B, B, A. Each model process has one thread, so that a core is left for the rest. Its CPU
time is measured too, because other programs may use the cores. `--write` puts the table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx2
import psutil

from benchmarks.common.systems import Headrace, process
from benchmarks.common.tables import Table, write_tables
from benchmarks.generation.output_tokens import NAMES, ONE_THREAD, SLOTS
from handlers.language_model import INCLUDED, load_tokenizer
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until

ENDPOINT: Final = "/v1/chat/completions"
SYSTEM_TOKENS: Final = 500
#: The models, by what is in the table.
KINDS: Final = {"without": "apart", "with": "shared"}
COLUMNS: Final = ("prefix cache", "lines/s", "CPU of the model process, ms a line", "cached")


@dataclass
class Run:
    """One batch.

    Attributes:
        seconds: from its creation to its end.
        cpu_s: what the model process took.
        cached: the share of the tokens of the prompts that came from the cache.
        texts: the answers, by the names of their lines.
    """

    seconds: float
    cpu_s: float
    cached: float
    texts: dict[str, str]


class Site:
    """The system, with both models."""

    def __init__(self, stack: Headrace, http: httpx2.Client, lines: int, tokens: int) -> None:
        self._stack = stack
        self._http = http
        self._lines = lines
        self._tokens = tokens
        tokenizer = load_tokenizer(INCLUDED)
        words = " ".join(f"Answer like the help of {name}." for name in NAMES * 20)
        self._system = tokenizer.decode(tokenizer(words).input_ids[:SYSTEM_TOKENS])

    def run(self, model: str) -> Run:
        """Run a batch to its end."""
        lines = "\n".join(json.dumps(self._line(model, n)) for n in range(self._lines))
        file = self._post("/v1/files", files={"file": ("lines.jsonl", lines.encode())},
                          data={"purpose": "batch"})  # fmt: skip
        (pid,) = self._stack.worker.states()[model]["pids"]
        times = psutil.Process(pid).cpu_times
        before, started = times(), time.perf_counter()
        made = self._post("/v1/batches", json={
            "input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h",
        })  # fmt: skip
        url = f"/v1/batches/{made['id']}"

        def ended() -> Any:
            found = self._http.get(url).json()
            return found if found["status"] in ("completed", "failed") else None

        batch = wait_until(ended, "the batch ends", timeout_s=3600)
        seconds, after = time.perf_counter() - started, times()
        if batch["request_counts"]["completed"] != self._lines:
            raise RuntimeError(f"lines have failed: {batch}")
        rows = self._http.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
        answers = {
            row["custom_id"]: row["response"]["body"] for row in map(json.loads, rows)
        }  # fmt: skip
        usages = [answer["usage"] for answer in answers.values()]
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        return Run(
            seconds, after.user + after.system - before.user - before.system,
            cached / sum(usage["prompt_tokens"] for usage in usages),
            {name: answer["choices"][0]["message"]["content"] for name, answer in answers.items()},
        )  # fmt: skip

    def _post(self, url: str, **content: Any) -> Any:
        return self._http.post(url, **content).raise_for_status().json()

    def _line(self, model: str, number: int) -> dict[str, Any]:
        name = NAMES[number % len(NAMES)]
        messages = [
            {"role": "system", "content": self._system},
            {"role": "user", "content": f"What is {name}? ({number})"},
        ]
        body = {
            "model": model, "messages": messages, "max_tokens": self._tokens, "temperature": 0,
            "ignore_eos": True,
        }  # fmt: skip
        return {"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": body}


@contextmanager
def served(lines: int, tokens: int) -> Iterator[Site]:
    """Run the system with both models, and a batch runner."""
    models = {
        model: {
            "handler": "language_model", "max_batch_size": SLOTS, "timeout_s": 3600,
            "options": {"prefix_cache": model == KINDS["with"]},
        }
        for model in KINDS.values()
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        Headrace(events=False, models=models, environ=ONE_THREAD) as stack,
        process(
            [sys.executable, "-m", "headrace", "runner"], Path(folder, "runner.log"),
            HEADRACE_REDIS_URL=stack.redis.url, HEADRACE_URL=stack.url,
        ),
        httpx2.Client(base_url=stack.url, timeout=60, verify=PLAIN) as http,
    ):  # fmt: skip
        yield Site(stack, http, lines, tokens)


def measure(site: Site, lines: int, turns: int) -> tuple[Table, Table]:
    """Measure all in turns; return the table, and that of the ratios."""
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    kinds = list(KINDS)
    for _ in range(turns):
        for kind in kinds:
            run = site.run(KINDS[kind])
            print(f"{kind}: {run.seconds:.1f} s, CPU {run.cpu_s:.1f} s", flush=True)
            runs[kind].append(run)
        kinds.reverse()
    table = Table(*COLUMNS)
    for kind, found in runs.items():
        table.add(
            kind,
            f"{lines / median(run.seconds for run in found):.1f}",
            f"{1000 * median(run.cpu_s for run in found) / lines:.1f}",
            f"{median(run.cached for run in found):.0%}",
        )
    return table, ratios(runs["without"], runs["with"])


def ratios(apart: Sequence[Run], shared: Sequence[Run]) -> Table:
    """Return what the cache brings, and whether it changes answers."""
    table = Table("with the prefix cache", "median", "least", "largest")
    pairs = list(zip(apart, shared, strict=True))
    for name, values in (
        ("lines/s, of those without it", [one.seconds / other.seconds for one, other in pairs]),
        ("CPU of the model process", [other.cpu_s / one.cpu_s for one, other in pairs]),
    ):
        table.add(name, *(f"{value:.2f}" for value in (median(values), min(values), max(values))))
    same = [sum(other.texts[n] == text for n, text in one.texts.items()) for one, other in pairs]
    table.add("equal answers", *(f"{count:,}" for count in (median(same), min(same), max(same))))
    return table


def main() -> None:
    """Measure and print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into docs/performance.md")
    parser.add_argument("--turns", type=int, default=3, help="batches of each kind")
    parser.add_argument("--lines", type=int, default=1_000, help="of each batch")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of a line")
    given = parser.parse_args()
    with served(given.lines, given.tokens) as site:
        tables = measure(site, given.lines, given.turns)
    if given.write:
        about = (
            f"{given.lines:,} lines a batch, {given.turns} of each kind, a system prompt of "
            f"{SYSTEM_TOKENS} tokens, answers of {given.tokens} tokens."
        )
        write_tables("generation-prefix", about, *tables)


if __name__ == "__main__":
    main()
