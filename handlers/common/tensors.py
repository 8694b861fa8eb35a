"""What handlers of torch modules share: weights, copies to and from the device, memory format.

CUDA copies while it computes only from and to pinned memory, and on a separate stream. CUDA calls
return before the device has finished, so `inference` may return while the device works. Reading the
results then waits for these results only, not for the next batch.

On a CPU most convolutions are faster with channels last than with NCHW, but not all, and a module's
code may not support it. So it is tried when the model is loaded, and kept if it gives the same
results in no more time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from headrace.errors import ConfigError

logger = logging.getLogger(__name__)

#: Rounds of both formats in turn. The fastest of each counts, as it is disturbed least.
ROUNDS: Final = 3
#: A ratio between the formats that decides after one round.
CLEAR: Final = 1.2
#: The ratio up to which channels last counts as no slower; equal runs differ by as much.
SLACK: Final = 1.03
#: The largest difference of results, as a share of the largest result.
TOLERANCE: Final = 1e-3
#: The same for half precision and bfloat16, whose own rounding is of that size.
ROUGH_TOLERANCE: Final = 2e-2

SAFETENSORS: Final = ".safetensors"
SUFFIXES: Final = (SAFETENSORS, ".pt", ".pth", ".bin")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tensors on their way to the host, where they are once `arrived` occurs: see `wait`."""

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
    """Copies to and from one device; on a CPU only `torch.stack` copies."""

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
        """Return tensors of equal shape, of host or device, as one batch for its current stream."""
        if items[0].device.type != "cpu":
            return torch.stack(list(items))
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


def use_channels_last(
    module: nn.Module,
    example: Tensor,
    mode: str,
    name: str,
    answer: Callable[[Any], Tensor] = lambda output: output,
) -> bool:
    """Bring a module into the better memory format.

    The module is in evaluation mode; its weights are rearranged in place.

    Args:
        example: a batch (N, C, H, W) as it gets it.
        answer: returns the tensor to compare, of the module's output.

    Returns:
        Whether the format is channels last now; inputs must then have it too (`in_order`).
    """
    if mode != "auto":
        if mode == "on":
            _to(module, torch.channels_last)
        return mode == "on"
    has_convolutions = any(isinstance(part, nn.Conv2d) for part in module.modules())
    if example.device.type != "cpu" or not has_convolutions:
        return False
    try:
        last_s, plain_s, apart = _compare(module, example, answer)
    except Exception as error:  # noqa: BLE001 - a module that cannot use it runs as it is
        _to(module, torch.contiguous_format)
        logger.info(
            "channels last is off: the module fails with it: %s", error, extra={"model": name}
        )
        return False
    tolerance = TOLERANCE if example.dtype is torch.float32 else ROUGH_TOLERANCE
    good = apart <= tolerance and last_s <= plain_s * SLACK
    if not good:
        _to(module, torch.contiguous_format)
    logger.info(
        "channels last is %s: %.1f ms for a batch of %d, %.1f ms without; results differ by %.1g",
        "on" if good else "off", last_s * 1000, len(example), plain_s * 1000, apart,
        extra={"model": name},
    )  # fmt: skip
    return good


def in_order(images: Tensor, *, channels_last: bool) -> Tensor:
    """Return a batch (N, C, H, W) in the module's memory format."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    return images.contiguous(memory_format=order)


def _to(module: nn.Module, order: torch.memory_format) -> None:
    # nn.Module.to() has no such overload in torch's own types.
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=order)


def _compare(
    module: nn.Module, example: Tensor, answer: Callable[[Any], Tensor]
) -> tuple[float, float, float]:
    """Return the seconds with channels last, which stay, and without, and how results differ."""
    best = {True: float("inf"), False: float("inf")}
    answers: dict[bool, Tensor] = {}
    for round_number in range(ROUNDS + 1):
        for last in (False, True):
            _to(module, torch.channels_last if last else torch.contiguous_format)
            images = in_order(example, channels_last=last)
            started = time.perf_counter()
            with torch.inference_mode():
                answers[last] = answer(module(images))
            # The first round of each includes one-time work.
            if round_number:
                best[last] = min(best[last], time.perf_counter() - started)
        if round_number and max(best.values()) > min(best.values()) * CLEAR:
            break
    scale = max(float(answers[False].abs().max()), 1e-12)
    apart = float((answers[True] - answers[False]).abs().max()) / scale
    return best[True], best[False], apart


def load_weights(module: nn.Module, path: Path, *, weights_only: bool = True) -> None:
    """Fill the module from a state dict: .safetensors, or .pt, .pth, .bin read as weights only.

    No code in the file is run, and pickled code is refused, unless `weights_only` is False.

    Raises:
        ConfigError: the file does not exist, cannot be read, or does not fit the module.
    """
    state = _read(path, weights_only=weights_only)
    inner = state.get("state_dict")
    if isinstance(inner, Mapping):  # as training checkpoints have it
        state = inner
    try:
        module.load_state_dict(dict(state))
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"the weights in {path} do not fit the module: {error}",
            hint=f"it must be a state dict of {type(module).__name__}",
        ) from error


def _read(path: Path, *, weights_only: bool) -> Mapping[str, Any]:
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"weights {path}: unknown kind of file {path.suffix!r}",
            hint=f"known: {', '.join(SUFFIXES)}",
        )
    if not path.is_file():
        raise ConfigError(f"there is no weights file {path}", hint="correct the model's `weights`")
    try:
        if path.suffix == SAFETENSORS:
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=weights_only)
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be read as weights: {error}",
            hint="save module.state_dict(), best as .safetensors; a pickled module is refused "
            "because reading it would run its code, unless the model has weights_only: false",
        ) from error
    if isinstance(state, nn.Module):
        return state.state_dict()
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"{path} holds a {type(state).__name__}, not a state dict",
            hint="save module.state_dict()",
        )
    return state
