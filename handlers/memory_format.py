"""The order in which a convolutional network's activations lie in memory: NCHW or channels last.

On a CPU most convolutions are faster with the channels last, some are not, and a module may hold
code that cannot take it. So it is tried when the model is loaded, and kept where it gives the same
answers in no more time.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

#: Rounds of both orders in turn; the fastest of each counts, which others' load disturbs least.
ROUNDS: Final = 3
#: A round that differs by more than this settles it.
CLEAR: Final = 1.2
#: So much slower may it be and still count as no slower: what two equal runs differ by.
SLACK: Final = 1.03
#: How far answers may lie apart, as a share of the largest.
TOLERANCE: Final = 1e-3
#: The same for half precision and bfloat16, whose own rounding is of that size.
ROUGH_TOLERANCE: Final = 2e-2


def use_channels_last(module: nn.Module, example: Tensor, mode: str, name: str) -> bool:
    """Bring a module into the better order.

    Args:
        module: in evaluation mode; its weights are rearranged in place.
        example: a batch (N, C, H, W) as the module gets it.
        mode: `on`, `off` or `auto`, the model's key `channels_last`.
        name: the model's, for the log.

    Returns:
        Whether the channels are last now; inputs must then be in that order too (`in_order`).
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
    except Exception as error:  # noqa: BLE001 - a module that cannot take it is run as it is
        _to(module, torch.contiguous_format)
        logger.info(
            "channels last is off, the module fails with it: %s", error, extra={"model": name}
        )
        return False
    tolerance = TOLERANCE if example.dtype is torch.float32 else ROUGH_TOLERANCE
    good = apart <= tolerance and last_s <= plain_s * SLACK
    if not good:
        _to(module, torch.contiguous_format)
    logger.info(
        "channels last is %s: %.1f ms for a batch of %d, %.1f ms without; answers differ by %.1g",
        "on" if good else "off", last_s * 1000, len(example), plain_s * 1000, apart,
        extra={"model": name},
    )  # fmt: skip
    return good


def in_order(images: Tensor, *, channels_last: bool) -> Tensor:
    """A batch (N, C, H, W) in the order that the module is in."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    return images.contiguous(memory_format=order)


def _to(module: nn.Module, order: torch.memory_format) -> None:
    # nn.Module.to() has no such overload in torch's own types.
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=order)


def _compare(module: nn.Module, example: Tensor) -> tuple[float, float, float]:
    """Seconds with the channels last, without, and how far apart the answers are.

    The module is left with its channels last.
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
            # The first round of each pays for what is done once.
            if round_number:
                best[last] = min(best[last], time.perf_counter() - started)
        if round_number and max(best.values()) > min(best.values()) * CLEAR:
            break
    scale = max(float(answers[False].abs().max()), 1e-12)
    apart = float((answers[True] - answers[False]).abs().max()) / scale
    return best[True], best[False], apart
