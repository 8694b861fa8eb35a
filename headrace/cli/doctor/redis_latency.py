"""Checks that Redis answers quickly: now, recently, and during a fork."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

from headrace.cli.doctor.check import CheckResult, named, ok, skip, warn, worst
from headrace.cli.doctor.deployment import Deployment
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import script

PINGS: Final = 50
SCRIPTS: Final = 10
#: Each job takes several round trips of a worker; a batch waits for one.
TYPICAL_MS: Final = 5.0
LONGEST_MS: Final = 200.0
FORK_MS: Final = 500.0
LATELY_S: Final = 900
SLOW_MS: Final = 100.0
SAMPLE: Final = 1000
#: Prefixes of keys that always have a TTL.
BOUNDED: Final = (
    b"celery-task-meta-", b"hr:worker:", b"hr:api:", b"hr:run:", b"hr:errands:alive:",
    b"hr:jobs:", b"hr:rate:", b"hr:batch:", b"hr:letter:",
)  # fmt: skip
OURS: Final = (b"hr:", b"headrace", b"celery", b"_kombu", b"unacked")


def latency(deployment: Deployment) -> CheckResult:
    """`redis-latency`: PINGs and a script are fast."""
    client, source = deployment.redis, script("queues/depth").source
    pings = [_ms(client.ping) for _ in range(PINGS)]
    scripts = [
        _ms(lambda: client.eval(source, 0, keys.queue_name("doctor"))) for _ in range(SCRIPTS)
    ]
    typical, longest = median(pings), max(*pings, *scripts)
    text = (
        f"median PING {typical:.2f} ms, median script {median(scripts):.2f} ms, "
        f"longest {longest:.1f} ms"
    )
    if typical > TYPICAL_MS:
        return warn(text, "move Redis nearer to the workers: a job needs several round trips")
    if longest > LONGEST_MS:
        return warn(
            text, "it paused for a moment: see `redis-slow`, `redis-fork`, and its host's load"
        )
    return ok(text)


def slow_commands(deployment: Deployment) -> CheckResult:
    """`redis-slow`: no command of the last 15 minutes blocked all others."""
    now_s, _ = deployment.redis.time()
    rows = [
        row
        for row in deployment.redis.slowlog_get(128)
        if row["start_time"] > now_s - LATELY_S and row["duration"] > SLOW_MS * 1000
    ]
    if not rows:
        return ok(f"no command took more than {SLOW_MS:g} ms in the last {LATELY_S // 60} min")
    names = [bytes(row["command"]).split(b" ")[0].decode("ascii", "replace") for row in rows]
    longest = max(row["duration"] for row in rows) / 1000
    return warn(
        f"{len(rows)} commands took more than {SLOW_MS:g} ms in the last {LATELY_S // 60} min, "
        f"longest {longest:.0f} ms: {named(sorted(set(names)))}",
        "SLOWLOG GET shows them; KEYS and similar commands of other applications delay every job",
    )


def fork(deployment: Deployment) -> CheckResult:
    """`redis-fork`: the fork for the last snapshot or rewrite was fast."""
    fork_ms = int(deployment.info.get("latest_fork_usec", 0)) / 1000
    if not fork_ms:
        return skip("Redis has not forked since its start")
    text = f"the last fork took {fork_ms:.0f} ms"
    if fork_ms > FORK_MS:
        return warn(text, "it blocks every job: store payloads elsewhere (payload_store)")
    return ok(text)


def strays(deployment: Deployment) -> CheckResult:
    """`redis-keys`: keys that should expire have a TTL, in a sample."""
    _, found = deployment.redis.scan(count=SAMPLE)
    bounded = [raw for raw in found if raw.startswith(BOUNDED)]
    with deployment.redis.pipeline(transaction=False) as pipe:
        for raw in bounded:
            pipe.ttl(raw)
        ttls = pipe.execute()
    forever = [raw.decode("utf-8", "replace") for raw, ttl in zip(bounded, ttls, strict=True)
               if ttl == -1]  # fmt: skip
    foreign = [raw for raw in found if not raw.startswith(OURS)]
    problems = []
    if forever:
        problems.append(
            warn(
                f"{len(forever)} of {len(found)} sampled keys never expire: {named(forever)}",
                "this version did not write them: DEL them if nothing needs them",
            )
        )
    shared = f", {len(foreign)} of other applications" if foreign else ""
    return worst(problems, ok(f"{len(found)} sampled keys{shared}: no TTL is missing"))


def _ms(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1000


def clock_skew_s(deployment: Deployment) -> float:
    """Return by how much this host's clock is ahead of Redis', to half a round trip."""
    before_s = time.time()
    seconds, micros = deployment.redis.time()
    middle_s = (before_s + time.time()) / 2
    return float(middle_s - (seconds + micros / US_PER_S))
