"""What one API key sends delays no other key's webhooks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.redis import keys
from tests.harness.clients.access import http_as, make_key
from tests.harness.deployments.webhooks import webhook_site
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"
#: More than the attempts of one key at once, and than the tasks of one list.
MANY = 200


@contextmanager
def hanging(count: int) -> Iterator[list[str]]:
    """The addresses of receivers that take a connection and never answer."""
    with ExitStack() as stack:
        urls = []
        for _ in range(count):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=8))
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        yield urls


def test_many_receivers_that_hang_delay_no_other_key(tmp_path: Path) -> None:
    with (
        webhook_site(tmp_path, auth="on") as site,
        hanging(MANY) as urls,
        http_as(site.api, make_key(site.server)[1]) as alice,
        http_as(site.api, make_key(site.server)[1]) as bob,
        site.server.client() as client,
    ):
        rows = [
            {"model": "tricky", "input": 1, "id": f"slow-{n}", "options": {"webhook": url}}
            for n, url in enumerate(urls)
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        assert alice.post(f"{JOBS}/bulk", content=text).status_code == 200

        def waiting() -> int:
            found: int = client.llen(keys.BACKGROUND_TASKS) + client.zcard(keys.WAITING_TASKS)
            return found

        wait_until(lambda: waiting() == MANY, "all have ended", 60)
        site.background_worker("first")
        wait_until(lambda: waiting() < MANY - 16, "hers are being sent", 60)
        body = {"model": "tricky", "input": 1, "options": {"webhook": site.receiver.url("/200")}}
        for _ in range(3):
            job_id = bob.post(JOBS, json=body).json()["id"]
            site.receiver.wait_for(job_id)
        tried = 0
        for n in range(MANY):
            deliveries = alice.get(f"{JOBS}/slow-{n}/webhooks").json()["deliveries"]
            tried += sum(one["tries"] for one in deliveries)
        assert tried < MANY / 2, "his did not wait for hers"
        client.flushall()
