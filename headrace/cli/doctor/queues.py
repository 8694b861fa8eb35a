"""Checks of the work: queues, dead letters, background tasks, batches and models."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.shared.output import count, duration
from headrace.redis import keys

OLD_S: Final = 300.0
#: Jobs of batch priority wait while online jobs take all capacity.
OLD_OFFLINE_S: Final = 86_400.0
NEARLY_FULL: Final = 0.9
TASKS_MANY: Final = 1000
#: Maximum number of keys that are scanned for queues without a model.
SCANNED_MAX: Final = 50_000
_READY: Final = ("ready", "draining")


def _ready_models(deployment: Deployment) -> set[str]:
    return {
        name
        for _, report in deployment.alive
        for name, state in report.models.items()
        if state.ready or state.state in _READY
    }


def queues(deployment: Deployment) -> CheckResult:
    """`queues`: workers serve every queue that has waiting jobs."""
    ready, paused = _ready_models(deployment), deployment.redis.smembers(keys.PAUSED)
    found, moving = [], 0
    for model in deployment.catalog.served:
        depth = deployment.depths[model.name]
        moving += depth.total
        if not depth.total:
            continue
        if model.queue.encode() in paused:
            found.append(
                warn(
                    f"{model.name} is paused with {count(depth.total, 'job')}",
                    f"headrace queues resume {model.name}",
                )
            )
        elif model.name not in ready:
            found.append(
                fail(
                    f"{model.name} has {count(depth.total, 'job')} and no ready process",
                    "see `models` and `workers`; a worker serves the models of its models file",
                )
            )
    return worst(found, ok(f"{moving:,} jobs wait, and workers serve all of them"))


def backlog(deployment: Deployment) -> CheckResult:
    """`backlog`: jobs do not wait long, and the queues have room."""
    found = []
    for model in deployment.catalog.served:
        depth = deployment.depths[model.name]
        if depth.total >= NEARLY_FULL * model.max_queue_depth:
            found.append(
                warn(
                    f"{model.name} has {depth.total:,} jobs of {model.max_queue_depth:,}",
                    "a full queue refuses jobs with 429: add workers, or raise max_queue_depth",
                )
            )
        for step, age_s in depth.oldest_ages_s.items():
            if age_s > (OLD_OFFLINE_S if step == keys.OFFLINE_STEP else OLD_S):
                found.append(
                    warn(
                        f"the oldest job of {model.name} (priority {step}) "
                        f"has waited for {duration(age_s)}",
                        "add workers, or see docs/operations.md (HeadraceOldestJobTooOld)",
                    )
                )
    oldest = max((depth.oldest_age_s or 0.0 for depth in deployment.depths.values()), default=0.0)
    return worst(found, ok(f"the oldest job has waited for {duration(oldest)}"))


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
    known = {model.queue for model in deployment.catalog.served}
    found, cursor, scanned = set(), 0, 0
    while True:
        cursor, page = deployment.redis.scan(cursor, match=f"{keys.QUEUE_PREFIX}*", count=1000)
        scanned += 1000
        found |= {raw.decode("utf-8", "replace").split(keys.STEP_SEPARATOR)[0] for raw in page}
        if not cursor or scanned >= SCANNED_MAX:
            break
    unknown = sorted(found - known)
    if not unknown:
        return ok("every queue has a model")
    with deployment.redis.pipeline(transaction=False) as pipe:
        for queue in unknown:
            for key in keys.step_keys(queue):
                pipe.llen(key)
        lengths = pipe.execute(raise_on_error=False)
    each = len(keys.STEPS)
    counts = [
        sum(n for n in lengths[i * each : (i + 1) * each] if isinstance(n, int))
        for i in range(len(unknown))
    ]
    names = [f"{queue} ({n:,})" for queue, n in zip(unknown, counts, strict=True)]
    return warn(
        f"jobs wait for models that are not in {deployment.catalog.path.name}: {named(names)}",
        "add the model again, or correct the queue name in the client",
    )


class _Alive(msgspec.Struct):
    node: str = ""


def background_tasks(deployment: Deployment) -> CheckResult:
    """`errands`: background workers run background tasks, webhooks and pipelines."""
    waiting, hooks = (
        int(deployment.redis.llen(keys.BACKGROUND_TASKS)),
        int(deployment.redis.zcard(keys.DUE_DELIVERIES)),
    )
    owners = sorted(deployment.redis.smembers(keys.BACKGROUND_WORKERS))
    records = (
        deployment.redis.mget([keys.background_alive(raw.decode()) for raw in owners])
        if owners
        else []
    )
    alive = [msgspec.json.decode(raw, type=_Alive).node for raw in records if raw is not None]
    needed = waiting + hooks > 0 or (
        bool(deployment.catalog.pipelines) and deployment.anything_runs
    )
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


def served_models(deployment: Deployment) -> CheckResult:
    """`models`: every model is loaded on all its processes."""
    if not deployment.alive:
        raise CheckSkipped("no worker runs")
    found, served = [], set()
    for seen, report in deployment.alive:
        for name, state in report.models.items():
            served.add(name)
            where = f"{name} on {seen.node}"
            if state.state == "failed":
                last = (
                    state.error.strip().splitlines()[-1]
                    if state.error.strip()
                    else "unknown reason"
                )
                found.append(
                    fail(
                        f"{where} could not be loaded: {last[:160]}",
                        f"headrace models {name} shows the traceback; it is retried every minute",
                    )
                )
            elif state.state == "restarting":
                found.append(
                    fail(
                        f"{where}: its processes crash too often: {state.error[:160]}",
                        "the worker's log shows why they crashed",
                    )
                )
            elif state.state in _READY and state.ready < state.replicas:
                found.append(
                    warn(
                        f"{where} has {state.ready} of {state.replicas} processes",
                        "the others may still be loading; if not, see the worker's log",
                    )
                )
    # A pipeline needs no worker; the check `errands` covers it.
    missing = sorted(set(deployment.catalog.models) - served)
    if missing:
        found.append(
            warn(
                f"no worker serves {named(missing)}",
                "give the workers the same models file as the API, and restart them",
            )
        )
    return worst(found, ok(f"{len(served)} served: {named(sorted(served))}"))
