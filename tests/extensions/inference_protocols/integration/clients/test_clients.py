"""Each client does its calls on the models of the gRPC tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.extensions.inference_protocols.integration.test_grpc import Site, site
from tests.harness.servers.up import ROOT, clean_environment

__all__ = ["site"]

HERE = Path(__file__).parent
PYTHON = ROOT / ".venv-protocol-clients" / "bin" / "python"


@pytest.mark.parametrize("client", ["min-tfs-client", "kserve-rest", "kserve-grpc"])
def test_a_published_client_runs_as_it_is(site: Site, tmp_path: Path, client: str) -> None:
    if not PYTHON.exists():
        assert "CI" not in os.environ, "make clients"
        pytest.skip("needs the clients: make clients")
    done = subprocess.run(
        [PYTHON, HERE / "programs.py", client, site.process.url, site.address],
        cwd=tmp_path, env=clean_environment(), timeout=300, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"after {done.stdout}: {done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == "done"
