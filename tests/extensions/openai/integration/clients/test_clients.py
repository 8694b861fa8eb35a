"""Each client does its plain, streamed, structured and tool calls on our small model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from headrace.server.ports import free_port
from tests.extensions.openai.integration.api.conftest import site
from tests.harness.deployments.site import Site
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.up import ROOT, clean_environment
from tests.harness.wait import wait_until

__all__ = ["site"]

HERE = Path(__file__).parent
INSTALLED = ROOT / ".venv-clients"
PYTHON = INSTALLED / "bin" / "python"
NODE = INSTALLED / "node"
CLIENTS = (
    "openai-python", "instructor", "langchain", "llama-index", "openai-agents", "pydantic-ai",
    "litellm",
)  # fmt: skip
LIMIT_S = 300
#: Else LiteLLM asks another host for prices, and tries again for seconds.
ALONE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def run(*command: str | Path, folder: Path) -> None:
    ended = subprocess.run(
        command, cwd=folder, env=clean_environment(**ALONE), timeout=LIMIT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, f"after {ended.stdout}: {ended.stderr[-4000:]}"
    *calls, last = ended.stdout.splitlines()
    assert re.fullmatch(r"\d+ calls", last)
    assert int(last.split()[0]) == len(calls) > 1


@pytest.fixture
def needs_clients() -> None:
    if not PYTHON.exists():
        assert "CI" not in os.environ, "make clients"
        pytest.skip("needs the clients: make clients")


@pytest.fixture
def litellm_proxy(site: Site, tmp_path: Path, needs_clients: None) -> Iterator[str]:
    """LiteLLM's proxy before our server, without a database."""
    upstream = {"model": "openai/docs", "api_base": f"{site.api.url}/v1", "api_key": "none"}
    config = tmp_path / "proxy.yaml"
    settings = {
        "model_list": [{"model_name": "docs", "litellm_params": upstream}],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    config.write_text(json.dumps(settings))
    port = free_port()
    command: list[str | Path] = [
        PYTHON, "-m", "litellm.proxy.proxy_cli", "--config", config, "--port", str(port),
        "--host", "127.0.0.1", "--telemetry", "False",
    ]  # fmt: skip
    with (tmp_path / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen(
            command, cwd=tmp_path, env=clean_environment(**ALONE), stdout=log, stderr=log
        )
    try:

        def answers() -> bool:
            assert proxy.poll() is None, (tmp_path / "proxy.log").read_text()[-4000:]
            try:
                health = f"http://127.0.0.1:{port}/health/liveliness"
                return httpx2.get(health, verify=PLAIN, timeout=5).status_code == 200
            except httpx2.TransportError:
                return False

        wait_until(answers, "the proxy answers", 2 * LIMIT_S)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        proxy.terminate()
        proxy.wait(LIMIT_S)


def test_the_proxy_of_litellm(litellm_proxy: str, tmp_path: Path) -> None:
    run(PYTHON, HERE / "python_clients.py", "litellm-proxy", litellm_proxy, folder=tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_python_client(site: Site, tmp_path: Path, needs_clients: None, client: str) -> None:
    run(PYTHON, HERE / "python_clients.py", client, f"{site.api.url}/v1", folder=tmp_path)


def test_the_clients_for_node(site: Site) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").exists():
        pytest.skip("needs Node and its clients: make clients")
    shutil.copy(HERE / "node" / "clients.mjs", NODE)
    run(node, NODE / "clients.mjs", f"{site.api.url}/v1", folder=NODE)
