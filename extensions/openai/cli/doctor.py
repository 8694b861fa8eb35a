"""The check that this extension adds to `headrace doctor`."""

from __future__ import annotations

from typing import Final

from extensions.openai.redis import keys as batch_keys
from headrace.cli.doctor.check import WORK, Check, CheckResult, fail, ok, skip
from headrace.cli.doctor.deployment import Deployment
from headrace.text import count


def batches(deployment: Deployment) -> CheckResult:
    """`batches`: a runner processes the open batches."""
    runners = deployment.redis.zcard(batch_keys.RUNNERS)
    waiting = int(deployment.redis.zcard(batch_keys.OPEN_BATCHES))
    if waiting and not runners:
        return fail(f"{_batches(waiting)} open, but no runner runs", "start one: headrace runner")
    if not runners:
        return skip("no runner runs, and none is needed")
    return ok(f"{_batches(waiting)} open, {count(runners, 'runner')}")


def _batches(number: int) -> str:
    return f"{number:,} {'batch' if number == 1 else 'batches'}"


CHECKS: Final = (Check("batches", WORK, batches),)
