"""What must hold when all is over, read from Redis, the handlers' logs and /proc."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import redis

from headrace import Client
from headrace.jobs.job import FINAL_STATES, State
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.chaos.load import Load
from tests.chaos.plan import BATCH, BURIED, MARKED, Planned
from tests.chaos.system import Ends, System
from tests.harness.clients.payloads import make_due, noted, payload_keys
from tests.harness.servers.redis_servers import nothing_leaks
from tests.harness.wait import wait_until

_CELERY = {"succeeded": "SUCCESS", "failed": "FAILURE", "cancelled": "REVOKED"}


def check_ends(load: Load, ends: Ends) -> None:
    """Every job has the one right end, which nobody was told twice."""
    complaints = [text for text in load.ended.values() if text]
    assert not complaints, complaints[:10]
    assert load.ended.keys() == {job.id for job in load.jobs}
    wrong = [
        (told, load.states[job_id])
        for job_id, (told, at) in load.cancelled.items()
        if not _kept(told.outcome, told.status, load.states[job_id])
        and not load.system.may_be_lost(at)
    ]
    assert not wrong, f"what a cancel answered does not hold: {wrong[:10]}"
    twice = {
        job_id: times
        for job_id, times in ends.seen.items()
        if len(times) > 1 and not any(map(load.system.may_be_lost, times[:-1]))
    }
    assert not twice, f"ended more than once: {twice}"


def _kept(outcome: str, status: str | None, ended: str) -> bool:
    if outcome in ("removed", "asked"):
        return ended == "cancelled"
    return outcome == "ended" and status == ended


def check_redis(load: Load) -> None:
    """Nothing waits, is leased or parked; records, letters and payloads are those of the jobs."""
    with load.system.server.client() as client:
        _check_queues(client)
        _check_records(client, load)
        _check_payloads(client)
        _check_counters(client, load)
        nothing_leaks(client)
    with Client(load.system.url) as sdk:
        for model in BATCH:
            buried = Counter(letter.job_id for letter in sdk.dead_letters(model))
            due = Counter(
                job.id
                for job in load.jobs
                if job.model == model and (job.kind in BURIED or job.id in load.lost)
            )
            assert buried == due, f"dead letters of {model}: {buried}, not {due}"


def _check_queues(client: Any) -> None:
    kept = {
        name
        for queue in map(keys.queue_name, BATCH)
        for name in keys.queue_keys(queue)
        if name not in (keys.count(queue), keys.dead(queue))
    }
    wait_until(lambda: not client.exists(*kept), f"none is left of {kept}", 30)
    for model in BATCH:
        counts = client.hgetall(keys.count(keys.queue_name(model)))
        assert not {k: v for k, v in counts.items() if k.startswith(b"tomb") and v != b"0"}


def _check_records(client: Any, load: Load) -> None:
    records = {key.decode() for key in client.scan_iter(f"{keys.job}*", count=1000)}
    assert records == {keys.job(job.id) for job in load.jobs}
    pipeline = client.pipeline(transaction=False)
    for job in load.jobs:
        pipeline.hget(keys.job(job.id), JobField.STATE)
        pipeline.get(keys.meta(job.id))
    answers = iter(pipeline.execute())
    for job in load.jobs:
        letter, meta = next(answers), next(answers)
        status = load.states[job.id]
        assert State(letter.decode()).name.lower() == status, (job, letter)
        assert msgspec.json.decode(meta)["status"] == _CELERY[status], (job, meta)


def _check_counters(client: Any, load: Load) -> None:
    """Each end was counted once, whoever ended it and whatever died meanwhile."""
    for model in BATCH:
        fields = client.hgetall(keys.stats(model))
        counted = Counter(
            {
                one.status: int(fields.get(b"ended:%b" % one.status.encode(), 0))
                for one in FINAL_STATES
            }
        )
        ended = Counter(load.states[job.id] for job in load.jobs if job.model == model)
        assert +counted == ended, f"{model}: counted {counted}, ended {ended}"


def _check_payloads(client: redis.Redis) -> None:
    """What lies in the store are results that a record names; its sweep is not waited for."""
    raw: Any = client
    named = {
        fields[0].decode().split()[0]
        for key in raw.scan_iter(f"{keys.job}*", count=1000)
        if (fields := raw.hmget(key, JobField.RESULT_REF))[0]
    }
    make_due(client)
    wait_until(
        lambda: {text.split()[0] for text in noted(client)} == named,
        "the account of payloads names the results that are kept, and nothing else",
        60,
    )
    stored = {key.removeprefix(keys.payload) for key in payload_keys(client)}
    assert stored == {reference.partition(":")[2] for reference in named}


def check_executions(load: Load, ends: Ends, folder: Path) -> dict[str, tuple[int, int]]:
    """No kill costs more than two batches: the one that ran, and the one prepared behind it.

    An execution is a line in the handlers' log: one batch with that job was begun. A job's first is
    no re-execution, nor are the retries that its kind asks for. A batch is of one model, so what
    may run again is counted per model. Our kills of its processes, of the workers (each has a
    process of it) and of Redis count. Its own inputs that hang or crash count too. Each execution
    of such an input costs a process, so it counts as a kill like ours. The executions of these
    inputs themselves are intended, and count as no re-executions.

    Returns:
        For each model, re-executions and the most that they may be.
    """
    found = {}
    for model, size in BATCH.items():
        runs = Counter((folder / f"{model}.log").read_text().split())
        ours = [job for job in load.jobs if job.model == model]
        strangers = runs.keys() - {job.id for job in ours}
        assert not strangers, f"{model} has run what is none of its jobs: {strangers}"
        missing = [j for j in ours if runs[j.id] < _least(j, load.states[j.id])]
        assert not missing, f"ended without having been run: {missing[:10]}"
        losses = load.system.lost[model] + sum(runs[j.id] for j in ours if j.kind in MARKED)
        again = sum(
            max(0, runs[job.id] - job.runs)
            for job in ours
            if job.kind not in MARKED
            and not any(map(load.system.may_be_lost, ends.seen.get(job.id, [])))
        )
        found[model] = (again, losses * 2 * size)
        assert again <= losses * 2 * size, f"{model}: {again} re-executions by {losses} losses"
    return found


def _least(job: Planned, status: str) -> int:
    if status == "cancelled":
        return 0
    return job.runs


def check_processes(system: System) -> None:
    """An orderly stop works still, and leaves no process behind."""
    assert system.processes(), "its processes can be told by their environment"
    assert system.up.stop() == 0
    wait_until(lambda: not system.processes(), f"no process of {system.up.state_dir} is left", 30)
