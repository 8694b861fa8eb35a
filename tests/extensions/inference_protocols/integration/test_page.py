"""docs/triton.md: its model, its client and its command, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from headrace.config.model.catalog import load_catalog
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "triton.md").read_text("utf-8")


def test_the_ten_minutes_of_the_page(tmp_path: Path) -> None:
    for name, text in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    models = tmp_path / "models.yaml"
    with (
        redis_server() as redis,
        api_server(redis.url, load_catalog(models), models_file=models) as api,
        celery_worker(redis.url, models, tmp_path) as worker,
    ):
        worker.wait_ready("simple")
        address = api.url.removeprefix("http://")
        client = tmp_path / "client.py"
        client.write_text(client.read_text().replace("localhost:8080", address))
        command = command.replace("localhost:8080", address)
        answers = [
            subprocess.run(one, check=True, capture_output=True, text=True, timeout=300).stdout
            for one in ([sys.executable, str(client)], ["bash", "-c", command])
        ]
    assert answers[0].split() == ["[[", "1", *map(str, range(2, 16)), "16]]"]
    assert '"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3' in answers[1]
