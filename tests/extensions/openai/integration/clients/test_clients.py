"""Each client does its plain, streamed, structured and tool calls on our small model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.extensions.openai.integration.api.conftest import site
from tests.harness.deployments.site import Site
from tests.harness.servers.up import ROOT, clean_environment

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


def run(*command: str | Path, folder: Path) -> None:
    ended = subprocess.run(
        command, cwd=folder, env=clean_environment(), timeout=LIMIT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, f"after {ended.stdout}: {ended.stderr[-4000:]}"
    *calls, last = ended.stdout.splitlines()
    assert re.fullmatch(r"\d+ calls", last)
    assert int(last.split()[0]) == len(calls) > 1


@pytest.mark.parametrize("client", CLIENTS)
def test_a_python_client(site: Site, tmp_path: Path, client: str) -> None:
    if not PYTHON.exists():
        assert "CI" not in os.environ, "make clients"
        pytest.skip("needs the clients: make clients")
    run(PYTHON, HERE / "python_clients.py", client, f"{site.api.url}/v1", folder=tmp_path)


def test_the_clients_for_node(site: Site) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").exists():
        pytest.skip("needs Node and its clients: make clients")
    shutil.copy(HERE / "node" / "clients.mjs", NODE)
    run(node, NODE / "clients.mjs", f"{site.api.url}/v1", folder=NODE)
