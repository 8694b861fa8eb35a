"""The options that a search may choose: axes, their choices, and the points between which it moves.

Pure values: it knows no server and no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.config.model.optimize import FIXED_SHAPES, Optimize

#: In a choice: the allowed batch sizes are the powers of two up to `max_batch_size`.
POWERS: Final = "powers of 2"
THREADS: Final = "OMP_NUM_THREADS"
SLOTS: Final = "HEADRACE_DEVICE_SLOTS"

#: The name of the axis of variants.
VARIANT: Final = "variant"
#: The largest batch that is tried, unless larger ones can be in time or are in use.
BATCH_MAX: Final = 64

_DELAYS_MS: Final = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_PREPROCESS_MAX: Final = 4
_GPU_REPLICAS: Final = (1, 2, 3, 4)
#: An axis whose part of the time is smaller cannot make a model much faster.
_WORTH: Final = 0.1

#: The index of a choice on each axis.
Point = tuple[int, ...]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of options that a trial can measure.

    Attributes:
        options: options of the model, as in the models file; None: without this option.
        environ: variables of the workers, which the models file does not have.
    """

    label: str
    options: dict[str, Any]
    environ: dict[str, str] = {}

    @property
    def key(self) -> str:
        """Return a text that only equal combinations share."""
        parts = [self.options, self.environ]
        return msgspec.json.encode(parts, order="sorted").decode()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value of an axis: some options of the model, or variables of the workers."""

    label: str
    options: dict[str, Any] = {}
    environ: dict[str, str] = {}


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What a search changes at once.

    Attributes:
        ordered: neighbours in the list are alike; else each choice is a neighbour of all others.
        start: the index of the present choice.
    """

    name: str
    choices: tuple[Choice, ...]
    ordered: bool = True
    start: int = 0


