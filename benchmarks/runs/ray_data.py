"""Ray Data beside `headrace.ray`: `python -m benchmarks.runs.ray_data [--write]`.

Real JPEGs, in memory, through `image_classifier` in two actors of one core each. Plain Ray Data
calls the verbs of the same handler with the same batches. `predict` runs the model's process below
each actor. `submit` sends the images to an API, whose worker has the same two cores. All run in
turn; a rate counts from the first rows to the last, so without the start of actors.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa

import headrace.ray
from benchmarks.common.inputs import BATCH, jpegs
from benchmarks.common.tables import Table, interval, write_tables
from benchmarks.runs.__main__ import stack
from headrace.handler import Context
from tests.harness.workers.worker import write_models

BLOCKS: Final = 16
ACTORS: Final = 2


class Plain:
    """The handler in an actor of Ray, as its users write it."""

    def __init__(self) -> None:
        from handlers.image_classifier import ImageClassifier

        self._handler = ImageClassifier()
        self._handler.initialize(Context("plain", "1.0", "cpu", Path(), max_batch_size=BATCH))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run a batch."""
        handler = self._handler
        items = handler.preprocess(table["image"].to_pylist())
        results = handler.postprocess(handler.inference(items))
        return table.append_column("result", pa.array([json.dumps(one) for one in results]))


def rate(ds: Any) -> float:
    """Return the rows per second after the first block."""
    blocks = iter(ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    next(blocks)
    started = time.perf_counter()
    rows = sum(len(block) for block in blocks)
    return rows / (time.perf_counter() - started)


def measure(count: int, pairs: int) -> Table:
    """Measure all three in turn."""
    import ray
    from ray.data import ActorPoolStrategy

    table = Table("Ray Data, JPEGs through `image_classifier`, 2 actors", "images/s", "/ plain")
    options = {"handler": "image_classifier", "max_batch_size": BATCH, "timeout_s": 600}
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name, stack(m=options) as system:
        models = write_models(system.folder, m=options)
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(
            num_cpus=ACTORS, include_dashboard=False, _temp_dir=name, log_to_driver=False,
            object_store_memory=512 << 20, logging_level="ERROR",
        )  # fmt: skip
        ray.data.DataContext.get_current().enable_progress_bars = False
        images = list(jpegs(count))
        size = -(-count // BLOCKS)
        ds = ray.data.from_arrow(
            [pa.table({"image": images[at : at + size]}) for at in range(0, count, size)]
        )
        ways: dict[str, Callable[[], Any]] = {
            "plain": lambda: ds.map_batches(
                Plain, batch_size=BATCH, batch_format="pyarrow",
                compute=ActorPoolStrategy(size=ACTORS),
            ),
            "headrace.ray.predict": lambda: headrace.ray.predict(
                ds, "m", models_file=models, input="image", concurrency=ACTORS,
            ),
            "headrace.ray.submit": lambda: headrace.ray.submit(
                ds, "m", url=system.url, input="image", concurrency=ACTORS,
            ),
        }  # fmt: skip
        found: dict[str, list[float]] = {way: [] for way in ways}
        try:
            for _ in range(pairs):
                for way, make in ways.items():
                    found[way].append(rate(make()))
                    print(f"{way}: {found[way][-1]:.1f} images/s", flush=True)
        finally:
            ray.shutdown()
    for way, rates in found.items():
        ratios = [one / other for one, other in zip(rates, found["plain"], strict=True)]
        table.add(way, f"{median(rates):.1f}", "" if way == "plain" else interval(ratios))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    table = measure(options.images, options.pairs)
    description = f"{options.images:,} JPEGs in batches of {BATCH}, pairs: {options.pairs}."
    if options.write:
        write_tables("ray", description, table)
    else:
        print(table)


if __name__ == "__main__":
    main()
