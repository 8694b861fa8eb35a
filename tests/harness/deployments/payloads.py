"""An API and a worker with payload stores, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.servers.s3 import S3Server, s3_server
from tests.harness.workers.worker import Client, celery_worker, write_models

LIMIT = 1000
BODY = bytes(range(256)) * 3000
JSON_BODY = json.dumps({"text": "é" * 3000, "n": [1.50, 2]}, ensure_ascii=False).encode()


@dataclass
class Site:
    """An API and a worker over one Redis, and both kinds of the operator's own storage."""

    api: ApiServer
    ours: Client
    roots: Path
    s3: S3Server
    bucket: str

    def post(self, body: bytes, kind: str = "", **options: Any) -> httpx2.Response:
        headers = {"content-type": kind} if kind else {}
        return self.api.http.post(
            "/api/v1/models/echo/jobs", content=body, headers=headers, params=options
        )

    def named(self, reference: str, **members: Any) -> httpx2.Response:
        body = {"model": "echo", "input_ref": reference, **members}
        return self.api.http.post("/api/v1/jobs", json=body, params={"wait": 30})

    def raw(self, job: dict[str, Any], **headers: str) -> httpx2.Response:
        return self.api.http.get(job["urls"]["result"], headers=headers)


@contextmanager
def payload_site(folder: Path) -> Iterator[Site]:
    roots = folder / "roots"
    roots.mkdir()
    models = write_models(folder, echo={"handler": "echo"})
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        s3 = stack.enter_context(s3_server())
        bucket = s3.bucket("inputs")
        settings = {
            "inline_limit_bytes": LIMIT,
            "input_roots": (roots,),
            "input_buckets": (bucket,),
            "payload_endpoint_url": s3.url,
            "body_limit_bytes": 4 * 1024 * 1024,
        }
        environ = {
            f"HEADRACE_{name.upper()}": ",".join(map(str, value))
            if isinstance(value, tuple)
            else str(value)
            for name, value in settings.items()
        }
        worker = stack.enter_context(celery_worker(redis.url, models, folder, environ=environ))
        api = stack.enter_context(api_server(redis.url, catalog(echo={}), **settings))
        ours = stack.enter_context(Client(redis.url, models))
        worker.wait_ready("echo")
        yield Site(api, ours, roots, s3, bucket)
        nothing_leaks(ours.redis)


def ended(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    assert job["status"] == "succeeded", job
    return job
