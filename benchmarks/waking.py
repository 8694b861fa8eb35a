"""How long after a job's end its waiter has the answer: `python -m benchmarks.waking`.

Two API processes over one Redis. A job is claimed, its waiters stand, then it is settled; what is
measured is from before that call of `settle.lua` until the whole answer is read.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import redis

from headrace import keys
from tests.harness.api_processes import ApiProcesses, api_processes
from tests.harness.fake_worker import Answer, claim, settle
from tests.harness.redis_servers import redis_server
from tests.harness.wait import wait_until

ROUNDS = 300
WARM_UP = 30


class Caller:
    """One keep-alive connection in a thread of its own."""

    def __init__(self, api: ApiProcesses, pool: ThreadPoolExecutor) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=90)
        self._pool = pool

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str) -> Future[float]:
        """Send a request; when its answer was read."""
        return self._pool.submit(self._ask, method, path)

    def _ask(self, method: str, path: str) -> float:
        self._connection.request(method, path, b"1" if method == "POST" else None)
        answer = self._connection.getresponse()
        answer.read()
        read_at = time.perf_counter()
        assert answer.status == 200, answer.status
        return read_at


@contextmanager
def callers() -> Iterator[tuple[redis.Redis, Caller, Caller]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(redis_server())
        apis = [
            stack.enter_context(api_processes(folder / name, server.url)) for name in ("a", "b")
        ]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        client = stack.enter_context(server.client())
        own, foreign = (stack.enter_context(closing(Caller(api, pool))) for api in apis)
        yield client, own, foreign


def measure(client: redis.Redis, own: Caller, foreign: Caller) -> tuple[float, float]:
    """One job: after how many seconds its submitter and who waits elsewhere have the answer."""
    submitted = own.ask("POST", "/api/v1/models/echo/jobs?wait=60")
    claimed = wait_until(lambda: claim(client, "echo"), "the job")
    job_id = claimed[0][0].id
    waited = foreign.ask("GET", f"/api/v1/jobs/{job_id}?wait=60")

    def subscribed() -> bool:
        found: Any = client.pubsub_numsub(keys.meta(job_id))
        return int(found[0][1]) == 1

    wait_until(subscribed, "the subscription stands")
    before = time.perf_counter()
    settle(client, "echo", claimed, [Answer(result=b"1")])
    return submitted.result() - before, waited.result() - before


def main() -> None:
    with callers() as (client, own, foreign):
        for _ in range(WARM_UP):
            measure(client, own, foreign)
        found = [measure(client, own, foreign) for _ in range(ROUNDS)]
    print(f"ms from settle to the answer read, {ROUNDS} jobs")
    for name, seconds in (
        ("submit and wait", [submitted_s for submitted_s, _ in found]),
        ("GET ?wait elsewhere", [waited_s for _, waited_s in found]),
    ):
        cut = quantiles(seconds, n=100)
        print(f"{name:20} p50 {cut[49] * 1000:5.2f}  p90 {cut[89] * 1000:5.2f}  "
              f"p99 {cut[98] * 1000:5.2f}  max {max(seconds) * 1000:5.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
