"""Does the work move: queues, dead letters, errands and batches?"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.cli.doctor.check import CheckResult, CheckSkipped, fail, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment
from headrace.cli.shared.output import count, duration
from headrace.redis import keys

OLD_S: Final = 300.0
#: The offline class waits as long as online work leaves it no room.
OLD_OFFLINE_S: Final = 86_400.0
NEARLY_FULL: Final = 0.9
ERRANDS_MANY: Final = 1000
#: Keys that are looked through for queues that nobody serves.
LOOKED_AT: Final = 50_000
_READY: Final = ("ready", "draining")


def _ready_models(site: Deployment) -> set[str]:
    return {
        name
        for _, report in site.alive
        for name, state in report.models.items()
        if state.ready or state.state in _READY
    }


def queues(site: Deployment) -> CheckResult:
    """`queues`: what waits is served."""
    ready, paused = _ready_models(site), site.redis.smembers(keys.PAUSED)
    found, moving = [], 0
    for model in site.catalog.served:
        depth = site.depths[model.name]
        moving += depth.total
        if not depth.total:
            continue
        if model.queue.encode() in paused:
            found.append(
                warn(
                    f"{model.name} is paused, with {count(depth.total, 'job')}",
                    f"headrace queues resume {model.name}",
                )
            )
        elif model.name not in ready:
            found.append(
                fail(
                    f"{model.name} has {count(depth.total, 'job')} and no ready process",
                    "see `models` and `workers`; a worker serves what is in its models file",
                )
            )
    return worst(found, ok(f"{moving:,} jobs wait, and all of them are served"))


def backlog(site: Deployment) -> CheckResult:
    """`backlog`: what waits does not wait long, and there is room for more."""
    found = []
    for model in site.catalog.served:
        depth = site.depths[model.name]
        if depth.total >= NEARLY_FULL * model.max_queue_depth:
            found.append(
                warn(
                    f"{model.name} has {depth.total:,} jobs of {model.max_queue_depth:,}",
                    "more are refused with 429: add workers, or raise max_queue_depth",
                )
            )
        for step, age_s in depth.oldest_ages_s.items():
            if age_s > (OLD_OFFLINE_S if step == keys.OFFLINE_STEP else OLD_S):
                found.append(
                    warn(
                        f"the oldest job of {model.name} (priority {step}) "
                        f"has waited {duration(age_s)}",
                        "add workers, or see docs/operations.md (HeadraceOldestJobTooOld)",
                    )
                )
    oldest = max((depth.oldest_age_s or 0.0 for depth in site.depths.values()), default=0.0)
    return worst(found, ok(f"the oldest job waits for {duration(oldest)}"))


def dead_letters(site: Deployment) -> CheckResult:
    """`dead-letters`: no job was given up."""
    dead = [f"{name} {depth.dead:,}" for name, depth in site.depths.items() if depth.dead]
    if dead:
        return warn(
            f"dead letters: {named(dead)}",
            "headrace dead list MODEL shows why; then headrace dead requeue, or purge",
        )
    return ok("none")


def unknown_queues(site: Deployment) -> CheckResult:
    """`unknown-queues`: nothing waits for a model that is not in the models file."""
    known = {model.queue for model in site.catalog.served}
    found, cursor, looked = set(), 0, 0
    while True:
        cursor, page = site.redis.scan(cursor, match=f"{keys.QUEUE_PREFIX}*", count=1000)
        looked += 1000
        found |= {raw.decode("utf-8", "replace").split(keys.STEP_SEPARATOR)[0] for raw in page}
        if not cursor or looked >= LOOKED_AT:
            break
    strange = sorted(found - known)
    if not strange:
        return ok("each queue has its model")
    with site.redis.pipeline(transaction=False) as pipe:
        for queue in strange:
            for key in keys.step_keys(queue):
                pipe.llen(key)
        lengths = pipe.execute(raise_on_error=False)
    each = len(keys.STEPS)
    counts = [
        sum(n for n in lengths[i * each : (i + 1) * each] if isinstance(n, int))
        for i in range(len(strange))
    ]
    said = [f"{queue} ({n:,})" for queue, n in zip(strange, counts, strict=True)]
    return warn(
        f"jobs wait for what is not in {site.catalog.path.name}: {named(said)}",
        "add the model again, or correct the queue in the client that sends them",
    )


class _Alive(msgspec.Struct):
    node: str = ""


def errands(site: Deployment) -> CheckResult:
    """`errands`: what is no model's work is done, and pipelines run."""
    waiting, hooks = int(site.redis.llen(keys.ERRANDS)), int(site.redis.zcard(keys.HOOKS))
    owners = sorted(site.redis.smembers(keys.ERRAND_OWNERS))
    said = site.redis.mget([keys.errands_alive(raw.decode()) for raw in owners]) if owners else []
    alive = [msgspec.json.decode(raw, type=_Alive).node for raw in said if raw is not None]
    needed = waiting + hooks > 0 or (bool(site.catalog.pipelines) and site.anything_runs)
    if not alive and needed:
        why = (
            f"{count(waiting, 'errand')} to be done" if waiting else "the models file has pipelines"
        )
        return fail(f"{why}, and no background worker runs", "start one: headrace background")
    if not alive:
        return skip("no background worker runs, and nothing waits for one")
    if hooks > ERRANDS_MANY:
        return warn(
            f"{hooks:,} webhooks wait for another try",
            "their receivers are down or slow: the log of the background worker names them",
        )
    if waiting > ERRANDS_MANY:
        return warn(f"{waiting:,} errands wait", "start more: headrace background, on any host")
    return ok(f"{named(alive)}; {waiting:,} wait, and {count(hooks, 'webhook')} for another try")


def batches(site: Deployment) -> CheckResult:
    """`batches`: those that were asked for are driven."""
    runners = site.redis.zcard(keys.RUNNERS)
    waiting = int(site.redis.zcard(keys.OPEN_BATCHES))
    if waiting and not runners:
        return fail(f"{_batches(waiting)} open, and no runner runs", "start one: headrace runner")
    if not runners:
        return skip("no runner runs, and no batch waits for one")
    return ok(f"{_batches(waiting)} open, {count(runners, 'runner')}")


def _batches(number: int) -> str:
    return f"{number:,} {'batch' if number == 1 else 'batches'}"


def served_models(site: Deployment) -> CheckResult:
    """`models`: each is loaded, on as many processes as it is to have."""
    if not site.alive:
        raise CheckSkipped("no worker runs")
    found, served = [], set()
    for seen, report in site.alive:
        for name, state in report.models.items():
            served.add(name)
            where = f"{name} on {seen.node}"
            if state.state == "failed":
                last = state.error.strip().splitlines()[-1] if state.error.strip() else "no reason"
                found.append(
                    fail(
                        f"{where} could not be loaded: {last[:160]}",
                        f"headrace models {name} has the traceback; it is tried again each minute",
                    )
                )
            elif state.state == "restarting":
                found.append(
                    fail(
                        f"{where}: its processes die too often, and wait: {state.error[:160]}",
                        "the worker's log has why they died",
                    )
                )
            elif state.state in _READY and state.ready < state.replicas:
                found.append(
                    warn(
                        f"{where} has {state.ready} of {state.replicas} processes",
                        "they may be loading still; else see the worker's log",
                    )
                )
    # A pipeline needs no worker of its own, and `errands` looks after it.
    missing = sorted(set(site.catalog.models) - served)
    if missing:
        found.append(
            warn(
                f"no worker serves {named(missing)}",
                "give the workers the same models file as the API, and restart them",
            )
        )
    return worst(found, ok(f"{len(served)} served: {named(sorted(served))}"))
