"""A deployment with models for each of OpenAI's endpoints, and its SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.extensions.openai.harness.batches import sdk
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.workers.worker import HANDLERS

MODELS: dict[str, Any] = {
    "docs": {"handler": "language_model", "max_batch_size": 4},
    "pieces": {"handler": f"{HANDLERS / 'generation/yielding.py'}:Chatting"},
    "echo": {"handler": "echo"},
}


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest,
    shared_deployment: SharedDeployment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """The models above and those of the module's own MODELS."""
    folder = tmp_path_factory.mktemp("openai")
    models = {**MODELS, **getattr(request.module, "MODELS", {})}
    with shared_deployment.site(folder, models) as found:
        yield found


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    with sdk(site.api.url) as client:
        yield client
