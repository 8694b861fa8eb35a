"""Checks of the work: queues, dead letters, background tasks and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from redis.exceptions import NoPermissionError

from headrace.cli.doctor.check import CheckResult, fail, named, ok, skip, warn
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.doctor.workers import READY_STATES
from headrace.cli.shared.output import count, duration
from headrace.config.model_catalog import ModelConfig
from headrace.redis import keys

OLD_S: Final = 300.0
#: Jobs of batch priority wait while online jobs take all capacity.
OLD_OFFLINE_S: Final = 86_400.0
NEARLY_FULL: Final = 0.9
TASKS_MANY: Final = 1000
#: Maximum number of keys that are scanned for queues without a model.
SCANNED_MAX: Final = 50_000


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


def unknown_queues(deployment: Deployment) -> CheckResult:
    """`unknown-queues`: no jobs wait for a model that is not in the models file."""
    names = {model.name for model in deployment.catalog.served}
    found, cursor, scanned = set(), 0, 0
    while True:
        try:
            cursor, page = deployment.redis.scan(cursor, match=f"{keys.queue_name}*", count=1000)
        except NoPermissionError:
            return skip("this user of Redis may not list its keys")
        scanned += 1000
        found |= {raw.decode("utf-8", "replace").split(keys.STEP_SEPARATOR)[0] for raw in page}
        if not cursor or scanned >= SCANNED_MAX:
            break
    unknown = sorted(queue for queue in found if keys.model_of(queue)[0] not in names)
    if not unknown:
        return ok("every queue has a model")
    counted = []
    for queue in unknown:
        with deployment.redis.pipeline(transaction=False) as pipe:
            for key in keys.step_keys(queue):
                pipe.llen(key)
            lengths = pipe.execute(raise_on_error=False)
        counted.append(f"{queue} ({sum(n for n in lengths if isinstance(n, int)):,})")
    return warn(
        f"jobs wait for models that are not in {deployment.catalog.path.name}: {named(counted)}",
        "add the model again, or correct the queue name in the client",
    )


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


def batches(deployment: Deployment) -> CheckResult:
    """`batches`: a runner processes the open batches."""
    runners = deployment.redis.zcard(keys.RUNNERS)
    waiting = int(deployment.redis.zcard(keys.OPEN_BATCHES))
    if waiting and not runners:
        return fail(f"{_batches(waiting)} open, but no runner runs", "start one: headrace runner")
    if not runners:
        return skip("no runner runs, and none is needed")
    return ok(f"{_batches(waiting)} open, {count(runners, 'runner')}")


def _batches(number: int) -> str:
    return f"{number:,} {'batch' if number == 1 else 'batches'}"
