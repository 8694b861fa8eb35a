"""A worker without Celery and without models: claims, answers and settles through the scripts.

As a program it serves one model until it is ended:
`python -m tests.harness.fakes.worker URL MODEL`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, Self

import msgspec
import redis
from redis.exceptions import RedisError

from headrace.config.settings import Settings
from headrace.jobs.job import State
from headrace.jobs.message import Message, decode_message
from headrace.observability.worker_report import FIGURES, Figures, GenerationState, ModelStats
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect
from headrace.redis.fields import JobField
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from headrace.redis.scripts.jobs import ClaimReply, Settlement
from tests.harness.wait import wait_until

BATCH = 32
#: How it keeps failures.
KEPT = Settings().failures_kept
LEASE_US = 15 * US_PER_S
#: It looks for jobs again after so long. The pause doubles while there are none: to look costs CPU.
IDLE_S = 0.001
LONGEST_IDLE_S = 0.02
#: Seconds that Redis has to answer: the machine may stand still for some of them.
ANSWER_S = 60.0


class Answer(NamedTuple):
    """What the fake worker makes of one job."""

    state: State = State.SUCCEEDED
    result: bytes = b"null"
    extra: str = ""
    value: str = ""
    ignore_result: bool = False


def echo(message: Message) -> Answer:
    return Answer(result=message.input)


def failure(code: str, text: str, *, retryable: bool = False) -> Answer:
    """A job that fails with an error of this code."""
    error = msgspec.json.encode({"type": code, "message": text, "retryable": retryable}).decode()
    result = msgspec.json.encode({"exc_type": code, "exc_message": [text], "exc_module": "tests"})
    state = State.EXPIRED if code == "expired" else State.FAILED
    return Answer(state, result, JobField.ERROR, error)


def claim(
    client: redis.Redis, model: str, count: int = BATCH, owner: str = "fake"
) -> list[tuple[Message, str]]:
    """Claim up to `count` jobs of a model, which begin at once; each with its token.

    `model@version` means the jobs that ask for this version.
    """
    queue = keys.queue_name(model)
    name, version = keys.model_of(queue)
    call = job_scripts.claim(
        queue, name, version or "1.0", (count,) * 4, lease_us=LEASE_US, owner=owner,
        result_ttl_s=86400, job_index_max=0, yield_us=0,
    )  # fmt: skip
    reply = ClaimReply(call_script(client, call))
    began = [value for row in reply.jobs for value in (row[1], row[2], reply.now_us)]
    if began:
        call_script(client, script("jobs/start").call([], *began))
    return [(decode_message(raw), token.decode()) for raw, _, token, *_ in reply.jobs]


def settle(
    client: redis.Redis, model: str, claimed: list[tuple[Message, str]], answers: list[Answer]
) -> None:
    """Settle claimed jobs with these answers."""
    settlements: list[Settlement] = []
    for (message, token), answer in zip(claimed, answers, strict=True):
        meta = b"" if answer.ignore_result else _meta(message.id, answer)
        extra: tuple[str, str | bytes] = (answer.extra, answer.value)
        if message.quiet and answer.state is State.SUCCEEDED and not answer.extra:
            meta, extra = b"", (JobField.RESULT, answer.result)
        timings = "1.5,0.25,0.1,2.0,0.1"
        settlements.append(
            Settlement(
                message.id,
                token,
                answer.state,
                meta,
                len(claimed),
                timings,
                *extra,
                "",
                *_began(client, message.id, answer.state),
            )
        )
    settle_call = job_scripts.settle(keys.queue_name(model), "1.0", settlements, KEPT)
    call_script(client, settle_call)


def _began(client: redis.Redis, job_id: str, state: State) -> tuple[str, str]:
    """Return when a job began, as `claim` noted it; nothing for a job that has not run."""
    if state in (State.EXPIRED, State.CANCELLED):
        return "", "0.0"
    found = client.hget(keys.job(job_id), JobField.STARTED)
    return found.decode() if isinstance(found, bytes) else "", "0.0"


def _meta(job_id: str, answer: Answer) -> bytes:
    status = b"SUCCESS" if answer.state is State.SUCCEEDED else b"FAILURE"
    return (
        b'{"status": "%s", "result": %s, "traceback": null, "children": [], '
        b'"date_done": "%s", "task_id": "%s"}'
        % (status, answer.result, datetime.now(UTC).isoformat().encode(), job_id.encode())
    )


def publish_state(
    client: redis.Redis,
    owner: str,
    model: str,
    state: str,
    *,
    ready: int = 1,
    error: str = "",
    figures: Figures | None = None,
    generation: GenerationState | None = None,
) -> None:
    """Say of one model what a live worker would."""
    said = {
        "state": state, "replicas": 1, "ready": ready, "device": "cpu", "error": error,
        "node": f"{owner}@test", "pids": [4711], "since": 0.0, "generation": generation,
    }  # fmt: skip
    own = {"node": f"{owner}@test", "pid": 4710}
    key = keys.worker(owner)
    encode = msgspec.json.encode
    measured = encode(figures or Figures())
    client.hset(key, mapping={"": encode(own), model: encode(said), FIGURES: measured})
    client.expire(key, keys.WORKER_TTL_S)
    client.zadd(keys.WORKERS, {owner: time.time()})


def publish_stats(client: redis.Redis, **stats: ModelStats) -> None:
    """Add to the counters of these models what a live worker would."""
    publish_added(client, {model: one.drain() for model, one in stats.items()})


def publish_added(client: redis.Redis, added: dict[str, list[tuple[str, str]]]) -> None:
    """As `publish_stats`, of what has been drained already, by model."""
    flat = [
        value for model, by in added.items() for one in by for value in (keys.stats(model), *one)
    ]
    call_script(client, script("workers/report").call([], "fake", 2, "", "{}", *flat))
    client.delete(keys.worker("fake"))
    client.zrem(keys.WORKERS, "fake")


class FakeWorker:
    """Serves version 1.0 of one model from a thread while its context lasts.

    Args:
        url: Redis.

    Attributes:
        served: the ids of the jobs that it has settled, a moment after their results are out.
    """

    def __init__(self, url: str, model: str, answer: Callable[[Message], Answer] = echo) -> None:
        self.served: list[str] = []
        # Nobody sweeps the leases of a claim whose reply came too late.
        self._client = connect(url, socket_timeout=ANSWER_S)
        self.model = model
        self._queues = (model, f"{model}@1.0")
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()

    def ran(self, count: int) -> list[str]:
        """The jobs that it has settled, once there are as many: their results are out before."""
        wait_until(lambda: len(self.served) >= count, f"{count} jobs are settled", 30)
        return self.served

    def serve(self) -> None:
        """Claim, answer and settle until the end; through outages of Redis too."""
        idle_s = IDLE_S
        while not self._stop.is_set():
            try:
                served = [self._serve(queue) for queue in self._queues]
                if any(served):
                    idle_s = IDLE_S
                    continue
            except (RedisError, OSError):
                pass
            self._stop.wait(idle_s)
            idle_s = min(2 * idle_s, LONGEST_IDLE_S)

    def _serve(self, model: str) -> bool:
        """Claim, answer and settle jobs once; return whether there were any."""
        claimed = claim(self._client, model)
        if claimed:
            answers = [self._answer(message) for message, _ in claimed]
            self._settle(model, claimed, answers)
            self.served += [message.id for message, _ in claimed]
        return bool(claimed)

    def _settle(
        self, model: str, claimed: list[tuple[Message, str]], answers: list[Answer]
    ) -> None:
        """Settle claimed jobs, again while Redis does not answer: a second time changes nothing."""
        while True:
            try:
                return settle(self._client, model, claimed, answers)
            except (RedisError, OSError):
                if self._stop.wait(IDLE_S):
                    raise


if __name__ == "__main__":
    worker = FakeWorker(sys.argv[1], sys.argv[2])
    worker.serve()
