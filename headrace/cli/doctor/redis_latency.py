"""Does Redis answer quickly: now, of late, and while it forks?"""

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
#: Each job takes several round trips of one worker; a batch waits for one.
TYPICAL_MS: Final = 5.0
LONGEST_MS: Final = 200.0
FORK_MS: Final = 500.0
LATELY_S: Final = 900
SLOW_MS: Final = 100.0
SAMPLE: Final = 1000
#: What always has a TTL.
BOUNDED: Final = (
    b"celery-task-meta-", b"hr:worker:", b"hr:api:", b"hr:run:", b"hr:errands:alive:",
    b"hr:jobs:", b"hr:rate:", b"hr:batch:", b"hr:letter:",
)  # fmt: skip
OURS: Final = (b"hr:", b"headrace", b"celery", b"_kombu", b"unacked")


def latency(site: Deployment) -> CheckResult:
    """`redis-latency`: how long some PINGs and a script take."""
    client, source = site.redis, script("queues/depth").source
    pings = [_ms(client.ping) for _ in range(PINGS)]
    scripts = [
        _ms(lambda: client.eval(source, 0, keys.queue_name("doctor"))) for _ in range(SCRIPTS)
    ]
    typical, longest = median(pings), max(*pings, *scripts)
    text = (
        f"PING {typical:.2f} ms in the middle, a script {median(scripts):.2f} ms, "
        f"{longest:.1f} ms at the most"
    )
    if typical > TYPICAL_MS:
        return warn(text, "put Redis nearer to the workers: a job needs several round trips")
    if longest > LONGEST_MS:
        return warn(
            text, "it stood still for a moment: see `redis-slow`, `redis-fork`, and its host's load"
        )
    return ok(text)


def slow_commands(site: Deployment) -> CheckResult:
    """`redis-slow`: commands of the last quarter of an hour that held all others up."""
    now_s, _ = site.redis.time()
    rows = [
        row
        for row in site.redis.slowlog_get(128)
        if row["start_time"] > now_s - LATELY_S and row["duration"] > SLOW_MS * 1000
    ]
    if not rows:
        return ok(f"no command took more than {SLOW_MS:g} ms in the last {LATELY_S // 60} min")
    names = [bytes(row["command"]).split(b" ")[0].decode("ascii", "replace") for row in rows]
    longest = max(row["duration"] for row in rows) / 1000
    return warn(
        f"{len(rows)} commands took more than {SLOW_MS:g} ms in the last {LATELY_S // 60} min, "
        f"{longest:.0f} ms at the most: {named(sorted(set(names)))}",
        "SLOWLOG GET shows them; KEYS and the like of other applications hold up every job",
    )


def fork(site: Deployment) -> CheckResult:
    """`redis-fork`: how long it stood still for its last snapshot or rewrite."""
    fork_ms = int(site.info.get("latest_fork_usec", 0)) / 1000
    if not fork_ms:
        return skip("it has not forked since its start")
    text = f"its last fork took {fork_ms:.0f} ms"
    if fork_ms > FORK_MS:
        return warn(text, "no job moves meanwhile: keep payloads elsewhere (payload_store)")
    return ok(text)


def strays(site: Deployment) -> CheckResult:
    """`redis-keys`: keys that should run out by themselves and do not, in a sample."""
    _, found = site.redis.scan(count=SAMPLE)
    bounded = [raw for raw in found if raw.startswith(BOUNDED)]
    with site.redis.pipeline(transaction=False) as pipe:
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
                f"{len(forever)} of {len(found)} keys looked at never run out: {named(forever)}",
                "they are no work of this version: DEL them once nobody needs them",
            )
        )
    shared = f", {len(foreign)} of them not ours" if foreign else ""
    return worst(problems, ok(f"{len(found)} keys looked at{shared}: none that stays for ever"))


def _ms(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1000


def clock_skew_s(site: Deployment) -> float:
    """How far this host's clock is ahead of Redis', to half a round trip."""
    before_s = time.time()
    seconds, micros = site.redis.time()
    middle_s = (before_s + time.time()) / 2
    return float(middle_s - (seconds + micros / US_PER_S))
