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
    "calls": {"handler": f"{HANDLERS / 'generation/yielding.py'}:Calling"},
    "vectors": {"handler": "text_embedding", "max_batch_size": 8},
    "echo": {"handler": "echo"},
    "numbers": {"handler": "echo", "inputs": {"schema": {"type": "array"}}},
}


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The models above, loaded once for all modules: a language model takes seconds to load."""
    folder = tmp_path_factory.mktemp("openai")
    with shared_deployment.site(folder, MODELS, keep=True) as found:
        yield found


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    with sdk(site.api.url) as client:
        yield client
