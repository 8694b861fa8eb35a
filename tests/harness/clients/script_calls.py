"""The scripts as typed calls on one queue, and what a queue holds, for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import NoScriptError

from headrace.jobs.job import new_id
from headrace.jobs.message import InputSource
from headrace.jobs.message_writer import envelope
from headrace.queue.expiry import EXPIRE_ARGUMENTS
from headrace.redis import keys
from headrace.redis.scripts import CLAIM_HEAD, CLAIM_MAX_BYTES, CLAIM_ROW, Arg, script

LEASE_US = 60_000_000
MAX_CRASHES = 3
TTL_S = 3600
SUCCESS = '{"status": "SUCCESS", "result": 1, "traceback": null, "children": []}'


@dataclass(frozen=True)
class Leased:
    """One job of a claim's answer."""

    raw: bytes
    id: str
    token: str
    created: str
    attempts: int
    alone: bool
    retries: str
    step: int = 0
    since: str = ""


@dataclass(frozen=True)
class Claimed:
    """A claim's answer."""

    now_us: int
    lefts: tuple[int, ...]
    refused: int
    jobs: list[Leased]

    @property
    def left(self) -> int:
        return sum(self.lefts)

    @property
    def ids(self) -> list[str]:
        return [job.id for job in self.jobs]


@dataclass(frozen=True)
class Job:
    """A job to submit."""

    id: str = field(default_factory=new_id)
    input_json: bytes = b'{"x":1}'
    step: int = 0
    max_depth: int = 1_000_000
    delay_us: int = 0
    begin_us: int = 0
    request_hash: str = ""
    ttl_s: int = TTL_S
    waiter: str = ""
    raw: bytes = b""
    input_ref: str = ""
    source: str = ""
    key: str = ""
    key_limit: int = 0
    key_sees_all: bool = False
    webhook_ends: str = ""
    webhook_started: bool = False


def foreign(**changes: Any) -> bytes:
    """A message as another Celery client writes it; `headers` are merged, None removes a key."""
    headers = {"id": new_id(), "task": keys.TASK_NAME, "lang": "py", **changes.pop("headers", {})}
    message = {
        "body": base64.b64encode(b'[[], {"model": "m", "input": 1}, {}]').decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {name: value for name, value in headers.items() if value is not None},
        "properties": {"body_encoding": "base64"},
        **changes,
    }
    return json.dumps({key: value for key, value in message.items() if value is not None}).encode()


