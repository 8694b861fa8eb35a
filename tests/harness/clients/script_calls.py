"""The scripts as typed calls on one queue, and what a queue holds, for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from headrace.jobs.ids import new_id
from headrace.jobs.job import Job as JobRead
from headrace.jobs.message import InputSource
from headrace.queue.following.watcher import read_status
from headrace.queue.job_queue import _job
from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts import Arg, Command, script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts.jobs import CLAIM_MAX_BYTES, Settlement
from tests.harness.clients.messages import write_message

LEASE_US = 60_000_000
MAX_CRASHES = 3
TTL_S = 3600
#: What the status of a job has.
STATUS = (
    "state", "attempts", "token", "started_us", "ended_us", "place", "due_us", "progress",
    "progress_mark", "created_us",
)  # fmt: skip
#: When jobs began that were started or settled here, in us.
STARTED = "1795000000000000"
SUCCESS = '{"status": "SUCCESS", "result": 1, "traceback": null, "children": []}'


@dataclass(frozen=True)
class Leased:
    """One job of a claim's answer."""

    raw: bytes
    id: str
    token: str
    created: str
    attempts: int
    alone: str
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
    tokens: str = ""
    max_tokens: int = 0
    key_minute: int = 0


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
        kept: how failures are kept, as `Settings.failures_kept`; "" for not at all.
        fields: more fields of the records of its jobs.
    """

    def __init__(self, client: redis.Redis, model: str = "m") -> None:
        self.index_max = 0
        self.kept = ""
        self.fields: list[Arg] = []
        self.client = client
        self.model = model
        self.name = keys.queue_name(model)
        self.keys = keys.queue_keys(self.name)

    def execute(self, *command: Arg) -> Any:
        execute: Any = self.client.execute_command
        return execute(*command)

    def call(self, name: str, names: Sequence[str], *arguments: Arg) -> Any:
        """Call a script as callers do: once more where the server did not know it."""
        return self.send(script(name).call(names, *arguments))

    def send(self, call: Command) -> Any:
        return call_script(self.client, call)

    def message(self, job: Job) -> bytes:
        source = InputSource(ref=job.source) if job.source else None
        return job.raw or write_message(
            job.id, self.model, self.name, job.input_json, timeout_s=60.0, source=source
        )

    def run(self, *jobs: Job) -> list[Arg]:
        """A run of jobs/submit.lua, of jobs that differ as neighbours of a run may."""
        job = jobs[0]
        fields: list[Arg] = ["m", self.model, "v", "1.0", *self.fields]
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
            owner = f"{job.key} {job.key_limit} {int(job.key_sees_all)} {job.key_minute}"
        own: list[list[Arg]] = [
            [one.id, self.message(one), one.request_hash, one.tokens]
            if one.tokens
            else [one.id, self.message(one), *([one.request_hash] if one.request_hash else [])]
            for one in jobs
        ]
        head = job_scripts.submit_run(
            self.name, str(job.step), max_depth=job.max_depth, delay_us=job.delay_us,
            expires_us=job.begin_us, listed=job.waiter != keys.NO_WAITER, owner=owner,
            values_per_job=len(own[0]), fields=fields, max_tokens=job.max_tokens,
        )  # fmt: skip
        return [*head, len(own), *(value for one in own for value in one)]

    def submit(self, *jobs: Job) -> list[tuple[int, int, int]]:
        """Submit each as a run of its own."""
        return self.submit_runs(*([job] for job in jobs))

    def submit_runs(self, *runs: list[Job]) -> list[tuple[int, int, int]]:
        """Per job: code, created, and its ticket, or the depth that it was refused for."""
        flat = [argument for run in runs for argument in self.run(*run)]
        jobs = [job for run in runs for job in run]
        return self.read_submit(jobs, self.send(job_scripts.submit(self.index_max, flat)))

    def read_submit(self, jobs: Sequence[Job], answer: list[Any]) -> list[tuple[int, int, int]]:
        """An answer of jobs/submit.lua, per job; the tickets are those of the records."""
        now, refused = job_scripts.read_submit(answer)
        others = {row.place: (row.code, row.created_us, row.depth) for row in refused}
        return [
            others.get(place) or (1, now, int(self.record(job.id).get("n", 0)))
            for place, job in enumerate(jobs)
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
        claim = job_scripts.claim(
            self.name, self.model, "1.0", (count, *(most or (count,) * 3)), lease_us=lease_us,
            owner=owner, result_ttl_s=TTL_S, job_index_max=self.index_max, yield_us=yield_us,
            max_bytes=max_bytes, failures_kept=self.kept,
        )  # fmt: skip
        reply = job_scripts.ClaimReply(self.send(claim))
        jobs = [
            Leased(
                raw, job_id.decode(), token.decode(), created.decode(),
                int(attempts), alone.decode(), retries.decode(),
                int(step.partition(b" ")[0]), step.partition(b" ")[2].decode(),
            )
            for raw, job_id, token, created, attempts, alone, retries, step in reply.jobs
        ]  # fmt: skip
        return Claimed(reply.now_us, tuple(reply.waiting), reply.refused, jobs)

    def arrange(self, count: int, most: tuple[int, int, int] | None = None) -> tuple[int, int]:
        """Bring the next jobs to the heads of their lists: how many were chosen, and moved."""
        rooms = (count, *(most or (count,) * 3))
        chosen, moved = self.call("queues/arrange", self.keys, self.name, *rooms)
        return int(chosen), int(moved)

    def tokens(self) -> int:
        """Of the jobs that have not ended."""
        _, row = self.send(queue_scripts.depth([self.name]))
        return int(row[11])

    def order(self, step: int = 0) -> list[str]:
        """The entries of a list's jobs, in their order."""
        stored: Any = self.client.zrange(keys.order(keys.step_key(self.name, step)), 0, -1)
        return [entry.decode() for entry in stored]

    def claim_one(self, *, owner: str = "w1", lease_us: int = LEASE_US) -> Leased:
        (job,) = self.claim(1, owner=owner, lease_us=lease_us).jobs
        return job

    def settle(
        self,
        *jobs: Leased,
        state: str = "s",
        meta: str = SUCCESS,
        extra: tuple[str, str] = ("", ""),
        retry_us: str = "",
        used: str = "",
    ) -> list[int]:
        started = "" if state in "xc" else STARTED
        timings = "1.0,2.0,3.0,4.0,5.0"
        settlements = [
            Settlement(
                job.id,
                job.token,
                state,
                meta.encode(),
                len(jobs),
                timings,
                *extra,
                retry_us,
                started,
                "6.0",
                used,
            )
            for job in jobs
        ]
        settle = job_scripts.settle(self.name, "1.0", settlements, self.kept)
        return [int(code) for code in self.send(settle)]

    def settle_all(self) -> None:
        """End whatever is listed or leased, so that nothing is left behind."""
        for job_id in self.held():
            self.release_owner(self.record(job_id)["o"])
        self.settle(*self.claim().jobs)

    def start(self, *jobs: Leased) -> int:
        """Note that jobs have begun; return how many were noted."""
        rows = [value for job in jobs for value in (job.id, job.token, STARTED)]
        return int(self.call("jobs/start", [], *rows))

    def renew(self, *jobs: Leased, lease_us: int = LEASE_US) -> list[int]:
        return [int(code) for code in self.send(job_scripts.renew(self.name, lease_us, jobs))]

    def isolate(self, job: Leased, scope: str, host: str = "here") -> int:
        return int(self.call("jobs/isolate", [], job.id, job.token, scope, host))

    def release(
        self,
        *jobs: Leased,
        mode: str = "free",
        losses: Arg = MAX_CRASHES,
        how: str = "by SIGSEGV",
        traceback: str = "",
        run: job_scripts.Run | None = None,
    ) -> list[str]:
        runs = {job.token: run for job in jobs} if run else None
        return job_scripts.read_words(
            self.send(job_scripts.release(self.name, mode, str(losses), jobs, how, traceback, runs))
        )

    def release_owner(self, owner: str, *keep: str, mode: str = "free") -> int:
        return int(
            self.send(job_scripts.release_owner(self.name, mode, str(MAX_CRASHES), owner, *keep))
        )

    def sweep(self, *, reap: bool = True, limit: int = 500) -> tuple[int, int, int, int]:
        reply = self._sweep(limit=limit, reap_until_us=2**53 if reap else 0)
        due_us = -1 if reply.due_in_us is None else reply.due_in_us
        return reply.promoted, reply.reaped, due_us, sum(reply.waiting)

    def _sweep(
        self, *, limit: int = 500, reap_until_us: int = 0, orphaned_max: int = 0
    ) -> queue_scripts.SweepReply:
        sweep = queue_scripts.sweep(
            self.name, reap_until_us=reap_until_us, losses=str(MAX_CRASHES),
            orphaned_max=orphaned_max, limit=limit,
        )  # fmt: skip
        return queue_scripts.read_sweep(self.send(sweep))

    def orphaned_ends(self, most: int = 100) -> dict[str, tuple[dict[str, Any], bytes]]:
        """The ends with callbacks that a sweep returns: by name, Celery result and message."""
        flat = self._sweep(orphaned_max=most).orphaned
        told = {}
        for name, entry in zip(flat[::2], flat[1::2], strict=True):
            length, _, rest = entry.partition(b":")
            told[name.decode()] = (json.loads(rest[: int(length)]), rest[int(length) :])
        return told

    def follow(self, leased: Leased) -> int:
        return int(self.call("jobs/canvas_begin", [], leased.id, leased.token))

    def purge(self, limit: int = 500) -> tuple[int, int, int]:
        """Jobs cancelled, messages removed, messages left."""
        cancelled, removed, left = map(int, self.call("queues/purge", self.keys, self.name, limit))
        return cancelled, removed, left

    def requeue(self, *names: str) -> list[str]:
        return job_scripts.read_words(
            self.call("queues/requeue_dead_letters", self.keys, self.name, *names)
        )

    def failures(self) -> dict[str, int]:
        """The entries of the failures of its model, the oldest first, and when each failed."""
        stored: Any = self.client.zrange(keys.failures(self.model), 0, -1, withscores=True)
        return {entry.decode(): int(at) for entry, at in stored}

    def retry(self, *entries: str) -> list[str]:
        words = self.call("queues/retry_failures", self.keys, self.name, *entries)
        return job_scripts.read_words(words)

    def purge_dead_letters(self, *names: str) -> int:
        return int(self.call("queues/purge_dead_letters", self.keys, self.name, *names))

    def listen(self, job_id: str) -> int:
        return int(self.call("records/listen", [], job_id)[0])

    def outcomes(self, *ids: str) -> list[Any]:
        return list(self.call("records/outcomes", [], "", *ids))

    def cancel(self, *ids: str, remember_s: int = 0) -> list[str]:
        return job_scripts.read_words(self.send(job_scripts.cancel(ids, remember_s=remember_s)))

    def expire(self, most: int = 100) -> int:
        """End what waits too long; how many were looked at."""
        return job_scripts.read_expire(self.send(job_scripts.expire(most)))[0]

    def entomb(self, *ids: str) -> list[str]:
        """Cancel jobs whose messages stand elsewhere than their tickets say."""
        for job_id in ids:
            self.client.hset(keys.job(job_id), "n", 1_000_000)
        return self.cancel(*ids)

    def view(self, *ids: str, results: bool = True) -> list[Any]:
        return list(self.call("records/view", [], int(results), *ids))

    def watch(self, *ids: str) -> list[Any]:
        return list(self.call("records/watch", [], *ids))

    def seen(self, job_id: str) -> tuple[JobRead, JobRead]:
        """A job as a look at its status sees it, and as its record does; both have one status."""
        (row,), (whole,) = self.watch(job_id), self.view(job_id)
        found, job = read_status(job_id, row), _job(job_id, whole)
        assert found is not None
        assert job is not None
        for name in STATUS:
            assert getattr(found, name) == getattr(job, name), name
        return found, job

    def progress(self, job: Leased, word: str) -> int:
        return int(self.call("records/progress", [], job.id, job.token, word))

    def place(self, job_id: str) -> int:
        return int(self.view(job_id)[0][2])

    def depth(self) -> Depth:
        _, row = self.send(queue_scripts.depth([self.name]))
        s0, s3, s6, s9, delayed, leased, dead = map(int, row[:7])
        oldest = [told.decode() for told in row[7:11]]
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
        # Asked for one after the other, and one may be set a millisecond after the other.
        assert -1 < record_s - result_s < 30, (record_s, result_s)
        return record_s

    def dead_letters(self) -> dict[str, dict[str, bytes]]:
        """Dead letters by name."""
        names: Any = self.client.zrange(keys.dead(self.name), 0, -1)
        found: dict[str, dict[str, bytes]] = {}
        for name in names:
            stored: Any = self.client.hgetall(keys.dead_letter(self.name, name.decode()))
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


@contextmanager
def full_memory(queue: Queue) -> Iterator[None]:
    """Hold the server at its maxmemory within the context."""
    queue.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            queue.client.set("canary", "x")
        yield
    finally:
        queue.client.config_set("maxmemory", 0)
