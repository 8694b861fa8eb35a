"""Checks of the work: queues, dead letters and background tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from redis.exceptions import NoPermissionError

from headrace.cli.doctor.check import CheckResult, ok, results_of, skip, warn
from headrace.cli.doctor.deployment import Deployment
from headrace.observability import series
from headrace.queue import findings
from headrace.redis import keys
from headrace.text import count, duration, named

#: Maximum number of keys that are scanned for queues without a model.
SCANNED_MAX: Final = 50_000
#: The beginnings of keys that may have a queue's name in them and are no lists of a client.
_OTHER_KEYS: Final = ("hr:", "_kombu.", "celery-task-meta-", "unacked")
#: A queue and a priority, with a separator that no model's name has.
_STEP: Final = re.compile(r"(.+?)[^\w.-]+(\d)", re.DOTALL)


def queues(deployment: Deployment) -> Iterator[CheckResult]:
    """`queues`: workers serve every queue that has waiting jobs."""
    paused = {raw.decode() for raw in deployment.redis.smembers(keys.PAUSED)}
    yield from results_of(
        findings.of_queues(
            deployment.catalog.served,
            deployment.alive,
            deployment.depths,
            deployment.version_depths,
            paused,
        )
    )
    moving = sum(depth.total for depth in deployment.depths.values())
    yield ok(f"{moving:,} jobs wait, and workers serve all of them")


def backlog(deployment: Deployment) -> Iterator[CheckResult]:
    """`backlog`: jobs do not wait long, and the queues have room."""
    yield from results_of(findings.of_backlog(deployment.catalog.served, deployment.depths))
    oldest = max((depth.oldest_age_s or 0.0 for depth in deployment.depths.values()), default=0.0)
    yield ok(f"the oldest job has waited for {duration(oldest)}")


def failures(deployment: Deployment) -> Iterator[CheckResult]:
    """`failures`: no larger share of the jobs fails than before."""
    end = int(deployment.redis.time()[0]) // series.MINUTE.step_s
    first = end - series.MINUTES
    minutes = {
        model.name: series.buckets(
            [
                deployment.redis.execute_command(*read)
                for read in series.reads(model.name, series.MINUTE, first, end)
            ],
            first,
            end,
        )
        for model in deployment.catalog.served
    }
    yield from results_of(findings.of_failures(minutes))
    failed = sum(bucket.failed or 0 for buckets in minutes.values() for bucket in buckets)
    yield ok(f"{count(failed, 'job')} failed in the last hour")


def dead_letters(deployment: Deployment) -> Iterator[CheckResult]:
    """`dead-letters`: there are no dead letters."""
    yield from results_of(findings.of_dead_letters(deployment.depths))
    yield ok("none")


def unknown_queues(deployment: Deployment) -> Iterator[CheckResult]:
    """`unknown-queues`: no jobs wait in lists that no worker of this models file reads."""
    names = {model.name for model in deployment.catalog.served}
    try:
        found = _scanned(deployment)
    except NoPermissionError:
        yield skip("this user of Redis may not list its keys")
        return
    by_setting: dict[str, list[str]] = {}
    for key in found:
        by_setting.setdefault(_setting_of(key, names), []).append(key)
    for setting, lists in sorted(by_setting.items()):
        lengths = _lengths(deployment, lists) if setting else {}
        if waiting := [f"{key!a} ({length:,})" for key, length in lengths.items() if length]:
            yield warn(
                f"jobs wait in lists that no worker reads: {named(waiting)}",
                f"a Celery client sets {setting}: leave it out (docs/celery.md, Send and read)",
            )
    own = {key.split(keys.STEP_SEPARATOR)[0] for key in by_setting.get("", ())}
    own = {queue for queue in own if queue.startswith(keys.queue_name)}
    unknown = sorted(queue for queue in own if keys.model_of(queue)[0] not in names)
    counted = []
    for queue in unknown:
        total = sum(_lengths(deployment, keys.step_keys(queue)).values())
        counted.append(f"{queue} ({total:,})")
    if counted:
        yield warn(
            f"jobs wait for models that are not in {deployment.catalog.path.name}: "
            f"{named(counted)}",
            "add the model again, or correct the queue name in the client",
        )
    yield ok("every queue has a model")


def _scanned(deployment: Deployment) -> set[str]:
    """Return the keys that have the beginning of a queue's name in them."""
    found: set[str] = set()
    cursor = scanned = 0
    while not scanned or (cursor and scanned < SCANNED_MAX):
        cursor, page = deployment.redis.scan(cursor, match=f"*{keys.queue_name}*", count=1000)
        found |= {raw.decode("utf-8", "replace") for raw in page}
        scanned += 1000
    return found


def _setting_of(key: str, names: set[str]) -> str:
    """Return the setting of a Celery client that makes such a key; "" for none."""
    head, _, rest = key.partition(keys.queue_name)
    name, separator, step = rest.partition(keys.STEP_SEPARATOR)
    if head:
        ours = head.startswith(_OTHER_KEYS) or keys.model_of(name)[0] not in names
        return "" if ours else "global_keyprefix"
    if separator:
        return "" if step in map(str, keys.STEPS) else "priority_steps"
    parts = _STEP.fullmatch(rest)
    other = parts is not None and keys.model_of(rest)[0] not in names
    return "sep" if other and parts and keys.model_of(parts[1])[0] in names else ""


def _lengths(deployment: Deployment, lists: list[str]) -> dict[str, int]:
    with deployment.redis.pipeline(transaction=False) as pipe:
        for key in lists:
            pipe.llen(key)
        lengths = pipe.execute(raise_on_error=False)
    return {key: n for key, n in zip(lists, lengths, strict=True) if isinstance(n, int)}


class _Alive(msgspec.Struct):
    node: str = ""


def background_tasks(deployment: Deployment) -> Iterator[CheckResult]:
    """`background`: background workers run background tasks, webhooks and pipelines."""
    client = deployment.redis
    waiting = int(client.llen(keys.BACKGROUND_TASKS)) + int(client.zcard(keys.WAITING_TASKS))
    hooks = int(client.zcard(keys.DUE_DELIVERIES))
    owners = sorted(client.smembers(keys.BACKGROUND_WORKERS))
    records = [client.get(keys.background_alive(raw.decode())) for raw in owners]
    alive = [msgspec.json.decode(raw, type=_Alive).node for raw in records if raw is not None]
    pipelines = bool(deployment.catalog.pipelines) and deployment.anything_runs
    yield from results_of(findings.of_background(len(alive), waiting, hooks, pipelines=pipelines))
    if alive:
        yield ok(f"{named(alive)}; {waiting:,} tasks and {count(hooks, 'webhook')} wait")
    else:
        yield skip("no background worker runs, and none is needed")