class Queue:
    """The scripts on the queue of one model.

    Attributes:
        index_max: how many of its jobs are indexed.
    """

    def __init__(self, client: redis.Redis, model: str = "m") -> None:
        self.index_max = 0
        self.client = client
        self.model = model
        self.name = keys.queue_name(model)
        self.keys = keys.queue_keys(self.name)

    def execute(self, *command: Arg) -> Any:
        execute: Any = self.client.execute_command
        return execute(*command)

    def call(self, name: str, names: Sequence[str], *arguments: Arg) -> Any:
        """Call a script as callers do: once more where the server did not know it."""
        command = script(name).call(names, *arguments)
        try:
            return self.execute(*command)
        except NoScriptError:
            self.execute(*script(name).load_command())
            return self.execute(*command)

    def _run(self, name: str, *arguments: Arg) -> Any:
        return self.call(name, self.keys, *arguments)

    def message(self, job: Job) -> bytes:
        source = InputSource(ref=job.source) if job.source else None
        return job.raw or envelope(
            job.id, self.model, self.name, job.input_json, timeout_s=60.0, source=source
        )

    def run(self, *jobs: Job) -> list[Arg]:
        """A run of jobs/submit.lua, of jobs that differ as neighbours of a run may."""
        job = jobs[0]
        fields: list[Arg] = ["m", self.model, "v", "1.0"]
        if job.ttl_s:
            fields += ["l", job.ttl_s]
        if job.waiter:
            fields += ["w", job.waiter]
        if job.webhook_ends:
            fields += ["wh", f"end of {job.id}", "we", job.webhook_ends]
        if job.webhook_started:
            fields += ["ws", f"start of {job.id}"]
        if job.input_ref:
            fields += ["ir", job.input_ref]
        owner = ""
        if job.key:
            fields += ["ky", job.key]
            owner = f"{job.key} {job.key_limit} {int(job.key_sees_all)}"
        own: list[list[Arg]] = [
            [one.id, self.message(one), *([one.request_hash] if one.request_hash else [])]
            for one in jobs
        ]
        times, listed = (job.delay_us, job.begin_us), int(job.waiter != keys.NOBODY)
        head: list[Arg] = [self.name, str(job.step), job.max_depth, *times, listed, owner]
        head.append(len(own[0]))
        return [*head, len(fields), *fields, len(own), *(value for one in own for value in one)]

    def submit(self, *jobs: Job) -> list[tuple[int, int, int]]:
        """Submit each as a run of its own."""
        return self.submit_runs(*([job] for job in jobs))

    def submit_runs(self, *runs: list[Job]) -> list[tuple[int, int, int]]:
        """Per job: code, created, and its ticket, or the depth that it was refused for."""
        flat = [argument for run in runs for argument in self.run(*run)]
        jobs = [job for run in runs for job in run]
        return self.read_submit(jobs, self.call("jobs/submit", [], self.index_max, *flat))

    def read_submit(self, jobs: Sequence[Job], answer: list[Any]) -> list[tuple[int, int, int]]:
        """An answer of jobs/submit.lua, per job; the tickets are those of the records."""
        now, *told = map(int, answer)
        others = {
            told[at]: (told[at + 1], told[at + 2], told[at + 3]) for at in range(0, len(told), 4)
        }
        return [
            others.get(place) or (1, now, int(self.record(job.id).get("n", 0)))
            for place, job in enumerate(jobs, 1)
        ]

    def submit_one(self, **options: Any) -> str:
        """Submit a job that must be taken; its id."""
        job = Job(**options)
        ((code, _, _),) = self.submit(job)
        assert code == 1, f"submit answered {code}"
        return job.id

    def push(self, *raws: bytes, step: int = 0) -> None:
        """As any client of Redis can."""
        for raw in raws:
            self.client.lpush(keys.step_key(self.name, step), raw)

    def claim(
        self,
        count: int = 100,
        *,
        owner: str = "w1",
        lease_us: int = LEASE_US,
        max_bytes: int = CLAIM_MAX_BYTES,
        most: tuple[int, int, int] | None = None,
        yield_us: int = 0,
    ) -> Claimed:
        """Claim; `most` jobs there may be when those of steps 3, 6 and 9 are taken."""
        now, *head = self._run(
            "jobs/claim", self.name, self.model, "1.0", count, max_bytes, lease_us, owner,
            keys.TASK_NAME, TTL_S, self.index_max, *(most or (count,) * 3), yield_us,
        )  # fmt: skip
        *lefts, refused = map(int, head[: CLAIM_HEAD - 1])
        flat = head[CLAIM_HEAD - 1 :]
        jobs = [
            Leased(
                raw, job_id.decode(), token.decode(), created.decode(),
                int(attempts), alone == b"1", retries.decode(),
                int(step.partition(b" ")[0]), step.partition(b" ")[2].decode(),
            )
            for raw, job_id, token, created, attempts, alone, retries, step in (
                flat[at : at + CLAIM_ROW] for at in range(0, len(flat), CLAIM_ROW)
            )
        ]  # fmt: skip
        return Claimed(int(now), tuple(lefts), refused, jobs)

    def claim_one(self, *, owner: str = "w1", lease_us: int = LEASE_US) -> Leased:
        (job,) = self.claim(1, owner=owner, lease_us=lease_us).jobs
        return job

    def settle(
        self,
        *jobs: Leased,
        state: str = "s",
        meta: str = SUCCESS,
        extra: tuple[str, str] = ("", ""),
        ttl: str = "",
        retry_us: str = "",
    ) -> list[int]:
        flat: list[Arg] = []
        for job in jobs:
            flat += [job.id, job.token, state, meta, len(jobs), "1.0,2.0,3.0,4.0,5.0"]
            flat += [*extra, ttl, retry_us]
        return [int(code) for code in self._run("jobs/settle", self.name, *flat)]

    def settle_all(self) -> None:
        """End whatever is listed or leased, so that nothing is left behind."""
        for job_id in self.held():
            self.release_owner(self.record(job_id)["o"])
        self.settle(*self.claim().jobs)

    def renew(self, *jobs: Leased, lease_us: int = LEASE_US) -> list[int]:
        return [int(code) for code in self._run("jobs/renew", lease_us, *_pairs(jobs))]

    def release(self, *jobs: Leased, mode: str = "free", losses: Arg = MAX_CRASHES) -> list[str]:
        answer = self._run("jobs/release", self.name, mode, losses, *_pairs(jobs))
        return [fate.decode() for fate in answer]

    def release_owner(self, owner: str, *keep: str, mode: str = "free") -> int:
        return int(self._run("jobs/release_owner", self.name, mode, MAX_CRASHES, owner, *keep))

    def sweep(self, *, reap: bool = True, limit: int = 500) -> tuple[int, int, int, int]:
        answer = self._run("queues/sweep", self.name, 2**53 if reap else 0, MAX_CRASHES, limit)
        promoted, reaped, due_us, *left, _ = map(int, answer)
        return promoted, reaped, due_us, sum(left)

    def untold(self, most: int = 100) -> dict[str, tuple[dict[str, Any], bytes]]:
        """The ends that a sweep hands out to be told: by name, Celery result and message."""
        flat = self._run("queues/sweep", self.name, 0, MAX_CRASHES, 500, most)[8:]
        told = {}
        for name, entry in zip(flat[::2], flat[1::2], strict=True):
            length, _, rest = entry.partition(b":")
            told[name.decode()] = (json.loads(rest[: int(length)]), rest[int(length) :])
        return told

    def follow(self, leased: Leased) -> int:
        return int(self.call("jobs/canvas_begin", [], leased.id, leased.token))

    def purge(self, limit: int = 500) -> tuple[int, int, int]:
        """Jobs cancelled, messages removed, messages left."""
        cancelled, removed, left = map(int, self._run("queues/purge", self.name, limit))
        return cancelled, removed, left

    def requeue(self, *names: str) -> list[str]:
        return [
            outcome.decode()
            for outcome in self._run("queues/requeue_dead_letters", self.name, *names)
        ]

    def purge_letters(self, *names: str) -> int:
        return int(self._run("queues/purge_dead_letters", self.name, *names))

    def listen(self, job_id: str) -> int:
        return int(self.call("jobs/listen", [], job_id)[0])

    def outcomes(self, *ids: str) -> list[Any]:
        return list(self.call("jobs/outcomes", [], "", *ids))

    def cancel(self, *ids: str, remember_s: int = 0) -> list[str]:
        answer = self.call("jobs/cancel", [], keys.QUEUE_PREFIX, remember_s, *ids)
        return [fate.decode() for fate in answer]

    def expire(self, most: int = 100) -> int:
        """End what waits too long; how many were looked at."""
        prefix, _, *error = EXPIRE_ARGUMENTS
        return int(self.call("jobs/expire", [], prefix, most, *error)[0])

    def entomb(self, *ids: str) -> list[str]:
        """Cancel jobs whose messages stand elsewhere than their tickets say."""
        for job_id in ids:
            self.client.hset(keys.job(job_id), "n", 1_000_000)
        return self.cancel(*ids)

    def view(self, *ids: str, results: bool = True) -> list[Any]:
        return list(self.call("jobs/view", [], keys.QUEUE_PREFIX, int(results), *ids))

    def watch(self, *ids: str) -> list[Any]:
        return list(self.call("jobs/watch", [], keys.QUEUE_PREFIX, *ids))

    def progress(self, job: Leased, word: str) -> int:
        return int(self.call("jobs/progress", [], job.id, job.token, word))

    def place(self, job_id: str) -> int:
        return int(self.view(job_id)[0][2])

    def depth(self) -> Depth:
        _, row = self.call("queues/depth", [], self.name)
        s0, s3, s6, s9, delayed, leased, dead = map(int, row[:7])
        oldest = [told.decode() for told in row[7:]]
        return Depth(s0, s3, s6, s9, delayed, leased, dead, *oldest)

    def record(self, job_id: str) -> dict[str, str]:
        stored: Any = self.client.hgetall(keys.job(job_id))
        return {name.decode(): value.decode() for name, value in stored.items()}

    def meta(self, job_id: str) -> bytes | None:
        stored: Any = self.client.get(keys.meta(job_id))
        return bytes(stored) if stored is not None else None

    def kept_s(self, job_id: str) -> float:
        """For how long a job's record is kept, and its result with it."""
        record_s, result_s = (
            self.client.pttl(name) / 1000 for name in (keys.job(job_id), keys.meta(job_id))
        )
        # Asked for one after the other.
        assert 0 <= record_s - result_s < 30, (record_s, result_s)
        return record_s

    def letters(self) -> dict[str, dict[str, bytes]]:
        """Dead letters by name."""
        names: Any = self.client.zrange(keys.dead(self.name), 0, -1)
        found: dict[str, dict[str, bytes]] = {}
        for name in names:
            stored: Any = self.client.hgetall(keys.letter(self.name, name.decode()))
            found[name.decode()] = {key.decode(): value for key, value in stored.items()}
        return found

    def listed(self) -> list[bytes]:
        """Every message in the lists, next to be taken first."""
        found: list[bytes] = []
        for name in keys.step_keys(self.name):
            stored: Any = self.client.lrange(name, 0, -1)
            found += reversed(stored)
        return found

    def held(self) -> dict[str, bytes]:
        """Raw messages of leased jobs, by id; each has its lease."""
        stored: Any = self.client.hgetall(keys.held(self.name))
        leased: Any = self.client.zrange(keys.lease(self.name), 0, -1)
        assert set(stored) == set(leased), "leases and held messages differ"
        return {name.decode(): raw for name, raw in stored.items()}

    def parked(self) -> dict[str, bytes]:
        """Raw messages of delayed jobs, by id; each has its time."""
        stored: Any = self.client.hgetall(keys.parked(self.name))
        due: Any = self.client.zrange(keys.delayed(self.name), 0, -1)
        assert set(stored) == set(due), "delayed jobs and parked messages differ"
        return {name.decode(): raw for name, raw in stored.items()}


@dataclass(frozen=True)
class Depth:
    """The depth of one queue; `oldest` is when a step's oldest job was created, or ""."""

    step0: int
    step3: int
    step6: int
    step9: int
    delayed: int
    leased: int
    dead: int
    oldest0: str
    oldest3: str
    oldest6: str
    oldest9: str

    @property
    def oldest(self) -> str:
        """When the oldest job that waits was created, or ""."""
        told = (self.oldest0, self.oldest3, self.oldest6, self.oldest9)
        return min((oldest for oldest in told if oldest), key=int, default="")

    @property
    def waiting(self) -> int:
        return self.step0 + self.step3 + self.step6 + self.step9


def _pairs(jobs: Iterable[Leased]) -> list[Arg]:
    return [value for job in jobs for value in (job.id, job.token)]
