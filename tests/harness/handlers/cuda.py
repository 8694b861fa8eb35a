"""Handlers for a CUDA device; tests/gpu says what each is for."""

from __future__ import annotations

import os
import sys

VISIBLE_BEFORE_TORCH = None if "torch" in sys.modules else os.environ.get("CUDA_VISIBLE_DEVICES")

import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from handlers.common.tensors import Transfer  # noqa: E402
from headrace.handler import Context, Handler  # noqa: E402

POLL_S = 0.01
#: About a second of a GPU that does nothing else.
BUSY_CYCLES = 2_000_000_000


class Where(Handler):
    """Says where it runs. An input names a folder, and how many processes are to meet there."""

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.tensor = torch.ones(1, device=context.device)

    def inference(self, items: list[Any]) -> list[Any]:
        for folder, count in items:
            (Path(folder) / str(os.getpid())).touch()
            while len(list(Path(folder).iterdir())) < count:
                time.sleep(POLL_S)
        told = {
            "visible": VISIBLE_BEFORE_TORCH,
            "device": str(self.tensor.device),
            "asked": self.context.device,
            "count": torch.cuda.device_count(),
            "uuid": str(torch.cuda.get_device_properties(self.tensor.device).uuid),
            "allocated_mib": torch.cuda.memory_reserved() / 2**20,
        }
        return [told for _ in items]


class Hungry(Handler):
    """Takes a share of the device's free memory for each item of a batch; option `fit`."""

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        free, _ = torch.cuda.mem_get_info()
        # A little more than `fit` of them have room.
        self.bytes = int(free / (context.options["fit"] + 0.5))

    def inference(self, items: list[Any]) -> list[Any]:
        held = [
            torch.empty(self.bytes, dtype=torch.uint8, device=self.context.device) for _ in items
        ]
        return [
            int(tensor[:1].fill_(item).item()) for tensor, item in zip(held, items, strict=True)
        ]


class Lookup(Handler):
    """Looks rows up in a table; a number that is none of them is an assert on the device."""

    ROWS = 10

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.table = torch.arange(self.ROWS, dtype=torch.float32, device=context.device).view(-1, 1)

    def inference(self, items: list[Any]) -> torch.Tensor:
        with open(self.context.options["log"], "a") as log:
            log.write(f"{os.getpid()}\n")
        places = torch.tensor(items, device=self.context.device)
        return torch.nn.functional.embedding(places, self.table)

    def postprocess(self, outputs: torch.Tensor) -> list[Any]:
        return [row[0] for row in outputs.tolist()]


class LookupAhead(Lookup):
    overlap = True


class Copies(Handler):
    """Copies while the device is busy, and says what came to pass meanwhile."""

    def inference(self, items: list[Any]) -> list[Any]:
        transfer = Transfer(self.context.device)
        rows = [torch.full((512, 512), n, dtype=torch.uint8) for n in range(8)]
        assert transfer.stream is not None
        # Memory that is asked for the first time makes the host wait for the device.
        warm = [transfer.to_device(rows) for _ in range(4)]
        warm_hosts = [transfer.to_host(batch[:, 0, 0].float()) for batch in warm]
        torch.cuda.synchronize()
        del warm, warm_hosts
        first = transfer.to_host(transfer.to_device(rows)[:, 0, 0].float())
        cuda: Any = torch.cuda
        cuda._sleep(BUSY_CYCLES)
        computed = cuda.Event()
        computed.record()
        second = transfer.to_device(rows)
        transfer.stream.synchronize()
        copied = not computed.query()
        answers = first.wait()[0].tolist()
        fetched = not computed.query()
        return [
            {
                "pinned": transfer.gather(rows).is_pinned(),
                "copied": copied,
                "fetched": fetched,
                "answers": answers,
                "again": second[:, 0, 0].tolist(),
            }
            for _ in items
        ]
