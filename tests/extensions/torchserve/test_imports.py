"""A process that has nothing to do with TorchServe imports one module of its extension."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from headrace.server.ports import free_port
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import answers, environ
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

ALONE: Final = {"extensions.torchserve", "extensions.torchserve.extension"}
#: What the handlers return: the modules of their process that are about extensions.
NAMES: Final = (
    "sorted(name for name in sys.modules if 'torchserve' in name or name in ('ts', 'extensions'))"
)
OURS: Final = f"""
import sys
import headrace

class Names(headrace.Handler):
    def inference(self, items):
        return [{NAMES}] * len(items)
"""
THEIRS: Final = f"""
import sys

def handle(data, context):
    return None if data is None else [{NAMES}] * len(data)
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def imported_by_api(redis_url: str, folder: Path, **settings: str) -> set[str]:
    """The modules with TorchServe in their name that a real API imports until it serves."""
    port = free_port()
    variables = environ(
        write_models(folder, m={"handler": "echo"}), redis_url=redis_url, port=str(port), **settings
    )
    log = folder / "imports.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "api"],
            cwd=ROOT, env=variables, stderr=stderr,
        )  # fmt: skip
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=5, verify=PLAIN) as http:
            wait_until(lambda: answers(http, "/live"), "the API is alive", 60)
    finally:
        process.kill()
        process.wait(60)
    names = re.findall(r"^import time:.*\| +(\S+)$", log.read_text(), re.MULTILINE)
    assert "api.app" in names
    return {name for name in names if "torchserve" in name}


def test_an_api_imports_the_surface_only_if_the_settings_name_a_configuration(
    redis: RedisServer, tmp_path: Path
) -> None:
    assert imported_by_api(redis.url, tmp_path) <= ALONE
    config = tmp_path / "config.properties"
    write_config(config, TorchServeConfig(disable_token_authorization=True))
    names = imported_by_api(redis.url, tmp_path, torchserve=str(config))
    assert {name for name in names if name.endswith(".predict")}


def test_a_model_process_imports_the_handlers_only_for_a_reference_to_one(
    redis: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    write_archive(tmp_path / "theirs", "handler.py", {"handler.py": THEIRS})
    models = write_models(
        tmp_path, ours={"handler": "ours.py:Names"}, theirs={"source": str(tmp_path / "theirs")}
    )
    state = {"HEADRACE_STATE_DIR": str(tmp_path / "state")}
    catalog = load_models(Settings(models_file=models, state_dir=tmp_path / "state"))
    with (
        api_server(redis.url, catalog, models_file=models, state_dir=tmp_path / "state") as api,
        celery_worker(redis.url, models, tmp_path, environ=state),
    ):
        found = {}
        for model in ("ours", "theirs"):
            job = api.http.post(f"/api/v1/models/{model}/jobs", json={"input": {}}).json()
            found[model] = api.ended(job["id"])["result"]
    assert found["ours"] == []
    assert "ts" in found["theirs"]