class Space:
    """All points of some axes.

    Args:
        axes: the axes, the one with the largest effect first.
        cores: the cores that the model processes share; 0 on a GPU.
    """

    def __init__(self, axes: Sequence[Axis], cores: int = 0) -> None:
        self.axes = tuple(axis for axis in axes if axis.choices)
        self._cores = cores

    @property
    def size(self) -> int:
        """Return the number of points."""
        return math.prod(len(axis.choices) for axis in self.axes)

    @property
    def present(self) -> Point:
        """Return the point of the present options."""
        return tuple(axis.start for axis in self.axes)

    def candidate(self, point: Point) -> Candidate:
        """Return the options of a point.

        What has no effect there is left out, so that equal points have equal candidates.
        """
        chosen = [axis.choices[at] for axis, at in zip(self.axes, point, strict=True)]
        options: dict[str, Any] = {}
        environ: dict[str, str] = {}
        for choice in chosen:
            options |= choice.options
            environ |= choice.environ
        self._settle(options, environ)
        return Candidate(
            label=", ".join(choice.label for choice in chosen if choice.label),
            options=options,
            environ=environ,
        )

    def directions(self, point: Point, axis: int) -> Iterator[Iterator[Point]]:
        """Yield the ways to leave a point along an axis; each yields ever more distant points.

        Of an axis without order, each way has one point.
        """
        count, at = len(self.axes[axis].choices), point[axis]
        if not self.axes[axis].ordered:
            for index in range(count):
                if index != at:
                    yield iter([moved(point, axis, index)])
            return
        for indexes in (range(at + 1, count), range(at - 1, -1, -1)):
            yield (moved(point, axis, index) for index in indexes)

    def _settle(self, options: dict[str, Any], environ: dict[str, str]) -> None:
        fixed = (options.get("optimize") or {}).get("backend") in FIXED_SHAPES
        most = options.get("max_batch_size")
        sizes = options.get("allowed_batch_sizes")
        if most is not None and (fixed or sizes == POWERS):
            options["allowed_batch_sizes"] = powers_of_two(most)
        elif most is not None and sizes is not None:
            options["allowed_batch_sizes"] = [*(n for n in sizes if n < most), most]
        replicas = options.get("replicas", 1)
        if replicas == 1:
            environ.pop(SLOTS, None)
        if self._cores and environ.get(THREADS) == str(max(1, self._cores // max(1, replicas))):
            environ.pop(THREADS)


def powers_of_two(most: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most] + [most]


def space_of(
    present: Mapping[str, Any],
    *,
    objective_ms: float,
    cores: int,
    gpu: bool = False,
    workers: bool = False,
    variants: Sequence[Optimize] = (),
    batch_max: int = BATCH_MAX,
    preprocess_share: float = 1.0,
) -> Space:
    """Return the space around the present options of a model.

    Args:
        present: the options as the server has them, with its defaults.
        cores: physical cores.
        workers: the workers' own variables can be changed too.
        variants: the variants that can win, besides the present one.
        batch_max: the largest batch that can meet the objective, or can win.
        preprocess_share: the part of a batch's time that `preprocess` takes.
    """
    batch = present.get("max_batch_size", 32)
    delay_ms = float(present.get("max_batch_delay_ms", 10.0))
    # A delay counts towards the latency, and a batch takes time too.
    delays = [delay for delay in _DELAYS_MS if delay <= objective_ms / 2]
    axes = [
        _variants(present, variants),
        _numbers("max_batch_size", batch, powers_of_two(batch_max), "batch {}".format),
        _replicas(present, cores, gpu=gpu),
        _threads(cores) if workers and not gpu else None,
        _preprocess(present, cores) if preprocess_share >= _WORTH else None,
        _numbers("max_batch_delay_ms", delay_ms, delays, "delay {:g} ms".format),
        _padding(present, gpu=gpu),
        _slots() if workers else None,
    ]
    chosen = [axis for axis in axes if axis is not None and len(axis.choices) > 1]
    return Space(chosen, 0 if gpu else cores)


def variant_label(variant: Mapping[str, Any] | None) -> str:
    """Return a variant in words, such as `openvino int8`."""
    given = variant or {}
    mode = given.get("mode", "default")
    words = [given.get("backend", "eager"), given.get("precision", "float")]
    return " ".join([*words, *([mode] if mode != "default" else [])])


def variant_options(variant: Optimize) -> dict[str, Any]:
    """Return a variant as the models file has it, without the defaults."""
    plain, defaults = msgspec.to_builtins(variant), msgspec.to_builtins(Optimize())
    short = {key: value for key, value in plain.items() if value != defaults[key]}
    return {"backend": variant.backend, **short}


def _variants(present: Mapping[str, Any], variants: Sequence[Optimize]) -> Axis:
    own = present.get("optimize")
    given = [own, *(variant_options(variant) for variant in variants)]
    found: dict[str, Choice] = {}
    for one in given:
        label = variant_label(one)
        found.setdefault(label, Choice(label=label, options={"optimize": one}))
    return Axis(name=VARIANT, choices=tuple(found.values()), ordered=False)


def _numbers(name: str, own: float, values: Iterable[float], label: Callable[[float], str]) -> Axis:
    """Return the axis of an option with these numbers and the present one."""
    found = sorted({own, *values})
    choices = [Choice(label=label(value), options={name: value}) for value in found]
    return Axis(name=name, choices=tuple(choices), start=found.index(own))


def _replicas(present: Mapping[str, Any], cores: int, *, gpu: bool) -> Axis | None:
    shared = ("total_replicas", "max_replicas")
    if any(present.get(key) is not None for key in shared) or present.get("replicas") == "auto":
        return None
    numbers = _GPU_REPLICAS if gpu else powers_of_two(cores)
    own = int(present.get("replicas", 1))
    return _numbers("replicas", own, numbers, lambda n: f"{n} replica{'' if n == 1 else 's'}")


def _threads(cores: int) -> Axis:
    numbers = sorted({1, max(1, cores // 2), cores})
    choices = [
        Choice(label=f"{n} thread{'' if n == 1 else 's'}", environ={THREADS: str(n)})
        for n in numbers
    ]
    return Axis(name="threads", choices=(Choice(label=""), *choices), ordered=False)


def _preprocess(present: Mapping[str, Any], cores: int) -> Axis | None:
    if "preprocess_threads" not in present:  # a server does not show it
        return None
    own = (present["preprocess_threads"], present.get("preprocess_processes", 0))
    pairs = [own]
    for number in powers_of_two(min(cores, _PREPROCESS_MAX)):
        pairs += [(number, 0), (own[0], number)]
    choices = []
    for threads, processes in dict.fromkeys(pairs):
        several = processes not in (0, "auto")
        count, noun = (processes, "preprocess process") if several else (threads, "thread")
        plural = "" if count == 1 else "es" if several else "s"
        label = f"{count} {noun}{plural}" + ("" if several else " for preprocess")
        # What the worker chooses at the load, or one thread.
        if (threads, processes) == ((1, 0) if "auto" not in own else own):
            label = ""
        values = {"preprocess_threads": threads, "preprocess_processes": processes}
        choices.append(Choice(label=label, options=values))
    return Axis(name="preprocess", choices=tuple(choices), ordered=False)


def _padding(present: Mapping[str, Any], *, gpu: bool) -> Axis | None:
    own = present.get("allowed_batch_sizes")
    # On a CPU each copy that fills a batch costs as much as an input.
    if own is None and not gpu:
        return None
    choices = (
        Choice(label="", options={"allowed_batch_sizes": own}),
        Choice(label="padded to powers of 2", options={"allowed_batch_sizes": POWERS}),
    )
    return Axis(name="allowed_batch_sizes", choices=choices, ordered=False)


def _slots() -> Axis:
    choices = [Choice(label=f"device slots {n}", environ={SLOTS: str(n)}) for n in (1, 2)]
    return Axis(name="slots", choices=(Choice(label=""), *choices), ordered=False)


def moved(point: Point, axis: int, index: int) -> Point:
    """Return the point with another choice on an axis."""
    return (*point[:axis], index, *point[axis + 1 :])
