"""Between Redis and everybody else is a network that delays, cuts and half-closes connections."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import Client
from headrace.redis import keys
from tests.chaos.plan import models
from tests.chaos.system import Ends
from tests.harness.clients.payloads import make_due
from tests.harness.fakes.bad_network import BadNetwork, bad_network
from tests.harness.servers.api_process import api_process
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

JOBS = 1500
MODEL = "fast"
RETRY_S = 300.0
#: So many connections have met a bad end at least.
BAD_ENDS_MIN = 3


@dataclass
class Site:
    """A system, each part of which reaches Redis over a bad network of its own."""

    server: RedisServer
    url: str
    networks: list[BadNetwork]


@contextmanager
def site(folder: Path, seed: int) -> Iterator[Site]:
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    chosen = {MODEL: {**models(folder, 60)[MODEL], "max_batch_size": 8}}
    path = write_models(folder, **chosen)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server("valkey9", *durable))
        networks = [stack.enter_context(bad_network(server.port, seed + part)) for part in range(3)]
        first, second, third = (f"redis://127.0.0.1:{one.port}/0" for one in networks)
        for number, url in enumerate((first, second)):
            environ = {"HEADRACE_LEASE_TTL_S": "10"}
            stack.enter_context(
                celery_worker(url, path, folder, node=f"cpu{number}@test", environ=environ)
            )
        api = stack.enter_context(api_process(third, path, inline_limit_bytes="2048"))
        yield Site(server, api.url, networks)


def test_a_bad_network_loses_no_job_and_ends_none_twice(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")  # noqa: T201 - pytest shows it with the failure
    kinds = random.Random(seed).choices(["plain", "large", "grow"], [8, 1, 1], k=JOBS)
    inputs = [
        {"n": n, "do": kind, **({"pad": "x" * 4096} if kind == "large" else {})}
        for n, kind in enumerate(kinds)
    ]
    with (
        site(tmp_path, seed) as at,
        Ends(at.server) as ends,
        Client(at.url, retry_s=RETRY_S) as client,
    ):
        client.ready()
        for network in at.networks:
            network.worsen()
        seen = 0
        results: Any = client.map(
            MODEL, inputs, ids=lambda given: f"net-{given['n']}", in_flight=200, ordered=False
        )
        for result in results:
            seen += 1
            given = inputs[result.index]
            assert result.value["n"] == given["n"]
            assert result.value["length"] == len(given.get("pad", ""))
            if seen == JOBS * 3 // 4:
                for network in at.networks:
                    network.calm()
        assert seen == JOBS
        met = [dict(network.met) for network in at.networks]
        print(met)  # noqa: T201 - pytest shows it with the failure
        assert sum(network.met.total() for network in at.networks) >= BAD_ENDS_MIN
        check(at, ends)


def check(at: Site, ends: Ends) -> None:
    """Each job has ended once, and Redis holds nothing that is not done."""
    raw: Any = at.server.client()
    with raw as client:
        queue = keys.queue_name(MODEL)
        wait_until(lambda: client.zcard(keys.lease(queue)) == 0, "nothing is leased")
        assert client.hlen(keys.held(queue)) == 0
        assert client.hget(keys.stats(MODEL), "ended:succeeded") == b"%d" % JOBS
        # A payload whose writer heard no answer is swept later.
        make_due(client)
        nothing_leaks(client)
    twice = {job_id: times for job_id, times in ends.seen.items() if len(times) > 1}
    assert not twice
