"""The document that compares variants of a model: speed, memory and error of each."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.config.optimize import Optimize

#: The format of the document; a reader refuses a newer one.
FORMAT: Final = 1


class BatchTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a batch of one size.

    Attributes:
        size: items in the batch.
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
        optimize: the variant.
        load_s: the seconds of a load whose build is in the cache.
        build_s: the seconds of the build; 0 if it was in the cache.
        memory_mb: what the process needs in MiB, on its device.
        times: the batches, by ascending size.
        error: the largest difference to eager, relative to the largest output; 0 for eager.
        agreement: the share of calibration inputs with the same best class as eager; None if the
            outputs have no classes.
        refused: why it is not used: wrong, slower, not installed, or failed to build; "" if it is.
    """

    optimize: Optimize
    load_s: float = 0.0
    build_s: float = 0.0
    memory_mb: float = 0.0
    times: list[BatchTime] = msgspec.field(default_factory=list)
    error: float = 0.0
    agreement: float | None = None
    refused: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All variants of one model, measured in turn on one machine; eager is first."""

    model: str
    device: str
    variants: list[Variant]
    threads: int = 0
    inputs: str = ""
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    format: int = FORMAT
