"""What every test here needs: a CUDA device, and workers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes.gpu import cuda_names, gpus
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

Start = Callable[..., AbstractContextManager[tuple[Worker, Client]]]
#: A process that loads torch and CUDA's kernels the first time takes its time.
LOAD_S = 300


@pytest.fixture(scope="session", autouse=True)
def _cuda() -> None:
    if not cuda_names():
        pytest.skip("there is no CUDA device")


@pytest.fixture
def on_gpu(redis_db: RedisServer, tmp_path: Path) -> Start:
    """Starts a worker on the first GPU, with these models, as `headrace worker` would."""

    @contextmanager
    def start(**models: Mapping[str, Any]) -> Iterator[tuple[Worker, Client]]:
        path = write_models(tmp_path, **models)
        environ = {"CUDA_VISIBLE_DEVICES": gpus()[0].cuda_visible_devices}
        with (
            celery_worker(redis_db.url, path, tmp_path, environ=environ) as worker,
            Client(redis_db.url, path) as client,
        ):
            worker.wait_ready(*models, timeout_s=LOAD_S)
            yield worker, client

    return start
