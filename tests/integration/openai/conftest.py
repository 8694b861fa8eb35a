"""A deployment with models for each of OpenAI's endpoints, and its SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.config.model_catalog import load_catalog
from tests.harness.clients.openai_batches import sdk
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models
from tests.integration.jobs.test_generator import Site

MODELS: dict[str, Any] = {
    "docs": {"handler": "language_model", "max_batch_size": 4},
    "vectors": {"handler": "text_embedding", "max_batch_size": 8},
    "pieces": {"handler": f"{HANDLERS / 'yielding.py'}:Chatting"},
    "echo": {"handler": "echo"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("openai")
    path = write_models(folder, **MODELS)
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder, environ={"OMP_NUM_THREADS": "1"}) as worker,
        Client(server.url, path) as client,
        api_server(server.url, load_catalog(path)) as api,
    ):
        worker.wait_ready(*MODELS)
        yield Site(server, api, worker, client)
        nothing_leaks(client.redis)


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    with sdk(site.api.url) as client:
        yield client
