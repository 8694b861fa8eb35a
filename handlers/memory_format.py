"""Chooses the memory format of a convolutional network: NCHW or channels last.

On a CPU most convolutions are faster with channels last, but not all, and a module's code may not
support it. So it is tried when the model is loaded, and kept if it gives the same results in no
more time.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import torch
from torch import Tensor, nn

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


def use_channels_last(module: nn.Module, example: Tensor, mode: str, name: str) -> bool:
    """Bring a module into the better memory format.

    Args:
        module: in evaluation mode; its weights are rearranged in place.
        example: a batch (N, C, H, W) as the module gets it.
        mode: `on`, `off` or `auto`: the model's key `channels_last`.
        name: the model's name, for the log.

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
        last_s, plain_s, apart = _compare(module, example)
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


def _compare(module: nn.Module, example: Tensor) -> tuple[float, float, float]:
    """Return the seconds with channels last and without, and the difference of the results.

    The module is left with channels last.
    """
    best = {True: float("inf"), False: float("inf")}
    answers: dict[bool, Tensor] = {}
    for round_number in range(ROUNDS + 1):
        for last in (False, True):
            _to(module, torch.channels_last if last else torch.contiguous_format)
            images = in_order(example, channels_last=last)
            started = time.perf_counter()
            with torch.inference_mode():
                answers[last] = module(images)
            # The first round of each includes one-time work.
            if round_number:
                best[last] = min(best[last], time.perf_counter() - started)
        if round_number and max(best.values()) > min(best.values()) * CLEAR:
            break
    scale = max(float(answers[False].abs().max()), 1e-12)
    apart = float((answers[True] - answers[False]).abs().max()) / scale
    return best[True], best[False], apart
