"""Offline runs: `python -m benchmarks.runs [echo|images|online] [--write]`.

echo: `headrace run` from JSON lines to JSON lines. It is compared with a Celery group with a task
per input on a stock worker, and with Ray Data's `map_batches`. Ray is not a dependency: RAY_PYTHON
names a Python that has it (`python -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[data]'`).

images: real JPEGs through `image_classifier`, with resume on, with the files sent and with
`--by-ref`. It is compared, in interleaved pairs, with a loop over torch's DataLoader with the same
handler, batch size and cores. Steady is the rate between the ends of the second batch and the last
but one.

online: 20 jobs per second at random moments, alone and during a run of the same model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import httpx2
from typing_extensions import override

from benchmarks.common.inputs import BATCH, jpegs
from benchmarks.common.line_process import LineProcess, line_process
from benchmarks.common.systems import (
    DURABLE,
    ROOT,
    Cpu,
    answers,
    as_embedded,
    plain_celery,
    process,
)
from benchmarks.common.tables import Table, interval, write_tables
from benchmarks.runs.batch_ends import Ends
from headrace.handler import Context
from headrace.server.ports import free_port
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models
from workers.replicas.devices import model_environ, tuned

CELERY_GROUP: Final = 1000
#: A task per input is so slow that fewer inputs are enough.
CELERY_INPUTS: Final = 10_000
ONLINE_PER_S: Final = 20
RUNS: Final = {
    "run": "`headrace run`, resume on", "by ref": "`headrace run --by-ref`, resume on",
}  # fmt: skip
FIXED_S: Final = 0.010
ITEM_S: Final = 0.0005
RAY: Final = """
import json, sys, time
import ray
ray.init(include_dashboard=False, logging_level="ERROR")
started = time.perf_counter()
data = ray.data.read_json(sys.argv[1], lines=True)
data.map_batches(lambda batch: batch, batch_size=256).write_json(sys.argv[2])
print(json.dumps(time.perf_counter() - started))
"""


@dataclass
class Stack:
    """Redis, an API process and a worker."""

    url: str
    cpu: Cpu
    folder: Path
    redis: RedisServer

    def run(self, model: str, source: Path, *options: str) -> dict[str, Any]:
        """Run `headrace run` with a new output; return what it printed, with its CPU seconds."""
        out = self.folder / f"out-{time.monotonic_ns()}.jsonl"
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "run", model, str(source), "-o", str(out),
             "--json", "--quiet", *options],
            env={**os.environ, "HEADRACE_URL": self.url, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        after = os.times()
        found: dict[str, Any] = json.loads(done.stdout)
        used = after.children_user + after.children_system
        found["cpu_s"] = used - before.children_user - before.children_system
        with out.open() as file:
            assert sum(1 for _ in file) == found["succeeded"]
        out.unlink()
        return found


@contextmanager
def stack(**models: Mapping[str, Any]) -> Iterator[Stack]:
    """Run a stack with these models."""
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        path = write_models(folder, **models)
        redis = parts.enter_context(redis_server(*DURABLE, environ=as_embedded()))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        environ = {
            "HEADRACE_REDIS_URL": redis.url, "HEADRACE_MODELS_FILE": str(path),
            "HEADRACE_PORT": str(port), "HEADRACE_INPUT_ROOTS": str(folder),
        }  # fmt: skip
        command = [sys.executable, "-m", "api"]
        api = parts.enter_context(process(command, folder / "api.log", **environ))
        worker: Worker = parts.enter_context(celery_worker(
            redis.url, path, folder, arguments=(), environ={"HEADRACE_INPUT_ROOTS": str(folder)}
        ))  # fmt: skip
        worker.wait_ready(*models, timeout_s=300)
        wait_until(lambda: answers(url + "/live"), "the API responds", timeout_s=30)
        assert redis.process is not None
        pids = {"api": [api.pid], "redis": [redis.process.pid], "worker": [worker.pid]}
        yield Stack(url, Cpu({**pids, "model": worker.model_pids()}), folder, redis)


def write_lines(path: Path, count: int) -> None:
    """Write `count` small inputs as JSON lines."""
    with path.open("w") as file:
        for n in range(count):
            file.write(f'{{"id":"doc-{n}","x":{{"n":{n}}},"label":{n % 10}}}\n')


def echo(count: int, rounds: int, *, batch: int = 256) -> Table:
    """Measure inputs per second from JSON lines to JSON lines."""
    table = Table("JSON lines to JSON lines, `echo`", "inputs/s", "CPU µs an input")
    model = {"handler": "echo", "max_batch_size": batch, "max_queue_depth": 100_000}
    with stack(echo=model) as system:
        source = system.folder / "in.jsonl"
        write_lines(source, count)
        found_in: list[tuple[float, str]] = []
        for _ in range(rounds):
            system.cpu.start()
            found = system.run("echo", source, "--input", "x", "--key", "id")
            parts = {"client": found["cpu_s"] / count * 1000, **system.cpu.per_1000(count)}
            cpu = {**parts, "all": sum(parts.values())}
            used = ", ".join(f"{name} {1000 * ms:.0f}" for name, ms in cpu.items())
            found_in.append((count / found["seconds"], used))
            print(f"{found_in[-1][0]:,.0f} inputs/s, CPU µs an input: {used}", flush=True)
        rate, used = sorted(found_in)[len(found_in) // 2]
        table.add("`headrace run`, resume on", f"{rate:,.0f}", used)
        by_task = celery_group(source, min(count, CELERY_INPUTS))
        table.add("Celery group, a task per input", f"{by_task:,.0f}", "")
        ray = ray_data(source, system.folder / "ray")
        table.add("Ray Data `map_batches`", f"{count / ray:,.0f}" if ray else "not installed", "")
    return table


def celery_group(source: Path, count: int) -> float:
    """Return inputs per second through groups of a stock Celery worker, into JSON lines."""
    from celery import group

    with tempfile.TemporaryDirectory() as name, plain_celery(Path(name)) as (app, _, _):
        signature = app.signature
        started = time.perf_counter()
        with source.open() as file, (Path(name) / "out.jsonl").open("w") as out:
            lines = islice(file, count)
            while some := [json.loads(line) for line in islice(lines, CELERY_GROUP)]:
                sent = group(signature("echo", args=(row["x"],)) for row in some).apply_async()
                for row, result in zip(some, sent.get(timeout=600), strict=True):
                    out.write(json.dumps({**row, "result": result}) + "\n")
        return count / (time.perf_counter() - started)


def ray_data(source: Path, out: Path) -> float | None:
    """Return the seconds of Ray Data for the same; None if it is not installed."""
    python = os.environ.get("RAY_PYTHON")
    if not python:
        print("Ray Data: skipped; set RAY_PYTHON to a Python that has `ray[data]`")
        return None
    done = subprocess.run(
        [python, "-c", RAY, str(source), str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.splitlines()[-1])


def loop_process(folder: Path, batch: int) -> Any:
    """Run the DataLoader loop in its own process."""
    environ = tuned(model_environ(os.environ, 1), "cpu")
    arguments = ("loop", "--folder", str(folder), "--batch", str(batch))
    return line_process("benchmarks.runs", *arguments, environ=environ)


def loop(folder: Path, batch_size: int) -> None:
    """Run that process: a request is the number of workers, the reply images per second."""
    from torch.utils.data import DataLoader, Dataset

    from handlers.image_classifier import ImageClassifier

    handler = ImageClassifier()
    handler.initialize(Context("loop", "1.0", "cpu", Path(), max_batch_size=batch_size))
    paths = sorted(folder.glob("*.jpg"))

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(paths)

        @override
        def __getitem__(self, at: int) -> tuple[str, Any]:
            (item,) = handler.preprocess([paths[at].read_bytes()])
            return paths[at].name, item

    for line in sys.stdin:
        started = time.perf_counter()
        with tempfile.TemporaryFile("w") as out:
            batches: Any = DataLoader(
                Files(), batch_size=batch_size, num_workers=int(line), collate_fn=list
            )
            for batch in batches:
                names, items = zip(*batch, strict=True)
                results = handler.postprocess(handler.inference(list(items)))
                for name, result in zip(names, results, strict=True):
                    out.write(json.dumps({"key": name, "result": result}) + "\n")
        print(len(paths) / (time.perf_counter() - started), flush=True)


def images(count: int, pairs: int, *, batch: int = BATCH) -> Table:
    """Measure images per second, with files sent and by reference, and with the DataLoader."""
    heads = ("images/s", "steady", "run / loop", "by ref / loop", "CPU ms an image")
    table = Table("JPEGs through `image_classifier`", *heads)
    model = {"handler": "image_classifier", "max_batch_size": batch, "timeout_s": 600}
    with ExitStack() as parts:
        system = parts.enter_context(stack(m=model))
        folder = system.folder / "jpegs"
        folder.mkdir()
        for n, jpeg in enumerate(jpegs(count)):
            (folder / f"{n:06}.jpg").write_bytes(jpeg)
        other: LineProcess = parts.enter_context(loop_process(folder, batch))
        found = pairs_of(system, other, folder, pairs)
    for name, tries in found.items():
        parts_ms = {part: median(one.cpu_ms[part] for one in tries) for part in tries[0].cpu_ms}
        used = ", ".join(f"{part} {ms:.2f}" for part, ms in parts_ms.items())
        rate = f"{median(one.rate for one in tries):.1f}"
        if name in RUNS:
            steady = median(one.steady for one in tries)
            table.add(RUNS[name], rate, f"{steady:.1f}" if steady else "", "", "", used)
            continue
        ratios = [
            interval([run.rate / loop.rate for run, loop in zip(found[way], tries, strict=True)])
            for way in RUNS
        ]
        table.add(f"DataLoader, {name}", rate, "", *ratios, used)
    return table


@dataclass
class Attempt:
    """Images per second of one attempt, and milliseconds of CPU per image by process."""

    rate: float
    cpu_ms: dict[str, float]
    steady: float = 0.0


def pairs_of(
    system: Stack, other: LineProcess, folder: Path, pairs: int
) -> dict[str, list[Attempt]]:
    """Measure each variant in turn."""
    names = ["run", "in turn", "by ref", "1 worker"]
    found: dict[str, list[Attempt]] = {name: [] for name in names}
    count = len(list(folder.iterdir()))
    for pair in range(pairs):
        for name in names if pair % 2 else reversed(names):
            if name not in RUNS:
                before = other.cpu_s()
                rate = float(other.request("1" if name == "1 worker" else "0"))
                attempt = Attempt(rate, {"loop": (other.cpu_s() - before) / count * 1000})
            else:
                system.cpu.start()
                options = ["--by-ref"] if name == "by ref" else []
                with Ends(system.redis, "m") as ends:
                    done = system.run(
                        "m", folder, "--run-id", f"{name.replace(' ', '-')}-{pair}", *options
                    )
                used = {"client": done["cpu_s"] / count * 1000, **system.cpu.per_1000(count)}
                attempt = Attempt(done["succeeded"] / done["seconds"], used, ends.steady())
            found[name].append(attempt)
        print(json.dumps({name: round(one[-1].rate, 2) for name, one in found.items()}), flush=True)
    return found


def online(seconds: float) -> Table:
    """Measure the latency of online jobs, alone and during a run of the same model."""
    table = Table("20 online jobs a second", "p50 ms", "p99 ms", "run, inputs/s")
    model = {
        "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_batch_size": 16,
        "max_queue_depth": 100_000, "options": {"pause_s": FIXED_S, "item_s": ITEM_S},
    }  # fmt: skip
    with stack(paced=model) as system:
        alone = latencies_ms(system.url, seconds)
        source = system.folder / "in.jsonl"
        rate = 16 / (FIXED_S + 16 * ITEM_S)
        write_lines(source, int(rate * seconds))
        during: list[float] = []

        def submit() -> None:
            during.extend(latencies_ms(system.url, seconds / 2))

        submitting = threading.Thread(target=submit)
        submitting.start()
        found = system.run("paced", source, "--input", "x")
        submitting.join()
    full_ms = 1000 * (FIXED_S + 16 * ITEM_S)
    for name, taken, rate_text in (
        ("alone", alone, ""),
        (f"during a run (a full batch takes {full_ms:.0f} ms)", during,
         f"{found['succeeded'] / found['seconds']:,.0f}"),
    ):  # fmt: skip
        table.add(name, f"{median(taken):.1f}", f"{quantiles(taken, n=100)[98]:.1f}", rate_text)
    return table


def latencies_ms(url: str, seconds: float) -> list[float]:
    """Return the milliseconds from submit to result of jobs at random moments."""
    chance, taken = random.Random(5), []
    threads: list[threading.Thread] = []
    until = time.monotonic() + seconds
    with httpx2.Client(base_url=url, timeout=120) as http:

        def one() -> None:
            started = time.perf_counter()
            answer = http.post("/api/v1/models/paced/jobs?wait=60", content=b'{"n":1}')
            assert answer.json()["status"] == "succeeded", answer.text
            taken.append(1000 * (time.perf_counter() - started))

        # Two at the least, of which there are quantiles, however long this process stood still.
        while len(threads) < 2 or time.monotonic() < until:
            time.sleep(chance.expovariate(ONLINE_PER_S))
            threads.append(threading.Thread(target=one))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=[], help="echo, images, online [all]")
    parser.add_argument("--inputs", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    what = options.what or ["echo", "images", "online"]
    if what == ["loop"]:
        loop(options.folder, options.batch)
        return
    tables = []
    if "echo" in what:
        tables.append(echo(options.inputs, options.rounds))
    if "images" in what:
        tables.append(images(options.images, options.pairs))
    if "online" in what:
        tables.append(online(options.seconds))
    if options.write:
        description = (
            f"{options.inputs:,} lines, {options.rounds} rounds; {options.images:,} JPEGs in "
            f"batches of {BATCH}, pairs: {options.pairs}; online for {options.seconds:g} s."
        )
        write_tables("runs", description, *tables)


if __name__ == "__main__":
    main()
