"""Checks of the work: queues, dead letters and background tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from redis.exceptions import NoPermissionError

from headrace.cli.doctor.check import CheckResult, fail, named, ok, skip, warn
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.doctor.workers import READY_STATES
from headrace.cli.shared.output import count
from headrace.config.model.catalog import ModelConfig
from headrace.redis import keys
from headrace.text import duration

OLD_S: Final = 300.0
#: Jobs of batch priority wait while online jobs take all capacity.
OLD_OFFLINE_S: Final = 86_400.0
NEARLY_FULL: Final = 0.9
TASKS_MANY: Final = 1000
#: Maximum number of keys that are scanned for queues without a model.
SCANNED_MAX: Final = 50_000
#: The beginnings of keys that may have a queue's name in them and are no lists of a client.
_OTHER_KEYS: Final = ("hr:", "_kombu.", "celery-task-meta-", "unacked")
#: A queue and a priority, with a separator that no model's name has.
_STEP: Final = re.compile(r"(.+?)[^\w.-]+(\d)", re.DOTALL)


def queues(deployment: Deployment) -> Iterator[CheckResult]:
    """`queues`: workers serve every queue that has waiting jobs."""
    ready = {
        name
        for _, report in deployment.alive
        for name, state in report.models.items()
        if state.ready or state.state in READY_STATES
    }
    # The check `models` has those that cannot be loaded.
    ready |= {
        label.partition(keys.VERSION_SEPARATOR)[0]
        for _, report in deployment.alive
        for label in report.unloaded
    }
    paused = deployment.redis.smembers(keys.PAUSED)
    for model in deployment.catalog.served:
        waiting = deployment.depths[model.name].total
        if waiting and model.queue.encode() in paused:
            yield warn(
                f"{model.name} is paused with {count(waiting, 'job')}",
                f"headrace queues resume {model.name}",
            )
        elif waiting and model.name not in ready:
            yield fail(
                f"{model.name} has {count(waiting, 'job')} and no ready process",
                "see `models` and `workers`; a worker serves the models of its models file",
            )
        yield from _versions_without_worker(deployment, model)
    moving = sum(depth.total for depth in deployment.depths.values())
    yield ok(f"{moving:,} jobs wait, and workers serve all of them")


def _versions_without_worker(deployment: Deployment, model: ModelConfig) -> Iterator[CheckResult]:
    """Yield a failure for each version that jobs wait for and no worker serves."""
    serving = {
        report.models[model.name].version
        for _, report in deployment.alive
        if model.name in report.models
    }
    unloaded = {label for _, report in deployment.alive for label in report.unloaded}
    for version, depth in deployment.version_depths.get(model.name, {}).items():
        label = f"{model.name}{keys.VERSION_SEPARATOR}{version}"
        if depth.total and version not in serving and label not in unloaded:
            yield fail(
                f"{count(depth.total, 'job')} waiting for version {version} of {model.name}, "
                "which no worker serves",
                f"start a worker whose models file has it, or headrace queues purge "
                f"{model.name}{keys.VERSION_SEPARATOR}{version}",
            )


def backlog(deployment: Deployment) -> Iterator[CheckResult]:
    """`backlog`: jobs do not wait long, and the queues have room."""
    for model in deployment.catalog.served:
        depth = deployment.depths[model.name]
        if depth.total >= NEARLY_FULL * model.max_queue_depth:
            yield warn(
                f"{model.name} has {depth.total:,} jobs of {model.max_queue_depth:,}",
                "a full queue refuses jobs with 429: add workers, or raise max_queue_depth",
            )
        most_tokens = model.max_queued_tokens
        if most_tokens is not None and depth.tokens >= NEARLY_FULL * most_tokens:
            yield warn(
                f"{model.name} has {depth.tokens:,} tokens of {most_tokens:,}",
                "a full queue refuses jobs with 429: add workers, or raise max_queued_tokens",
            )
        for step, age_s in depth.oldest_ages_s.items():
            if age_s > (OLD_OFFLINE_S if step == keys.OFFLINE_STEP else OLD_S):
                yield warn(
                    f"the oldest job of {model.name} (priority {step}) "
                    f"has waited for {duration(age_s)}",
                    "add workers, or see docs/operations.md (HeadraceOldestJobTooOld)",
                )
    oldest = max((depth.oldest_age_s or 0.0 for depth in deployment.depths.values()), default=0.0)
    yield ok(f"the oldest job has waited for {duration(oldest)}")


def dead_letters(deployment: Deployment) -> CheckResult:
    """`dead-letters`: there are no dead letters."""
    dead = [f"{name} {depth.dead:,}" for name, depth in deployment.depths.items() if depth.dead]
    if dead:
        return warn(
            f"dead letters: {named(dead)}",
            "headrace dead list MODEL shows the reasons; then headrace dead requeue or purge",
        )
    return ok("none")


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


def background_tasks(deployment: Deployment) -> CheckResult:
    """`background`: background workers run background tasks, webhooks and pipelines."""
    client = deployment.redis
    waiting = int(client.llen(keys.BACKGROUND_TASKS)) + int(client.zcard(keys.WAITING_TASKS))
    hooks = int(client.zcard(keys.DUE_DELIVERIES))
    owners = sorted(client.smembers(keys.BACKGROUND_WORKERS))
    records = [client.get(keys.background_alive(raw.decode())) for raw in owners]
    alive = [msgspec.json.decode(raw, type=_Alive).node for raw in records if raw is not None]
    pipelines = bool(deployment.catalog.pipelines)
    needed = waiting + hooks > 0 or (pipelines and deployment.anything_runs)
    if not alive and needed:
        reason = "the models file has pipelines"
        if waiting:
            reason = f"{count(waiting, 'background task')} waiting"
        return fail(f"{reason}, but no background worker runs", "start one: headrace background")
    if not alive:
        return skip("no background worker runs, and none is needed")
    if hooks > TASKS_MANY:
        return warn(
            f"{hooks:,} webhooks wait for a retry",
            "their receivers are down or slow: see the log of the background worker",
        )
    if waiting > TASKS_MANY:
        return warn(
            f"{waiting:,} background tasks wait", "start more: headrace background, on any host"
        )
    return ok(f"{named(alive)}; {waiting:,} tasks and {count(hooks, 'webhook')} wait")
