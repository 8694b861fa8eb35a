"""The statistics of models in Triton's words, from the counters that /metrics shows too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from api.services import Services
from extensions.inference_protocols.models.lookup import model_for
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.observability.worker_report import (
    BATCH_SIZE,
    DEVICE_WAIT_S,
    ENDED,
    HOLD_S,
    JOB_S,
    QUEUE_S,
    ROWS,
    STAGES_S,
    field_of,
)
from headrace.redis import keys

_HISTOGRAMS: Final = (BATCH_SIZE, QUEUE_S, HOLD_S, DEVICE_WAIT_S, JOB_S, *STAGES_S)
_ENDS: Final = ("succeeded", "failed")
_COUNTERS: Final = (*(f"{ENDED}:{one}" for one in _ENDS), ROWS)
_FIELDS: Final = (*map(field_of, _HISTOGRAMS), *_COUNTERS)
_NS: Final = 1_000_000_000


async def statistics_of(services: Services, name: str = "", version: str = "") -> dict[str, Any]:
    """Return the statistics of a model, or of all; they are up to a second old.

    Raises:
        InvalidRequest: the model is unknown.
        BrokerError: Redis does not answer.
    """
    models: Sequence[ModelConfig] = services.catalog.served
    if name:
        try:
            models = [await model_for(services, name, version)]
        except ModelNotFound:
            raise InvalidRequest(f"requested model '{name[:256]}' is not available") from None
    rows = await services.queue.read_all(
        [("HMGET", keys.stats(model.name), *_FIELDS) for model in models]
    )
    found = [_statistics(model, row) for model, row in zip(models, rows, strict=True)]
    return {"model_stats": found}


def _statistics(model: ModelConfig, row: Sequence[bytes | None]) -> dict[str, Any]:
    histograms = dict(zip(_HISTOGRAMS, map(_count_and_sum, row), strict=False))
    succeeded, failed, rows = (int(float(raw or 0)) for raw in row[-len(_COUNTERS) :])
    batches, jobs = map(int, histograms[BATCH_SIZE])
    waits = [histograms[name] for name in (QUEUE_S, HOLD_S, DEVICE_WAIT_S)]

    def compute(name: str) -> dict[str, int]:
        # The time of a batch counts for each of its jobs, as with Triton.
        ran, seconds = histograms[name]
        return _duration(jobs, seconds * jobs / ran if ran else 0.0)

    names = ("compute_input", "compute_infer", "compute_output")
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": 0,
        "inference_count": rows or jobs,
        "execution_count": batches,
        "inference_stats": {
            "success": _duration(succeeded, histograms[JOB_S][1]),
            "fail": _duration(failed, 0.0),
            "queue": _duration(waits[0][0], sum(seconds for _, seconds in waits)),
            **{name: compute(stage) for name, stage in zip(names, STAGES_S, strict=True)},
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "batch_stats": [],
        "memory_usage": [],
        "response_stats": {},
    }


def _count_and_sum(raw: bytes | None) -> tuple[int, float]:
    """Return the count and the sum of a histogram, which end its field."""
    parts = raw.split() if raw else []
    return (int(parts[-2]), float(parts[-1])) if len(parts) > 1 else (0, 0.0)


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * _NS)}
