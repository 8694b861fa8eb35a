"""The bare loop (see line_process.py): `python -m benchmarks.gpu.bare DEVICE TINY WORKLOAD`.

It runs the same handler, images and batches as behind the queue in one process, and decodes the
next batch meanwhile with as many threads. `context` creates CUDA's context and returns the device's
description; `run PRECISION BATCH SECONDS` returns images per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.workloads import Workload, photographs, workloads
from handlers.loader import load_handler
from headrace.handler import Context, Handler

IMAGES: Final = 64
#: Batches in flight, as in a model process: one is read, one computes.
AHEAD: Final = 2


def describe(device: str) -> dict[str, str]:
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
        device: a torch device.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self._workload, self._device = workload, device
        self._handlers: dict[str, Handler] = {}
        made = photographs(IMAGES, workload.width, workload.height)
        self._images: list[Any] = [image.jpeg for image in made]

    def run(self, precision: str, batch: int, seconds: float) -> float:
        """Return images per second."""
        handler = self._handlers.get(precision) or self._load(precision, batch)
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

    def _load(self, precision: str, batch: int) -> Handler:
        workload = self._workload
        model = workload.model(self._device, precision, batch)
        loaded = load_handler(workload.handler, Path())
        handler = loaded() if isinstance(loaded, type) else loaded
        handler.initialize(
            Context(
                "bare", "1.0", self._device, Path(), options=model["options"],
                channels_last="on" if model["channels_last"] else "off", max_batch_size=batch,
            )
        )  # fmt: skip
        self._handlers[precision] = handler
        return handler


def main() -> None:
    device, tiny, name = sys.argv[1:]
    (workload,) = (one for one in workloads(tiny=tiny == "tiny") if one.name == name)
    loop = None
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "context":
            print(json.dumps(describe(device)), flush=True)
            continue
        loop = loop or Loop(workload, device)
        precision, batch, seconds = rest
        print(loop.run(precision, int(batch), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
