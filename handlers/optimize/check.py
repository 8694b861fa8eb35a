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

#: Half the width of the 95 % interval of a median, in places, for the root of the count.
_HALF: Final = 0.98


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ascending values, by their ranks."""
    middle, half = (len(ordered) - 1) / 2, _HALF * math.sqrt(len(ordered))
    low, high = math.floor(middle - half), math.ceil(middle + half)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]


#: The least share of calibration inputs whose best class must be that of the module.
AGREEMENT_MIN: Final = 0.98
#: After so many rounds of both in turn the interval is looked at; the last number is the most.
LOOKS: Final = (6, 12, 24)
#: Seconds after which no further round of a batch size begins, if there were `ROUNDS_MIN`.
TIMED_S: Final = 10.0
ROUNDS_MIN: Final = 5
#: Ratios of times from 1 / SLACK to SLACK count as no difference; equal runs differ by as much.
SLACK: Final = 1.03


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a batch of one size.

    Attributes:
        eager_ms, own_ms: medians of the module and of the variant.
        gain, low, high: how many times as fast as the module the variant is. It is the median of
            the rounds' ratios, with its 95 % interval.
    """

    eager_ms: float
    own_ms: float
    gain: float
    low: float
    high: float

    @property
    def word(self) -> str:
        """Return faster or slower if the whole interval is, else "no difference"."""
        if self.low > SLACK:
            return "faster"
        return "slower" if self.high < 1 / SLACK else "no difference"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison found.

    Attributes:
        error: the largest difference of an output, relative to its largest value.
        agreement: the share of rows with the same best class; None if there are no classes.
        times: by batch size, ascending.
        wrong: why it may not be used at any speed: its outputs are wrong, or it does not run; "" if
            it may.
        judged_at: when the outputs were compared, in seconds since 1970.
    """

    error: float = 0.0
    agreement: float | None = None
    times: dict[str, Timing] = {}
    wrong: str = ""
    broken: bool = False
    judged_at: float = 0.0

    @property
    def refused(self) -> str:
        """Return why the variant is not used; "" if it is."""
        return self.wrong or (f"it is {self.speed}" if self.word == "slower" else "")

    def timed(self, pairs: Mapping[int, Sequence[tuple[float, float]]]) -> Verdict:
        """Return the verdict with other times of some batch sizes.

        Fewer rounds than a comparison has refuse nothing, as chance may have made them slower.

        Args:
            pairs: by batch size, milliseconds of the module and of the variant in each round.
        """
        known = {int(size): timing for size, timing in self.times.items()}
        known |= {
            size: _timing_of(*zip(*rounds, strict=True)) for size, rounds in pairs.items() if rounds
        }
        times = {str(size): known[size] for size in sorted(known)}
        verdict = msgspec.structs.replace(self, times=times)
        few = any(len(rounds) < ROUNDS_MIN for rounds in pairs.values())
        return self if few and verdict.refused and not self.refused else verdict

    @property
    def word(self) -> str:
        """Return whether it is faster or slower, or "no difference".

        The largest batch decides, because a queue fills batches; if it shows no difference, the
        next one does.
        """
        words = [timing.word for timing in reversed(self.times.values())]
        return next((word for word in words if word != "no difference"), "no difference")

    @property
    def speed(self) -> str:
        """Return in words how fast it is, by batch size; "" if that was not measured."""
        sizes = ", ".join(
            f"{timing.gain:.2f} times as fast ({timing.low:.2f} to {timing.high:.2f}) "
            f"for a batch of {size}"
            for size, timing in self.times.items()
        )
        if self.word == "no difference":
            return f"no difference to the speed of eager: {sizes}" if sizes else ""
        return f"{self.word} than eager: {sizes}"


def together(verdicts: Sequence[Verdict], names: Sequence[str]) -> Verdict:
    """Return one verdict on all modules (`names`): each must be right, and their time is summed."""
    if len(verdicts) == 1:
        return verdicts[0]
    reasons = [
        f"{name}: {verdict.wrong}"
        for verdict, name in zip(verdicts, names, strict=True)
        if verdict.wrong
    ]
    agreements = [verdict.agreement for verdict in verdicts if verdict.agreement is not None]
    sizes = [set(verdict.times) for verdict in verdicts]
    return Verdict(
        error=max(verdict.error for verdict in verdicts),
        agreement=min(agreements, default=None),
        times={
            size: _summed([verdict.times[size] for verdict in verdicts])
            for size in sorted(set.intersection(*sizes), key=int)
        },
        wrong="; ".join(reasons),
        broken=any(verdict.broken for verdict in verdicts),
        judged_at=min(verdict.judged_at for verdict in verdicts),
    )


def _summed(timings: Sequence[Timing]) -> Timing:
    eager_ms = sum(timing.eager_ms for timing in timings)

    def gain(of: Callable[[Timing], float]) -> float:
        return eager_ms / max(sum(timing.eager_ms / of(timing) for timing in timings), 1e-9)

    return Timing(
        eager_ms=eager_ms,
        own_ms=sum(timing.own_ms for timing in timings),
        gain=gain(lambda timing: timing.gain),
        low=gain(lambda timing: timing.low),
        high=gain(lambda timing: timing.high),
    )


def compare(
    module: Callable[..., Any],
    variant: Callable[..., Any],
    calls: Sequence[Args],
    timed: Mapping[int, Args],
    scores: Callable[[Any], Tensor] | None,
    max_error: float,
) -> Verdict:
    """Compare a variant with its module: outputs of `calls`, times of `timed`, by batch size."""
    error, same, rows = 0.0, 0, 0
    with torch.inference_mode():
        for args in (*calls, *timed.values()):
            expected, actual = module(*args), variant(*args)
            if problem := _other_shape(expected, actual):
                return Verdict(wrong=problem, broken=True, judged_at=time.time())
            error = max(error, *_errors(expected, actual), 0.0)
            if scores is not None:
                best = scores(expected).argmax(dim=1), scores(actual).argmax(dim=1)
                same += int((best[0] == best[1]).sum())
                rows += best[0].numel()
    agreement = same / rows if rows else None
    verdict = Verdict(error=error, agreement=agreement, judged_at=time.time())
    wrong = _why_wrong(verdict, max_error)
    if wrong:
        return msgspec.structs.replace(verdict, wrong=wrong)
    times = {str(size): _timing(module, variant, args) for size, args in sorted(timed.items())}
    return msgspec.structs.replace(verdict, times=times)


def _other_shape(expected: Any, actual: Any) -> str:
    """Return how the shapes of two outputs differ; "" if they do not."""
    right, own = (
        [tuple(tensor.shape) for tensor in floats(outputs)] for outputs in (expected, actual)
    )
    if right == own:
        return ""
    return f"its outputs have the shapes {own}, those of eager have {right}"


def _errors(expected: Any, actual: Any) -> list[float]:
    """Return the error of each output; infinite where one has a number and the other has none."""
    errors = []
    for right, own in zip(floats(expected), floats(actual), strict=True):
        scale = max(float(right.abs().max()) if right.numel() else 0.0, 1e-12)
        apart = float((right - own).abs().max()) / scale if right.numel() else 0.0
        errors.append(apart if math.isfinite(apart) else math.inf)
    return errors


def _why_wrong(verdict: Verdict, max_error: float) -> str:
    if verdict.error > max_error:
        return (
            f"its outputs differ from eager by {verdict.error:.2g} of the largest, more than "
            f"max_error, {max_error:g}"
        )
    if verdict.agreement is not None and verdict.agreement < AGREEMENT_MIN:
        return (
            f"its best class is that of eager for {verdict.agreement:.1%} of the inputs, less than "
            f"{AGREEMENT_MIN:.0%}"
        )
    return ""


def _timing(module: Callable[..., Any], variant: Callable[..., Any], args: Args) -> Timing:
    """Run both in turns until their ratio is known well enough, or for a limited time.

    A busy machine disturbs the two runs of a round alike, so their ratio counts.
    """
    eager, own = list[float](), list[float]()
    until = time.perf_counter() + TIMED_S
    while True:
        # Each is first in every other round: what ran before warms the caches.
        order = ((module, eager), (variant, own))
        for call, times in order if len(eager) % 2 else order[::-1]:
            times.append(milliseconds(call, args))
        late = len(eager) >= ROUNDS_MIN and time.perf_counter() > until
        if not late and len(eager) not in LOOKS:
            continue
        timing = _timing_of(eager, own)
        equal = timing.low >= 1 / SLACK and timing.high <= SLACK
        if late or equal or timing.word != "no difference" or len(eager) >= LOOKS[-1]:
            return timing


def _timing_of(eager: Sequence[float], own: Sequence[float]) -> Timing:
    ratios = sorted(
        eager_ms / max(own_ms, 1e-9) for eager_ms, own_ms in zip(eager, own, strict=True)
    )
    low, high = median_interval(ratios)
    medians = [round(statistics.median(times), 3) for times in (eager, own)]
    return Timing(
        eager_ms=medians[0], own_ms=medians[1], gain=statistics.median(ratios), low=low, high=high
    )


def milliseconds(call: Callable[..., Any], args: Args) -> float:
    """Return how long one call takes, on the device too."""
    started = time.perf_counter()
    with torch.inference_mode():
        call(*args)
        if args[0].is_cuda:
            torch.cuda.synchronize(args[0].device)
    return (time.perf_counter() - started) * 1000
