"""What a pipeline's job asks of the jobs of its stages."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.jobs.options import MAX_WAIT_FOR_START_S
from workers.background.pipelines.execution import KEPT_S, LATER_S, PipelineExecution


def options(timeout_s: float, model_s: float) -> Any:
    nothing = dict.fromkeys(("expires_s", "max_retries", "retry_backoff_s", "retry_backoff_max_s"))
    job: Any = SimpleNamespace(step=6, message=SimpleNamespace(**nothing))
    pipeline: Any = SimpleNamespace(stages=[])
    stage: Any = SimpleNamespace(sources=["input"], priority=0)
    backend: Any = None
    return PipelineExecution(pipeline, job, backend, time.time() + timeout_s).options(
        stage, model_s
    )


@pytest.mark.parametrize("timeout_s", [1.5, 600, 86_400])
def test_a_stage_s_result_outlives_all_that_may_take_from_it(timeout_s: float) -> None:
    asked = options(timeout_s, 1e9)
    # Whoever goes on with the job has the whole time again.
    assert asked.result_ttl >= KEPT_S + 2 * timeout_s - 1
    assert asked.timeout == pytest.approx(timeout_s + LATER_S, abs=60)
    assert asked.priority == 6


def test_nothing_is_kept_for_longer_than_a_job_may_ask_for() -> None:
    asked = options(MAX_WAIT_FOR_START_S, 7.0)
    assert (asked.result_ttl, asked.timeout) == (MAX_WAIT_FOR_START_S, 7.0)
