"""The bare loop: `python -m benchmarks.gpu.bare DEVICE TINY WORKLOAD`.

It is a line process (benchmarks/common/line_process.py).

It runs the same handler, images and batches as behind the queue in one process, and decodes the
next batch meanwhile with as many threads. `context` creates CUDA's context and returns the device's
description. `load FORM BATCH` loads the handler in a form, and returns which variant runs.
`run FORM BATCH SECONDS` returns images per second.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from benchmarks.gpu.workloads import Workload, photographs, workloads
from headrace.config.model.catalog import model_of
from headrace.config.model.optimize import Optimize
from headrace.handler import Context, Handler
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import context_of, handler_of
from workers.model_process.variant import describe, install_variant

IMAGES: Final = 64
#: Batches in flight, as in a model process: one is read, one computes.
AHEAD: Final = 2


def described(device: str) -> dict[str, str]:
    """Return the device and its software, after its context is created."""
    torch.ones(1, device=device).add_(1).cpu()
    description = {"name": "CPU", "torch": torch.__version__, "cuda": ""}
    if device != "cpu":
        description |= {"name": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return description


class Loop:
    """The handlers of one workload.

    Args:
        workload: the model.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self._workload, self._device = workload, device
        self._handlers: dict[tuple[str, int], Handler] = {}
        self._builds = tempfile.TemporaryDirectory()
        made = photographs(IMAGES, workload.width, workload.height)
        self._images: list[Any] = [image.jpeg for image in made]

    def run(self, form: str, batch: int, seconds: float) -> float:
        """Return images per second."""
        handler = self._handlers[form, batch]
        done, started = 0, time.perf_counter()
        with ThreadPoolExecutor(2) as decoders, ThreadPoolExecutor(1) as reader:
            answers: list[Future[list[Any]]] = []
            for items in self._decoded(handler, batch, decoders, started + seconds):
                answers.append(reader.submit(handler.postprocess, handler.inference(items)))
                if len(answers) >= AHEAD:
                    done += len(answers.pop(0).result())
            done += sum(len(answer.result()) for answer in answers)
        return done / (time.perf_counter() - started)

    def _decoded(
        self, handler: Handler, batch: int, decoders: ThreadPoolExecutor, until: float
    ) -> Iterator[list[Any]]:
        images = cycle(self._images)

        def decode() -> list[Future[list[Any]]]:
            return [decoders.submit(handler.preprocess, [one]) for one in islice(images, batch)]

        following, first = decode(), True
        # One batch at the least, however long this process stood still.
        while first or time.perf_counter() < until:
            ready, following, first = following, decode(), False
            yield list(chain.from_iterable(future.result() for future in ready))

    def load(self, form: str, batch: int) -> str:
        """Load the handler as a model process does; return which variant runs, "" for none."""
        values = self._workload.model(self._device, form, batch)
        if wanted := values.get("optimize"):
            values["optimize"] = msgspec.convert(wanted, Optimize)
        frame = model_of("bare", values, Path()).init_frame(Path(), self._device)
        handler, context = handler_of(frame), context_of(frame, Context)
        handler.initialize(context)
        executor = BatchExecutor(handler, context)
        found = install_variant(executor, {**frame, "optimize_cache": self._builds.name})
        self._handlers[form, batch] = handler
        return "" if found is None else describe(found)


def main() -> None:
    device, tiny, name = sys.argv[1:]
    (workload,) = (one for one in workloads(tiny=tiny == "tiny") if one.name == name)
    loop = None
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "context":
            print(json.dumps(described(device)), flush=True)
            continue
        loop = loop or Loop(workload, device)
        if word == "load":
            form, batch = rest
            print(loop.load(form, int(batch)), flush=True)
            continue
        form, batch, seconds = rest
        print(loop.run(form, int(batch), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
