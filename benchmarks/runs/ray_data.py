"""Ray Data beside `headrace.ray`: `python -m benchmarks.runs.ray_data [--write]`.

Real JPEGs, in memory, through `image_classifier` in two actors of one core each. Plain Ray Data
calls the verbs of the same handler with the same batches. `predict` runs the model's process below
each actor. `submit` sends the images to an API, whose worker has the same two cores. All run in
turn; a rate counts from the first rows to the last, so without the start of actors.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import pyarrow as pa
from typing_extensions import override

import headrace.ray
from benchmarks.common.inputs import BATCH, jpegs
from benchmarks.common.tables import Table, interval, write_tables
from benchmarks.runs.__main__ import stack
from headrace.handler import Context
from tests.harness.workers.worker import write_models

ACTORS: Final = 2
#: An actor gets so many images at once, in each way, so that a rate leaves out as many.
ROWS: Final = 2 * BATCH
SAMPLE_S: Final = 0.2


class Plain:
    """The handler in an actor of Ray, as its users write it."""

    def __init__(self) -> None:
        from handlers.image_classifier import ImageClassifier

        self._handler = ImageClassifier()
        self._handler.initialize(Context("plain", "1.0", "cpu", Path(), max_batch_size=BATCH))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run two batches."""
        handler = self._handler
        images = table["image"].to_pylist()
        results: list[Any] = []
        for at in range(0, len(images), BATCH):
            items = handler.preprocess(images[at : at + BATCH])
            results += handler.postprocess(handler.inference(items))
        return table.append_column("result", pa.array([json.dumps(one) for one in results]))


class Cpu(threading.Thread):
    """Samples the CPU seconds of all processes below this one, also of those that end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seconds: dict[int, float] = {}
        self._ended = threading.Event()

    @property
    def seconds(self) -> float:
        """CPU seconds up to the last sample."""
        return sum(self._seconds.values())

    @override
    def run(self) -> None:
        """Sample until `stop`."""
        while not self._ended.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seconds[process.pid] = times.user + times.system

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()


def rates(ds: Any) -> tuple[float, float]:
    """Return the rows per second after the first block, and CPU milliseconds per such row."""
    cpu = Cpu()
    cpu.start()
    blocks = iter(ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    next(blocks)
    started, before = time.perf_counter(), cpu.seconds
    rows = sum(len(block) for block in blocks)
    seconds, used = time.perf_counter() - started, cpu.seconds - before
    cpu.stop()
    return rows / seconds, 1000 * used / rows


def measure(count: int, pairs: int) -> Table:
    """Measure all three in turn."""
    import ray
    from ray.data import ActorPoolStrategy

    heads = ("images/s", "/ plain", "CPU ms an image")
    table = Table("Ray Data, JPEGs through `image_classifier`, 2 actors", *heads)
    options = {"handler": "image_classifier", "max_batch_size": BATCH, "timeout_s": 600}
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name, stack(m=options) as system:
        models = write_models(system.folder, m=options)
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(
            num_cpus=ACTORS, include_dashboard=False, _temp_dir=name, log_to_driver=False,
            object_store_memory=512 << 20, logging_level=logging.ERROR,
        )  # fmt: skip
        ray.data.DataContext.get_current().enable_progress_bars = False
        images = jpegs(count)
        ds = ray.data.from_arrow(
            [pa.table({"image": images[at : at + ROWS]}) for at in range(0, count, ROWS)]
        )
        common: dict[str, Any] = {"input": "image", "concurrency": ACTORS, "batch_size": ROWS}
        ways: dict[str, Callable[[], Any]] = {
            "plain Ray Data": lambda: ds.map_batches(
                Plain, batch_size=ROWS, batch_format="pyarrow",
                compute=ActorPoolStrategy(size=ACTORS),
            ),
            "`predict` of `headrace.ray`": lambda: headrace.ray.predict(
                ds, "m", models_file=models, **common
            ),
            "`submit` of `headrace.ray`": lambda: headrace.ray.submit(
                ds, "m", url=system.url, **common
            ),
        }  # fmt: skip
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        try:
            for _ in range(pairs):
                for way, make in ways.items():
                    found[way].append(rates(make()))
                    speed, used = found[way][-1]
                    print(f"{way}: {speed:.1f} images/s, {used:.1f} ms of CPU", flush=True)
        finally:
            ray.shutdown()
    plain, *_ = found.values()
    for way, tries in found.items():
        ratios = [one[0] / other[0] for one, other in zip(tries, plain, strict=True)]
        ratio = "" if tries is plain else interval(ratios)
        speed, used = (median(one[at] for one in tries) for at in (0, 1))
        table.add(way, f"{speed:.1f}", ratio, f"{used:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    table = measure(options.images, options.pairs)
    if options.write:
        description = f"{options.images:,} JPEGs in batches of {BATCH}, pairs: {options.pairs}."
        write_tables("ray", description, table)


if __name__ == "__main__":
    main()
