"""The document that compares variants of a model: speed, memory and error of each."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.config.model.optimize import Optimize

#: The format of the document; a reader refuses a newer one.
FORMAT: Final = 1
#: The reason why a variant was not measured for want of time.
LATE: Final = "it was not built and loaded in time"


class BatchTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a batch of one size.

    Attributes:
        inference_ms, low_ms, high_ms: the median of `inference`, and its 95 % interval.
        preprocess_ms, postprocess_ms: the medians of the other verbs.
    """

    size: int
    inference_ms: float
    low_ms: float
    high_ms: float
    preprocess_ms: float = 0.0
    postprocess_ms: float = 0.0


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One variant.

    Attributes:
        load_s: the seconds of a load whose build is in the cache.
        build_s: the seconds of the build; 0 if it was in the cache.
        memory_mb: what the process needs in MiB, on its device.
        error: the largest difference to eager, relative to the largest output; 0 for eager.
        agreement: the share of calibration inputs with the same best class as eager; None if the
            outputs have no classes.
        refused: why it is not used: wrong, slower, not installed, or failed to build; "" if it is.
        kept_s: how old the comparison of its outputs is, in seconds; 0 if it is of this run.
    """

    optimize: Optimize
    load_s: float = 0.0
    build_s: float = 0.0
    memory_mb: float = 0.0
    times: list[BatchTime] = msgspec.field(default_factory=list)
    error: float = 0.0
    agreement: float | None = None
    refused: str = ""
    kept_s: float = 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All variants of one model, measured in turn on one machine; eager is first.

    Attributes:
        inputs: the file or folder of the inputs, or `example_input`.
        left_out: in words, which files are no inputs, and how many inputs the handler refuses.
        without_module: the handler offers no module, so eager alone is measured.
        cut: its time ended before all variants and sizes were measured.
    """

    model: str
    device: str
    variants: list[Variant]
    threads: int = 0
    inputs: str = ""
    left_out: str = ""
    without_module: bool = False
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    cut: bool = False
    format: int = FORMAT


def read_lines(text: bytes) -> Comparison | None:
    """Return the comparison that a measuring process has printed, or has begun to print.

    The first line is a `Comparison` without variants. Each other line is a `Variant` with all that
    was known of it then. Returns None if not even eager was loaded.
    """
    # A process that was killed may have left the last line incomplete.
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    if not lines:
        return None
    found: dict[Optimize, Variant] = {}
    for line in lines[1:]:
        variant = msgspec.json.decode(line, type=Variant)
        found[variant.optimize] = variant
    comparison = msgspec.json.decode(lines[0], type=Comparison)
    return msgspec.structs.replace(comparison, variants=list(found.values()))
