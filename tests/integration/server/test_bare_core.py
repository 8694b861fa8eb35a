"""The core without extensions, as a distribution without their entry points has it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness.servers.up import ROOT, headrace, running_up

#: Python imports this module when it starts, in each process.
NO_EXTENSIONS = """
import importlib.metadata

all_of = importlib.metadata.entry_points


def entry_points(**selected):
    return [] if selected.get("group") == "headrace.extensions" else all_of(**selected)


importlib.metadata.entry_points = entry_points
"""


def test_a_core_without_extensions_serves(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_EXTENSIONS)
    path = os.pathsep.join((str(tmp_path / "site"), str(ROOT)))
    with running_up(tmp_path, runner=True, background=True, PYTHONPATH=path) as up:
        assert up.result_of(up.submit("echo", {"x": 1})) == {"x": 1}
        assert "runner" not in up.record()["pids"]
        status, body = up.request("GET", "/v1/models")
        assert (status, body["type"]) == (404, "/problems/not-found")
        status, body = up.request("GET", "/openapi.json")
        assert not [path for path in body["paths"] if path.startswith("/v1/")]
    assert headrace("runner", cwd=tmp_path, PYTHONPATH=path).returncode == 2
