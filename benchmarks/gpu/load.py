"""A workload behind API, Redis and worker, and clients that submit and wait."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2

from benchmarks.gpu.workloads import LOAD_S, Photograph, Workload
from tests.harness.servers.api_process import api_process
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker, write_models

WAIT_S: Final = 60
#: What a job's time in the handler is made of.
STAGES: Final = ("preprocess", "inference", "postprocess")


@dataclass(slots=True)
class Latencies:
    """The latencies of several loads.

    Attributes:
        client_ms: from before a request until its response was read.
        batches_ms: the handler's time for each batch, by its three stages.
    """

    client_ms: list[float] = field(default_factory=list)
    batches_ms: dict[tuple[float, ...], float] = field(default_factory=dict)

    def add(self, took_ms: float, job: dict[str, Any]) -> None:
        """Add a response. Jobs of one batch have the same times to the microsecond."""
        self.client_ms.append(took_ms)
        stages = tuple(float(job["timings"][stage]) for stage in STAGES)
        self.batches_ms[stages] = sum(stages)


def p99(values: Sequence[float]) -> float:
    """Return the value that 99 % of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def model_name(form: str, batch: int) -> str:
    """Return the name of a combination in the models file."""
    return f"{form}-{batch}"


@contextmanager
def served(
    workload: Workload,
    device: str,
    forms: Sequence[str],
    batches: Sequence[int],
    environ: Mapping[str, str],
) -> Iterator[str]:
    """Yield the base URL of an API with all combinations of a workload."""
    models = {
        model_name(form, batch): workload.model(device, form, batch)
        for form in forms
        for batch in batches
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(redis_server())
        path = write_models(folder, **models)
        worker = stack.enter_context(
            celery_worker(redis.url, path, folder, environ=dict(environ), arguments=())
        )
        worker.wait_ready(*models, timeout_s=LOAD_S)
        yield stack.enter_context(api_process(redis.url, path)).url


def run_load(
    url: str,
    model: str,
    images: Sequence[Photograph],
    clients: int,
    seconds: float,
    seen: Latencies,
) -> float:
    """Return images per second of `clients` clients that submit and wait one at a time.

    Raises:
        RuntimeError: a job failed.
    """
    started = time.perf_counter()
    numbers = count()

    def run(_: int) -> int:
        done = 0
        with httpx2.Client(base_url=url, timeout=WAIT_S * 2) as http:
            while done == 0 or time.perf_counter() < started + seconds:
                image = images[next(numbers) % len(images)]
                started_at = time.perf_counter()
                answer = http.post(
                    f"/api/v1/models/{model}/jobs?wait={WAIT_S}",
                    content=image.jpeg, headers={"Content-Type": "image/jpeg"},
                )  # fmt: skip
                took_ms = (time.perf_counter() - started_at) * 1000
                job = answer.json()
                if answer.status_code != 200 or job["status"] != "succeeded":
                    raise RuntimeError(f"{model}: {answer.status_code} {answer.text[:2000]}")
                seen.add(took_ms, job)
                done += 1
        return done

    with ThreadPoolExecutor(clients) as pool:
        done = sum(pool.map(run, range(clients)))
    return done / (time.perf_counter() - started)
