"""Compares a variant with the module itself: outputs, best classes, and the time of a batch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from handlers.optimize.forms import Args, floats

#: The least share of calibration inputs whose best class must be that of the module.
AGREEMENT_MIN: Final = 0.98
#: Rounds of both in turn. The fastest of each counts, as it is disturbed least.
ROUNDS: Final = 5
#: Seconds after which no further round begins.
TIMED_S: Final = 20.0
#: The ratio of times up to which a variant counts as no slower; equal runs differ by as much.
SLACK: Final = 1.03


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison found.

    Attributes:
        error: the largest difference of an output, relative to its largest value.
        agreement: the share of rows with the same best class; None if there are no classes.
        times: by batch size: milliseconds of the module and of the variant.
        refused: why the variant is not used; "" if it is.
    """

    error: float = 0.0
    agreement: float | None = None
    times: dict[str, tuple[float, float]] = {}
    refused: str = ""

    @property
    def gain(self) -> float:
        """How many times as fast as the module the variant is, the mean of the batch sizes."""
        ratios = [eager / own for eager, own in self.times.values() if own > 0]
        return statistics.geometric_mean(ratios) if ratios else 1.0


def compare(
    module: Callable[..., Any],
    variant: Callable[..., Any],
    calls: Sequence[Args],
    timed: Mapping[int, Args],
    scores: Callable[[Any], Tensor] | None,
    max_error: float,
) -> Verdict:
    """Compare a variant with its module.

    Args:
        module: the module.
        variant: what would take its place.
        calls: arguments whose outputs are compared.
        timed: arguments whose time is compared, by batch size.
        scores: returns a score for each class of an output.
        max_error: the largest error that is allowed.
    """
    error, same, rows = 0.0, 0, 0
    with torch.inference_mode():
        for args in (*calls, *timed.values()):
            expected, found = module(*args), variant(*args)
            error = max(error, *_errors(expected, found), 0.0)
            if scores is not None:
                best = scores(expected).argmax(dim=1), scores(found).argmax(dim=1)
                same += int((best[0] == best[1]).sum())
                rows += best[0].numel()
    agreement = same / rows if rows else None
    found = Verdict(error=error, agreement=agreement)
    wrong = _why_wrong(found, max_error)
    if wrong:
        return msgspec.structs.replace(found, refused=wrong)
    found = msgspec.structs.replace(found, times=_times(module, variant, timed))
    if found.gain * SLACK < 1:
        slower = ", ".join(
            f"{own:.1f} ms for a batch of {size}, {eager:.1f} ms eager"
            for size, (eager, own) in found.times.items()
        )
        return msgspec.structs.replace(found, refused=f"it is slower than eager: {slower}")
    return found


def _errors(expected: Any, found: Any) -> list[float]:
    """Return the error of each output; infinite where one has a number and the other has none."""
    errors = []
    for right, own in zip(floats(expected), floats(found), strict=True):
        scale = max(float(right.abs().max()) if right.numel() else 0.0, 1e-12)
        apart = float((right - own).abs().max()) / scale if right.numel() else 0.0
        errors.append(apart if math.isfinite(apart) else math.inf)
    return errors


def _why_wrong(found: Verdict, max_error: float) -> str:
    if found.error > max_error:
        return (
            f"its outputs differ from eager by {found.error:.2g} of the largest, more than "
            f"max_error, {max_error:g}"
        )
    if found.agreement is not None and found.agreement < AGREEMENT_MIN:
        return (
            f"its best class is that of eager for {found.agreement:.1%} of the inputs, less than "
            f"{AGREEMENT_MIN:.0%}"
        )
    return ""


def _times(
    module: Callable[..., Any], variant: Callable[..., Any], timed: Mapping[int, Args]
) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of the module and of the variant, by batch size."""
    found = {}
    until = time.perf_counter() + TIMED_S
    for size, args in timed.items():
        best = [math.inf, math.inf]
        for round_number in range(ROUNDS):
            if round_number > 1 and time.perf_counter() > until:
                break
            for place, call in enumerate((module, variant)):
                best[place] = min(best[place], milliseconds(call, args))
        found[str(size)] = (round(best[0], 3), round(best[1], 3))
    return found


def milliseconds(call: Callable[..., Any], args: Args) -> float:
    """Return how long one call takes, on the device too."""
    started = time.perf_counter()
    with torch.inference_mode():
        call(*args)
        if args[0].is_cuda:
            torch.cuda.synchronize(args[0].device)
    return (time.perf_counter() - started) * 1000
