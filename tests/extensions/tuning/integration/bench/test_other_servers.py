"""`headrace bench --protocol`: TorchServe's URLs on our own server, and a fake of Triton's."""

from __future__ import annotations

import json
from pathlib import Path

from tests.extensions.torchserve.harness.site import torchserve_site
from tests.harness.clients.commands import CommandsWithin
from tests.harness.servers.model_server import model_server
from tests.harness.servers.redis_servers import RedisServer

LOAD = ("--scenario", "closed:2", "--requests", "20", "--json", "out.json")


def test_torchserves_urls_are_measured(redis_db: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"x": 1}')
    with torchserve_site(redis_db.url, tmp_path) as site:
        cli = CommandsWithin(site.api.url, tmp_path)
        ended = cli.run("bench", "echo", "-i", "in.json", "--protocol", "torchserve", *LOAD)
        assert ended.returncode in (0, 1), ended.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["protocol"] == "torchserve"
    (load,) = found["loads"]
    assert load["succeeded"] == load["requests"] > 0
    assert load["stages"] == {}


def test_tritons_requests_are_sent(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(b"\x00\x01")
    with model_server(0.002) as server:
        cli = CommandsWithin(server.url, tmp_path)
        ended = cli.run("bench", "m", "-i", "in.bin", "--protocol", "triton", *LOAD)
        assert ended.returncode in (0, 1), ended.stderr
    sent = [one for one in server.requests if one.startswith(b"POST /v2/models/m/infer ")]
    assert len(sent) >= 20
    assert b'"name":"TEXT"' in sent[0]
    assert sent[0].endswith(b"\x02\x00\x00\x00\x00\x01")
    (load,) = json.loads((tmp_path / "out.json").read_text())["loads"]
    assert load["succeeded"] == load["requests"] > 0
