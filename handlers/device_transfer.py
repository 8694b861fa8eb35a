"""Copies batches to the device and results back, so that copying and computing overlap on a GPU.

CUDA copies while it computes only from and to pinned memory, and on a separate stream. CUDA calls
return before the device has finished, so `inference` may return while the device works. Reading the
results then waits for these results only, not for the next batch.
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
        tensors: the tensors; read them only after `wait`.
        arrived: occurs when they are on the host; None if they are already.
    """

    tensors: tuple[Tensor, ...]
    arrived: torch.cuda.Event | None = None

    def wait(self) -> tuple[Tensor, ...]:
        """Wait until the tensors are on the host, and return them.

        Raises:
            RuntimeError: the device failed meanwhile; CUDA reports it only here.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensors


class Transfer:
    """Copies to and from one device; on a CPU only `torch.stack` copies.

    Args:
        device: a torch device.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def gather(self, items: Sequence[Tensor]) -> Tensor:
        """Return host tensors of equal shape S as one batch (N, *S), pinned for a GPU."""
        if self.stream is None:
            return torch.stack(list(items))
        first = items[0]
        # torch keeps pinned blocks for the next batch, once the device has read them.
        batch = torch.empty((len(items), *first.shape), dtype=first.dtype, pin_memory=True)
        return torch.stack(list(items), out=batch)

    def to_device(self, items: Sequence[Tensor]) -> Tensor:
        """Return host tensors of equal shape as one batch on the device, for its current stream."""
        batch = self.gather(items)
        if self.stream is None:
            return batch.to(self.device)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            copied = batch.to(self.device, non_blocking=True)
        computing.wait_stream(self.stream)
        # The copying stream owns the memory, and must not reuse it while this stream reads it.
        copied.record_stream(computing)
        return copied

    def to_host(self, *tensors: Tensor) -> Fetched:
        """Start to copy tensors that the current stream computes."""
        if self.stream is None:
            return Fetched(tuple(tensor.cpu() for tensor in tensors))
        fetched = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        # A blocking event sleeps instead of spinning, which leaves the cores to decoding.
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self.device))
        return Fetched(fetched, arrived)
