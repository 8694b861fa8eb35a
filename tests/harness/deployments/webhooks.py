"""A deployment that sends webhooks: an API, a worker, a background worker and receivers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from headrace.webhooks.signing import new_secret
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.webhook_receiver import Receiver, webhook_receiver
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

#: Who stands still for so long has not answered: a machine may be that slow for some seconds.
TIMEOUT_S = 8.0


@dataclass
class HookSite:
    """One of them.

    Attributes:
        secrets: the server's.
    """

    server: RedisServer
    api: ApiServer
    models: Path
    folder: Path
    secrets: tuple[str, ...]
    receiver: Receiver
    stack: ExitStack

    def background_worker(self, owner: str, **environ: str) -> Worker:
        """One more; it is killed with the site, unless the test does it."""
        settings = {
            "SECRETS": ",".join(self.secrets),
            "ALLOW_NETWORKS": "127.0.0.0/8",
            "ALLOW_HTTP": "true",
            "TIMEOUT_S": str(TIMEOUT_S),
        }
        environ |= {f"HEADRACE_WEBHOOK_{name}": value for name, value in settings.items()}
        worker: Worker = self.stack.enter_context(
            celery_worker(
                self.server.url, self.models, self.folder, node=f"{owner}@test",
                app="workers.background.app", environ={**environ, "HEADRACE_INCARNATION": owner},
                arguments=(),
            )
        )  # fmt: skip
        return worker

    def submit(self, path: str, value: Any = 1, **options: Any) -> str:
        """A job for the model tricky that tells the receiver's path of its end; its id."""
        asked = {
            "model": "tricky", "input": value,
            "options": {"webhook": self.receiver.url(path), **options},
        }  # fmt: skip
        answer = self.api.http.post("/api/v1/jobs", json=asked)
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["id"])

    def deliveries(self, job_id: str) -> list[Any]:
        answer = self.api.http.get(f"/api/v1/jobs/{job_id}/webhooks")
        if answer.status_code == 404:
            raise LookupError(answer.text)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["deliveries"])

    def delivery(self, job_id: str, state: str, tries: int = 1) -> Any:
        """The only delivery of a job, once it is so."""

        def found() -> Any:
            (one,) = self.deliveries(job_id)
            return one if one["state"] == state and one["tries"] >= tries else None

        return wait_until(found, f"the webhook of {job_id} is {state}", 60)

    def hasten(self, delivery: Any, job_id: str) -> None:
        """Let what waits for another try be due now."""
        with self.server.client() as client:
            client.zadd(
                keys.DUE_DELIVERIES, {f"{job_id} {delivery['id']}": time.time() * 1e6}, xx=True
            )

    def quiet(self, *, drop: bool = False) -> None:
        """Nothing is under way or waits any more; what waits for another try may be dropped."""
        with self.server.client() as client:

            def settled() -> bool:
                if drop:
                    client.delete(keys.DUE_DELIVERIES)
                held = any(client.scan_iter("hr:background:held:*"))
                return not held and not client.exists(keys.BACKGROUND_TASKS, keys.DUE_DELIVERIES)

            wait_until(settled, "all background tasks are done", 60)


@contextmanager
def webhook_site(folder: Path, *redis_arguments: str, **settings: Any) -> Iterator[HookSite]:
    """A running one, without a background worker."""
    models = write_models(
        folder,
        tricky={"handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", "max_retries": 0},
    )
    secrets = (new_secret(), new_secret())
    with ExitStack() as stack:
        server = stack.enter_context(redis_server("valkey9", *redis_arguments))
        receiver = stack.enter_context(webhook_receiver())
        worker = stack.enter_context(celery_worker(server.url, models, folder))
        api = stack.enter_context(
            api_server(
                server.url, load_catalog(models, timeout_s=60), webhook_secrets=secrets,
                webhook_allow_networks=("127.0.0.0/8",), webhook_allow_http=True, **settings,
            )
        )  # fmt: skip
        worker.wait_ready("tricky")
        yield HookSite(server, api, models, folder, secrets, receiver, stack)
