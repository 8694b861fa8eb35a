"""Batches to the device and answers back, so that copying and computing overlap on a GPU.

CUDA copies beside what it computes only from and to pinned memory, and on a stream of its own. What
a verb calls there comes back before it is done; so `inference` may return while the device works,
and whoever reads the answers waits for these alone, not for the next batch behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tensors on their way to the host.

    Attributes:
        tensors: to be read after `wait` alone.
        arrived: when they are there; None if they are already.
    """

    tensors: tuple[Tensor, ...]
    arrived: torch.cuda.Event | None = None

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors, on the host.

        Raises:
            RuntimeError: the device failed meanwhile; CUDA says so only here.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensors


class Transfer:
    """Copies for one device; on a CPU it copies nothing but what `torch.stack` does.

    Args:
        device: a torch device.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def gather(self, items: Sequence[Tensor]) -> Tensor:
        """Equal tensors on the host (each of shape S) as one batch (N, *S), pinned for a GPU."""
        if self.stream is None:
            return torch.stack(list(items))
        first = items[0]
        # torch keeps pinned blocks for the next batch, once the device has read them.
        batch = torch.empty((len(items), *first.shape), dtype=first.dtype, pin_memory=True)
        return torch.stack(list(items), out=batch)

    def to_device(self, items: Sequence[Tensor]) -> Tensor:
        """Equal tensors on the host as one batch on the device, for the current stream."""
        batch = self.gather(items)
        if self.stream is None:
            return batch.to(self.device)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            copied = batch.to(self.device, non_blocking=True)
        computing.wait_stream(self.stream)
        # Its memory is the copying stream's; it must not be used anew while this one reads it.
        copied.record_stream(computing)
        return copied

    def to_host(self, *tensors: Tensor) -> Fetched:
        """Start to fetch what the current stream computes."""
        if self.stream is None:
            return Fetched(tuple(tensor.cpu() for tensor in tensors))
        fetched = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        # Sleeps in place of spinning: the cores are for decoding.
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self.device))
        return Fetched(fetched, arrived)
