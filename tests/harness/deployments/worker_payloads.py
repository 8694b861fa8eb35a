"""A worker over one payload store, and what its jobs leave there, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.config.settings import Settings
from headrace.jobs.job import Job
from headrace.payloads.stores import PayloadStores, build_stores
from headrace.redis import keys
from tests.harness.clients.payloads import make_due, noted, payload_keys
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.servers.s3 import S3Server, s3_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

INLINE_LIMIT_BYTES = 1000


@dataclass
class Site:
    """A worker over one store, and what its jobs leave there."""

    kind: str
    url: str
    folder: Path
    models: Path
    environ: dict[str, str]
    worker: Worker
    ours: Client
    stores: PayloadStores
    s3: S3Server | None
    bucket: str
    input_bucket: str

    def lying(self) -> list[str]:
        if self.kind == "file":
            return [path.name for path in (self.folder / "p").rglob("*") if path.is_file()]
        if self.s3 is not None:
            return [key.removeprefix("headrace/") for key in self.s3.keys(self.bucket)]
        return [key.removeprefix(keys.payload) for key in payload_keys(self.ours.redis)]

    def ends(self, job_id: str) -> Job:
        (job,) = self.ours.wait(job_id)
        return job

    def result(self, job: Job) -> bytes:
        assert job.stored is not None, job
        body = self.stores.of(job.stored.ref).get(job.stored.ref)
        assert len(body) == job.stored.size
        return body

    def forget(self, *job_ids: str) -> None:
        """As though the result_ttl of these jobs had passed; then nothing is left of them."""
        self.ours.redis.delete(*(keys.job(job_id) for job_id in job_ids))
        make_due(self.ours.redis)
        wait_until(lambda: not self.lying() and not noted(self.ours.redis), "all is swept")


@contextmanager
def site_over(kind: str, folder: Path) -> Iterator[Site]:
    models = write_models(
        folder,
        echo={"handler": "echo", "max_batch_size": 8, "retry_backoff_max_s": 1},
        one={"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 1},
    )
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        environ = {
            "HEADRACE_INLINE_LIMIT_BYTES": str(INLINE_LIMIT_BYTES),
            "HEADRACE_PAYLOAD_STORE": kind,
            "HEADRACE_INPUT_ROOTS": f"{folder / 'inputs'}",
        }
        s3, bucket, input_bucket = None, "", ""
        if kind == "file":
            environ["HEADRACE_PAYLOAD_DIR"] = str(folder / "p")
        if kind == "s3":
            s3 = stack.enter_context(s3_server())
            bucket, input_bucket = s3.bucket("payloads"), s3.bucket("inputs")
            environ["HEADRACE_PAYLOAD_BUCKET"] = bucket
            environ["HEADRACE_PAYLOAD_ENDPOINT_URL"] = s3.url
            environ["HEADRACE_INPUT_BUCKETS"] = input_bucket
        (folder / "inputs").mkdir()
        worker = stack.enter_context(celery_worker(redis.url, models, folder, environ=environ))
        ours = stack.enter_context(Client(redis.url, models))
        settings = Settings(
            payload_store=kind,  # type: ignore[arg-type] # one of the three
            payload_dir=folder / "p" if kind == "file" else None,
            payload_bucket=bucket or None,
            payload_endpoint_url=s3.url if s3 else None,
        )
        stores = build_stores(settings, redis.url)
        stack.callback(stores.close)
        worker.wait_ready("echo", "one")
        yield Site(
            kind, redis.url, folder, models, environ, worker, ours, stores, s3, bucket, input_bucket
        )
        nothing_leaks(ours.redis)
