"""Real JPEGs through `image_classifier`, against bare loops.

    python -m benchmarks.models.images [python|spin|share]

The bare loops run the same handler in one process without a queue, with the same decoding, model,
batch size, settings and cores. One runs the verbs in turn, the other decodes the next batch in a
thread meanwhile. They are measured in turn with the worker, on the same machine.

`python` measures a handler with 10 ms of pure Python per item, by the number of its preprocess
processes.

The threads of a model process spin before they sleep. `spin` measures that in the loop that decodes
ahead: alone, and with another process that needs a core.

`share` compares numbers of processes and of threads on the same cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.common.inputs import BATCH, jpegs
from benchmarks.common.line_process import LineProcess, line_process
from benchmarks.common.tables import interval
from headrace.handler import Context
from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models
from workers.replicas.cores import usable_cores
from workers.replicas.devices import SPINS, model_environ, tuned


def as_input(jpeg: bytes) -> dict[str, str]:
    return {"content_type": "image/jpeg", "base64": base64.b64encode(jpeg).decode()}


def bare_process(images: int, **variables: str) -> AbstractContextManager[LineProcess]:
    """Run the handler in its own process, without a queue.

    A request is `turn` or `ahead`, the reply images per second.
    """
    environ = tuned(model_environ({**os.environ, **variables}, 1), "cpu")
    return line_process(
        "benchmarks.models.images", "bare", "--images", str(images), environ=environ
    )


def bare(count: int) -> None:
    """Run that process."""
    from handlers.image_classifier import ImageClassifier

    handler = ImageClassifier()
    handler.initialize(Context("bare", "1.0", "cpu", Path(), max_batch_size=BATCH))
    made = jpegs(count)
    batches = [made[at : at + BATCH] for at in range(0, count, BATCH)]

    def in_turn() -> None:
        for batch in batches:
            handler.postprocess(handler.inference(handler.preprocess(batch)))

    def ahead() -> None:
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(handler.preprocess, batches[0])
            for batch in [*batches[1:], None]:
                items = following.result()
                if batch is not None:
                    following = pool.submit(handler.preprocess, batch)
                handler.postprocess(handler.inference(items))

    loops = {"turn": in_turn, "ahead": ahead}
    handler.postprocess(handler.inference(handler.preprocess(batches[0])))
    for line in sys.stdin:
        started = time.perf_counter()
        loops.get(line.strip(), lambda: None)()
        print(count / (time.perf_counter() - started), flush=True)


class Queue:
    """A worker with one model over Redis."""

    def __init__(self, model: dict[str, Any], stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(redis_server())
        path = write_models(folder, m=model)
        self.worker = stack.enter_context(celery_worker(redis.url, path, folder, arguments=()))
        self.client = stack.enter_context(Client(redis.url, path))
        self.worker.wait_ready("m", timeout_s=300)

    def run(self, inputs: list[Any]) -> float:
        """Return inputs per second, from the first claim to the last end."""
        queue = keys.queue_name("m")
        self.client.redis.sadd(keys.PAUSED, queue)
        time.sleep(1.2)  # a sweep notices the pause
        ids = self.client.submit("m", *inputs)
        self.client.redis.srem(keys.PAUSED, queue)
        # Reading each job would take CPU time from the model.
        while self.client.redis.llen(queue) or self.client.redis.zcard(keys.lease(queue)):
            time.sleep(0.1)
        jobs = self.client.wait(*ids)
        assert all(job.state is State.SUCCEEDED for job in jobs), jobs[0]
        first = min(job.started_us for job in jobs)
        last = max(job.ended_us for job in jobs)
        sizes = [job.batch_size for job in jobs]
        print(f"    batches of {mean(sizes):.1f}; {milliseconds(jobs[len(jobs) // 2].timings)}")
        return len(jobs) / ((last - first) / 1e6)


def milliseconds(timings: str) -> str:
    parts = ("queued", "hold", "preprocess", "inference", "postprocess")
    return " ".join(
        f"{part} {float(ms):.0f}" for part, ms in zip(parts, timings.split(","), strict=True)
    )


def against_bare(images: int, pairs: int, **model: Any) -> None:
    inputs = [as_input(jpeg) for jpeg in jpegs(images)]
    settings = {"handler": "image_classifier", "max_batch_size": BATCH, "timeout_s": 600, **model}
    ratios: dict[str, list[float]] = {"turn": [], "ahead": []}
    with ExitStack() as stack:
        loop = stack.enter_context(bare_process(images))
        loop.request("warm")
        queue = Queue(settings, stack)
        queue.run(inputs[: 2 * BATCH])
        for pair in range(pairs):
            order = ("turn", "queue", "ahead") if pair % 2 else ("ahead", "queue", "turn")
            rates = {
                what: queue.run(inputs) if what == "queue" else float(loop.request(what))
                for what in order
            }
            for how, found in ratios.items():
                found.append(rates["queue"] / rates[how])
            print(json.dumps({name: round(rate, 2) for name, rate in rates.items()}), flush=True)
    for how, found in ratios.items():
        print(f"worker / bare loop ({how}), {pairs} pairs: {interval(found)}")


def pure_python(items: int, rounds: int) -> None:
    model = {"handler": f"{HANDLERS / 'prepared.py'}:Prepared", "max_batch_size": BATCH}
    inputs = [{"n": 1, "work_s": 0.01}] * items
    with ExitStack() as stack:
        queues = {
            name: Queue({**model, "preprocess_processes": processes}, stack)
            for name, processes in (("in the model process", 0), ("1 process", 1), ("2", 2))
        }
        for _ in range(rounds):
            for name, queue in queues.items():
                print(f"{name}: {queue.run(inputs):.0f} items a second", flush=True)


def spinning(images: int, rounds: int) -> None:
    """Print rate and CPU of the loop that decodes ahead, by how long its threads spin."""
    variants = {"default of libgomp": {"GOMP_SPINCOUNT": "300000"}, f"{SPINS} times": {}}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        loops = {
            name: stack.enter_context(bare_process(images, **variables))
            for name, variables in variants.items()
        }
        for loop in loops.values():
            loop.request("warm")
        for _ in range(rounds):
            for company in ("alone", "with a busy process"):
                for name, loop in loops.items():
                    with ExitStack() as running:
                        if company != "alone":
                            running.enter_context(busy_process())
                        before = loop.cpu_s()
                        rate = float(loop.request("ahead"))
                        found.setdefault((name, company), []).append((rate, loop.cpu_s() - before))
    for (name, company), runs in found.items():
        rate, cpu_s = (median(run[n] for run in runs) for n in (0, 1))
        print(f"{name}, {company}: {rate:.1f} images/s, {1000 * cpu_s / images:.1f} ms of CPU each")


def sharing(images: int, rounds: int) -> None:
    """Print rate and CPU of some processes with some threads each, against one with all cores."""
    cores = usable_cores()
    shapes = [(1, cores), (1, 1), (cores, 1), (cores, cores)]
    if cores > 3:
        shapes += [(cores // 2, 1), (cores // 2, 2)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        loops = {
            shape: [
                stack.enter_context(bare_process(images, OMP_NUM_THREADS=str(shape[1])))
                for _ in range(shape[0])
            ]
            for shape in shapes
        }
        for processes in loops.values():
            for loop in processes:
                loop.request("warm")
        for _ in range(rounds):
            for shape, processes in loops.items():
                before, started = sum(one.cpu_s() for one in processes), time.perf_counter()
                with ThreadPoolExecutor(len(processes)) as pool:
                    list(pool.map(lambda loop: loop.request("turn"), processes))
                wall_s = time.perf_counter() - started
                cpu_s = sum(one.cpu_s() for one in processes) - before
                count = images * len(processes)
                found.setdefault(shape, []).append((count / wall_s, 1000 * cpu_s / count))
    first = found[shapes[0]]
    for (number, threads), runs in found.items():
        rates = [rate / alone for (rate, _), (alone, _) in zip(runs, first, strict=True)]
        cpu_ms = median(ms for _, ms in runs)
        print(
            f"{number} processes x {threads} threads: {interval(rates)} of one process with all "
            f"cores, {cpu_ms:.1f} ms of CPU an image",
            flush=True,
        )


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that uses one core, for ten minutes at most."""
    code = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="?", default="images", choices=("images", "python", "spin", "share", "bare")
    )
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--preprocess-threads", type=int, default=1)
    options = parser.parse_args()
    if options.what == "bare":
        bare(options.images)
    elif options.what == "python":
        pure_python(options.images, 3)
    elif options.what == "share":
        sharing(options.images, options.pairs)
    elif options.what == "spin":
        spinning(options.images, options.pairs)
    else:
        threads = options.preprocess_threads
        against_bare(options.images, options.pairs, preprocess_threads=threads)


if __name__ == "__main__":
    main()
