"""The pages for clients of other servers: their models, clients and commands as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.model.catalog import load_catalog
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("page", "of_client", "of_command"),
    [
        ("triton.md", f"[[ 1 {' '.join(map(str, range(2, 17)))}]]",
         '"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3'),
        ("kserve.md", "True [2.5, 4.5] [2.5, 4.5]", '"inputs":[{"name":"x","datatype":"FP32"'),
        ("tensorflow-serving.md", "AVAILABLE [2.5, 3.0, 4.5]", '{"outputs":[2.5,3.0,4.5]}'),
    ],
)  # fmt: skip
def test_the_ten_minutes_of_the_page(
    page: str, of_client: str, of_command: str, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    for name, content in re.findall(
        r"^```\w+\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        (tmp_path / name).write_text(content)
    (command,) = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    models = tmp_path / "models.yaml"
    catalog = load_catalog(models)
    with (
        redis_server() as redis,
        api_server(redis.url, catalog, models_file=models) as api,
        celery_worker(redis.url, models, tmp_path) as worker,
    ):
        worker.wait_ready(*catalog.models)
        address = api.url.removeprefix("http://")
        client = tmp_path / "client.py"
        client.write_text(client.read_text().replace("localhost:8080", address))
        command = command.replace("localhost:8080", address)
        answers = [
            subprocess.run(one, check=True, capture_output=True, text=True, timeout=300).stdout
            for one in ([sys.executable, str(client)], ["bash", "-c", command])
        ]
    assert " ".join(answers[0].split()) == of_client
    assert of_command in answers[1]
