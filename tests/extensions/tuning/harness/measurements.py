"""Measurements with plausible figures, for tests of what reads them."""

from __future__ import annotations

import math
from typing import Any

from extensions.tuning.bench.measurement import (
    Load,
    Measurement,
    Objective,
    Peak,
    Spread,
    Usage,
    Verdict,
    Window,
)


def spread(mean: float) -> Spread:
    """Return times around a mean, with a tail."""
    return Spread(
        mean=mean,
        p50=0.9 * mean,
        p90=1.5 * mean,
        p95=1.8 * mean,
        p99=2.6 * mean,
        p999=4 * mean,
        max=6 * mean,
    )


def load(
    mean_ms: float = 20.0, *, rate: float = 100.0, requests: int = 3000, **others: Any
) -> Load:
    """Return a load of the scenario `server` whose latency has this mean."""
    shares = [n / 100 for n in range(1, 100)] + [0.995, 0.999, 1.0]
    cdf = [
        (mean_ms * 0.9 * math.exp(0.45 * math.log(share / (1.0001 - share)) / 1.7), share)
        for share in shares
    ]
    fields: dict[str, Any] = {
        "scenario": "server",
        "started_at": "2026-01-02T03:04:05Z",
        "duration_s": requests / rate if rate else 0.0,
        "warm_up_s": 3.0,
        "requests": requests,
        "succeeded": requests,
        "rate": rate,
        "rate_low": rate * 0.97,
        "rate_high": rate * 1.03,
        "latency": spread(mean_ms),
        "lag": spread(0.2),
        "offered_rate": rate,
        "latency_cdf": cdf,
        "stages": {
            name: spread(mean_ms * part)
            for name, part in (
                ("queued", 0.2), ("hold", 0.05), ("device_wait", 0.1), ("preprocess", 0.15),
                ("inference", 0.4), ("postprocess", 0.02), ("other", 0.08),
            )
        },
        "batch_sizes": {1: 300, 2: 500, 3: 700, 4: 900, 8: 600},
        "usage": {"model": Usage(cpu_s=25.0, memory_mb=740.0), "api": Usage(cpu_s=4, memory_mb=90)},
        "windows": [
            Window(
                start_s=float(n),
                length_s=1.0,
                rate=rate,
                p50_ms=mean_ms * (2.0 if n < 3 else 0.9),
                p99_ms=mean_ms * (5.0 if n < 3 else 2.6),
                waiting=3,
                steady=n >= 3,
            )
            for n in range(20)
        ],
    }  # fmt: skip
    return Load(**{**fields, **others})


def verdict(*, met: bool) -> Verdict:
    """Return a verdict on 3000 requests."""
    late = 4 if met else 90
    word = "is" if met else "is not"
    text = f"p99 {word} within 100 ms: {late} of 3000 requests were late, and 18 may be"
    return Verdict(met=met, requests=3000, late=late, allowed=18, needed=1157, text=text)


def measurement(
    name: str = "resnet", loads: list[Load] | None = None, **others: Any
) -> Measurement:
    """Return a measurement of several rates under an objective."""
    if loads is None:
        steps = ((50, 12), (100, 18), (200, 31), (300, 60), (350, 240))
        loads = [
            load(mean, rate=float(rate), verdict=verdict(met=mean < 100)) for rate, mean in steps
        ]
    fields: dict[str, Any] = {
        "name": name,
        "model": "resnet50",
        "version": "1.0",
        "url": "http://127.0.0.1:8080",
        "started_at": "2026-01-02T03:04:05Z",
        "loads": loads,
        "input": "12 images, 60 KB in the mean",
        "options": {"max_batch_size": 8, "replicas": 2, "optimize": {"backend": "compile"}},
        "environment": {
            "cpu": "Example CPU 2.6 GHz", "cores": 8, "memory_mb": 32000, "governor": "performance",
            "load_average": [0.1, 3.2], "versions": {"python": "3.12", "torch": "2.13"},
        },
        "objective": Objective(percentile=99.0, latency_ms=100.0),
        "peak": Peak(rate=300.0, low=300.0, high=350.0),
        "price_per_hour": 1.2,
        "cost_per_1000": 0.0011,
        "currency": "EUR",
    }  # fmt: skip
    return Measurement(**{**fields, **others})
