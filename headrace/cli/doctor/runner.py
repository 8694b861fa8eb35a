"""Runs the checks. A check that raises or hangs becomes a line of the report."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis.exceptions import NoPermissionError, RedisError

from headrace.cli.doctor.check import Check, CheckResult, CheckSkipped, fail, skip
from headrace.cli.doctor.deployment import Deployment, error_line
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check, its result and its run time in seconds."""

    check: Check
    result: CheckResult
    took_s: float


def run_checks(deployment: Deployment, checks: Sequence[Check]) -> Iterator[CheckRun]:
    """Run the checks in their order; background checks run while the others run.

    Yields:
        A result for each check in their order; those of background checks come last.
    """
    background = [_CheckThread(deployment, check) for check in checks if check.background]
    for check in checks:
        if not check.background:
            yield _CheckThread(deployment, check).result()
    for thread in background:
        yield thread.result()


class _CheckThread:
    """One check in a daemon thread, so that a hanging check does not block the exit."""

    def __init__(self, deployment: Deployment, check: Check) -> None:
        self._deployment, self._check = deployment, check
        self._began_s = time.monotonic()
        self._results: queue.SimpleQueue[CheckRun] = queue.SimpleQueue()
        threading.Thread(target=self._do, name=f"doctor-{check.name}", daemon=True).start()

    def _do(self) -> None:
        result = _run(self._deployment, self._check)
        self._results.put(CheckRun(self._check, result, time.monotonic() - self._began_s))

    def result(self) -> CheckRun:
        """Return the result once the check has ended, or a failure at its time limit."""
        left_s = self._check.limit_s - (time.monotonic() - self._began_s)
        try:
            return self._results.get(timeout=max(left_s, 0.001))
        except queue.Empty:
            hung = fail(
                f"did not end within {self._check.limit_s:g} s",
                "what it checks is hanging; run it again, and look there",
            )
            return CheckRun(self._check, hung, time.monotonic() - self._began_s)


def _run(deployment: Deployment, check: Check) -> CheckResult:
    try:
        return check.run(deployment)
    except CheckSkipped as error:
        return skip(str(error))
    except NoPermissionError as error:
        return skip(f"this user of Redis lacks permission: {error_line(error)}")
    except RedisError as error:
        return fail(f"Redis: {error_line(error)}", "see the check `redis`, and the server's log")
    except HeadraceError as error:
        return fail(error_line(error), error.hint)
    except Exception as error:  # noqa: BLE001 - any error of a check becomes a line
        return fail(f"the check itself failed: {type(error).__name__}: {error_line(error)}", "")
