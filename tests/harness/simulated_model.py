"""A model whose peak rate under an objective is known: 20 + n milliseconds a batch.

It stands for a deployment in tests of the search: options in, a noisy trial out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from extensions.tuning.optimize.report import BatchTime, Comparison, Variant
from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
from headrace.config.model.optimize import Optimize

#: How fast each variant computes an input, relative to eager.
SPEEDS = {"eager": 1.0, "compile": 0.9, "onnxruntime": 0.7, "openvino": 0.55}
SIZES = (1, 2, 4, 8, 16, 32, 64)
PRESENT: dict[str, Any] = {
    "max_batch_size": 32,
    "max_batch_delay_ms": 5.0,
    "replicas": 1,
    "preprocess_threads": 1,
    "preprocess_processes": 0,
}


@dataclass
class SimulatedModel:
    """A model on some cores; `noise` is the standard deviation of a trial's rate, as a part of it.

    Attributes:
        flat: no option has an effect.
        measured: how many trials it had.
    """

    seed: int = 0
    noise: float = 0.03
    cores: int = 4
    objective_ms: float = 100.0
    flat: bool = False
    measured: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def batch_ms(self, size: int, candidate: Candidate) -> float:
        """The time of a batch: 20 + n ms on all cores; replicas share them."""
        options = candidate.options
        backend = (options.get("optimize") or {}).get("backend", "eager")
        replicas = options.get("replicas", 1)
        # Fewer threads are used better, until there are more processes than cores.
        slower = replicas**0.8 * max(1.0, replicas / self.cores)
        parallel = options.get("preprocess_processes", 0) or options.get("preprocess_threads", 1)
        preprocess = 0.3 * size / min(parallel, max(1, self.cores // replicas))
        return 20 + float(size * SPEEDS[backend] * slower + preprocess)

    def peak(self, candidate: Candidate) -> float:
        """The true peak rate: the best batch in time, for a job that waits for one and its own."""
        if self.flat:
            return 200.0
        options = candidate.options
        delay = options.get("max_batch_delay_ms", 5.0)
        best = 0.0
        for size in range(1, options.get("max_batch_size", 32) + 1):
            time_ms = self.batch_ms(size, candidate)
            if 2 * time_ms + delay <= self.objective_ms:
                filled = 1 - 0.1 * math.exp(-delay / 3)
                best = max(best, 1000 * filled * size / time_ms * options.get("replicas", 1))
        return best

    def trial(self, candidate: Candidate, floor: float = 0.0) -> Trial:
        """Measure a candidate, with noise."""
        self.measured += 1
        rate = self.peak(candidate) * math.exp(self._chance.gauss(0, self.noise))
        cut = "slower" if rate * 1.02 < floor else ""
        return Trial(candidate=candidate, rate=rate, low=rate * 0.98, high=rate * 1.02, cut=cut)

    def again(self, candidate: Candidate, _: int) -> Trial:
        """Measure a candidate in a round of the confirmation."""
        return self.trial(candidate)

    def comparison(self) -> Comparison:
        """The times of a batch without a server."""
        variants = []
        for backend in SPEEDS:
            candidate = Candidate(label="", options={"optimize": {"backend": backend}})
            times = [
                BatchTime(size=n, inference_ms=ms, low_ms=ms * 0.99, high_ms=ms * 1.01)
                for n in SIZES
                for ms in [self.batch_ms(n, candidate)]
            ]
            optimize = Optimize(backend=backend)  # type: ignore[arg-type]
            variants.append(Variant(optimize=optimize, times=times, memory_mb=100.0))
        return Comparison(model="simulated", device="cpu", variants=variants)
