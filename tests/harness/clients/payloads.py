"""What the account of payloads holds, and the time that passes for it in a test."""

from __future__ import annotations

import time
from typing import Any

import redis

from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.jobs.message import InputSource
from headrace.jobs.options import JobOptions
from headrace.payloads.stores import PayloadStores
from headrace.queue.submission import Extras, SubmitKind, submission
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.fakes.worker import FakeWorker
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client


def noted(client: redis.Redis) -> list[str]:
    """The entries of the account."""
    found: Any = client.zrange(keys.PAYLOADS, 0, -1)
    return [text.decode() for text in found]


def make_due(client: redis.Redis) -> None:
    """As though the time of every payload to be looked at had come."""
    for text in noted(client):
        client.zadd(keys.PAYLOADS, {text: 0}, xx=True)


def make_ended_due(client: redis.Redis) -> None:
    """As a worker does for each of its jobs that has ended: its payloads are due at once.

    The payload of a job that is just being submitted is not due, as it has no record yet.
    """
    for text in noted(client):
        state: Any = client.hget(keys.job(text.split(" ")[1]), JobField.STATE)
        if state and State(state.decode()).final:
            client.zadd(keys.PAYLOADS, {text: 0}, xx=True)


def payload_keys(client: redis.Redis) -> list[str]:
    """The payloads that lie in Redis."""
    return [key.decode() for key in client.scan_iter(f"{keys.payload}*")]


def submit_stored(
    ours: Client,
    stores: PayloadStores,
    model: str,
    body: bytes,
    kind: str = "application/octet-stream",
    **options: Any,
) -> str:
    """Submit a job whose input lies in the store, as the API does; its id."""
    job_id = new_id()
    entry = stores.new_entry(job_id, model, "i")
    stores.put(entry, body)
    submit_source(
        ours, model, InputSource(ref=entry.ref, type=kind, size=len(body)), job_id, **options
    )
    return job_id


def submit_source(
    ours: Client, model: str, source: InputSource, job_id: str = "", **options: Any
) -> str:
    """Submit a job whose input lies elsewhere; its id."""
    kind = SubmitKind(ours.catalog.get(model), 600, JobOptions(**options))
    extras = Extras(source=source)
    job = submission(kind, job_id or new_id(), b"null", now_s=time.time(), extras=extras)
    ours.send(job)
    return job.id


def sweep_all(api: ApiServer, server: RedisServer, *, cancel: bool = False) -> None:
    """Claim away what is left of cancelled jobs, and sweep, as a worker would."""
    stores = api.services.input_store._stores
    with server.client() as client:
        if cancel:
            ids = [key.decode().removeprefix("hr:job:") for key in client.scan_iter("hr:job:*")]
            for job_id in ids:
                api.http.delete(f"/api/v1/jobs/{job_id}")
        make_due(client)
        while stores.sweep():
            pass
        with FakeWorker(server.url, "echo"):
            wait_until(lambda: not client.llen("headrace.echo"), "what was cancelled is dropped")
