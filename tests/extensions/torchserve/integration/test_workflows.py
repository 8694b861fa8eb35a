"""A workflow archive of TorchServe, from the archive to the answer."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.cli.develop.archive import pipeline
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from tests.harness.archives import write_zip
from tests.harness.deployments.pipelines import PipelineSite
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker

STEPS = """
import json

def clean(data, context):
    return data and [row["body"].strip() for row in data]

def join(data, context):
    if data is None:
        return None
    assert all(isinstance(part, bytearray) for row in data for part in row.values())
    return [{"words": json.loads(row["words"])["n"], "loud": row["loud"].decode()} for row in data]
"""
WORDS = """
def handle(data, context):
    return data and [{"n": len(row["body"].decode().split())} for row in data]
"""
LOUD = """
def handle(data, context):
    return data and [row["body"].decode().upper() for row in data]
"""
SPEC = """
models:
    batch-size: 2
    words: {url: words.mar}
    loud: {url: loud.mar}
dag:
    clean: [words, loud]
    words: [join]
    loud: [join]
"""


def test_a_workflow_runs_as_a_pipeline_with_its_functions(tmp_path: Path) -> None:
    manifest = {"workflowName": "text", "specFile": "flow.yaml", "handler": "steps.py"}
    war = write_zip(
        tmp_path / "text.war",
        [
            ("WAR-INF/MANIFEST.json", json.dumps({"workflow": manifest}).encode()),
            ("flow.yaml", SPEC.encode()),
            ("steps.py", STEPS.encode()),
        ],
    )
    site = tmp_path / "site"
    pipeline(war, site, Settings(), force=False)
    for name, code in {"words": WORDS, "loud": LOUD}.items():
        model = {"modelName": name, "modelVersion": "1.0", "handler": "service.py"}
        about = json.dumps({"model": model}).encode()
        write_zip(
            site / f"{name}.mar",
            [("MAR-INF/MANIFEST.json", about), ("service.py", code.encode())],
        )
    models = site / "models.yaml"
    with redis_server() as server, ExitStack() as stack:
        state = tmp_path / "state"
        catalog = load_models(Settings(models_file=models, state_dir=state))
        config = tmp_path / "config.properties"
        write_config(config, TorchServeConfig(disable_token_authorization=True))
        api = stack.enter_context(
            api_server(server.url, catalog, torchserve=config, models_file=models, state_dir=state)
        )
        environ = {"HEADRACE_STATE_DIR": str(state), "HEADRACE_TORCHSERVE": str(config)}
        worker = stack.enter_context(celery_worker(server.url, models, site, environ=environ))
        running = PipelineSite(server, site, models, api, worker, stack)
        running.background_worker(**environ)
        ended = [running.submit("text", text) for text in ("  one two ", "three")]
        assert [running.result(job_id) for job_id in ended] == [
            {"words": 2, "loud": "ONE TWO"},
            {"words": 1, "loud": "THREE"},
        ]
        for kind in ("text/plain", "application/octet-stream", ""):
            headers = {"Content-Type": kind} if kind else {}
            answer = api.http.post("/wfpredict/text", content=b"a b c ", headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.json() == {"words": 3, "loud": "A B C"}
