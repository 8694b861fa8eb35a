"""A deployment with pipelines: Redis, an API, a worker and background workers, each a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.config.model.catalog import load_catalog
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker

STAGED = HANDLERS / "staged.py"


@dataclass
class PipelineSite:
    """The parts, by name."""

    server: RedisServer
    folder: Path
    models: Path
    api: ApiServer
    worker: Worker
    stack: ExitStack

    @property
    def gate(self) -> Path:
        """While this file is there, no model's run ends."""
        return self.folder / "gate"

    def runs(self, model: str) -> list[str]:
        """What the runs of a model have noted."""
        log = self.folder / "runs.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == model]

    def background_worker(
        self, name: str = "background", app: str = "workers.background.app", **environ: str
    ) -> Worker:
        """One more background worker."""
        options = {"app": app, "node": f"{name}@test", "arguments": ()}
        environ = {"HEADRACE_INCARNATION": name, "HEADRACE_LEASE_TTL_S": "5", **environ}
        made: Worker = self.stack.enter_context(
            celery_worker(self.server.url, self.models, self.folder, environ=environ, **options)
        )
        return made

    def submit(self, pipeline: str, value: object, **query: Any) -> str:
        """The id of a new job."""
        path = f"/api/v1/models/{pipeline}/jobs"
        answer = self.api.http.post(path, json=value, params=query)
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job object."""
        return self.api.job(job_id)

    def ended(self, job_id: str, timeout_s: float = 120) -> dict[str, Any]:
        """The job object, once it has ended."""
        return self.api.ended(job_id, timeout_s)

    def stages(self, job_id: str) -> dict[str, Any]:
        """How far its stages have come, by name."""
        return {stage["name"]: stage for stage in self.job(job_id).get("stages", [])}

    def result(self, job_id: str) -> Any:
        """The result, once it has succeeded."""
        job = self.ended(job_id)
        assert job["status"] == "succeeded", job
        answer = self.api.http.get(f"/api/v1/jobs/{job_id}/result")
        assert answer.status_code == 200, answer.text
        kind = answer.headers["content-type"]
        return answer.json() if kind == "application/json" else (kind, answer.content)

    def no_payloads(self, *, results: int = 0) -> None:
        """No payload is left but those of so many results; nor is a record of a stage's job."""

        def left() -> list[Any]:
            with self.server.client() as client:
                entries: Any = client.zrange("hr:payloads", 0, -1)
                return [*client.scan_iter("hr:payload:*"), *entries]

        def swept() -> bool:
            if len(left()) != 2 * results:
                raise ValueError(left())
            return True

        wait_until(swept, "the payloads are gone", 60)


def write_site(folder: Path, pipelines: Mapping[str, Any], **models: Any) -> Path:
    """A models file with `cut` and `weigh` of tests.harness.handlers.staged, and these."""
    options = {"log": str(folder / "runs.log"), "gate": str(folder / "gate")}
    ours = {
        "cut": {"handler": f"{STAGED}:Cut", "options": options},
        "weigh": {"handler": f"{STAGED}:Weigh", "options": options},
    }
    for name, values in models.items():
        ours[name] = {**ours.get(name, ours["weigh"]), **values}
        ours[name]["options"] = {**options, **values.get("options", {})}
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump({"models": ours, "pipelines": dict(pipelines)}, sort_keys=False))
    return path


@contextmanager
def pipeline_site(
    server: RedisServer,
    folder: Path,
    pipelines: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    **models: Any,
) -> Iterator[PipelineSite]:
    """All but the background worker, which a test starts, and may kill."""
    path = write_site(folder, pipelines, **models)
    environ = {"HEADRACE_LEASE_TTL_S": "5", **(environ or {})}
    with ExitStack() as stack:
        worker = stack.enter_context(celery_worker(server.url, path, folder, environ=environ))
        api = stack.enter_context(api_server(server.url, load_catalog(path)))
        worker.wait_ready("cut", "weigh", *models)
        yield PipelineSite(server, folder, path, api, worker, stack)


def shown(value: Any) -> str:
    """For messages of failed tests."""
    return json.dumps(value, indent=1)[:2000]
