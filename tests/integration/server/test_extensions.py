"""The core without extensions, and with one of another distribution."""

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

MINE = """
from headrace.config.extensions import Extension


class Greetings:
    said = 0

    def close(self):
        print("mine: closed", flush=True)


async def greet(services, request):
    from api.http.messages import json_reply

    own = services.of(Greetings)
    own.said += 1
    return json_reply({"said": own.said})


def part():
    from api.auth.authenticator import Open
    from api.extension import ApiPart
    from api.routes.table import Operation

    return ApiPart(
        routes=[Operation("GET", "/greetings", greet, Open.DOCS)],
        service=lambda services: Greetings(),
        hint=lambda method, path: "Use /greetings." if path == "/hello" else None,
    )


EXTENSION = Extension(name="mine", summary="Greets.", api=part)
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


def test_an_extension_of_another_distribution(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.extensions]\nmine = mine:EXTENSION\n")
    (site / "mine.py").write_text(MINE)
    with running_up(tmp_path, PYTHONPATH=os.pathsep.join((str(site), str(ROOT)))) as up:
        for said in (1, 2):
            assert up.request("GET", "/greetings") == (200, {"said": said})
        status, problem = up.request("GET", "/hello")
        assert (status, problem["remedy"]) == (404, "Use /greetings.")
        assert up.request("GET", "/v1/models")[0] == 200
        up.stop()
        assert "mine: closed" in up.text()
