"""The benchmark of the client's map still runs, and gives every input its own result."""

from __future__ import annotations

from benchmarks.common.systems import Headrace
from benchmarks.job_path.client_map import mapped, mapped_async, measure


def test_every_input_has_its_own_result() -> None:
    with Headrace(events=False) as system:
        for run in (mapped, mapped_async):
            found = measure(system, run, 700, in_flight=300)
            assert found.per_second > 0
            assert found.cpu_per_1000.keys() == {"client", "api", "redis", "worker", "model"}
