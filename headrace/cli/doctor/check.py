"""A check and its result (a verdict, a sentence and a hint), and how checks are run.

A check that raises or hangs becomes a line of the report.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redis.exceptions import NoPermissionError, RedisError

from headrace.cli.doctor.deployment import CheckSkipped, Deployment
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import error_line
from headrace.errors import HeadraceError
from headrace.schema.overview import Finding

CONFIG: Final = "Configuration"
REDIS: Final = "Redis"
WORKERS: Final = "Workers and API"
WORK: Final = "Work"
DEVICES: Final = "Devices"
HOST: Final = "This host"
#: The groups of checks, in the order of the report.
GROUPS: Final = (CONFIG, REDIS, WORKERS, WORK, DEVICES, HOST)


class Verdict(StrEnum):
    """The verdict of a check, the worst last."""

    SKIP = "skip"
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_ORDER: Final = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        sentence: what the check found, on one line.
        hint: what to do; empty if there is nothing to do.
        parts: the sentence and the hint of each problem, if there are several.
    """

    verdict: Verdict
    sentence: str
    hint: str = ""
    code: ExitCode = ExitCode.FAILED
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: its name in the report and in docs/doctor.md.
        run: returns the result, or yields every problem and last the result without problems; it
            may raise any exception, and may hang.
        background: it takes seconds, and runs while the others run.
    """

    name: str
    group: str
    run: Callable[[Deployment], CheckResult | Iterator[CheckResult]]
    limit_s: float = 15.0
    background: bool = False


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check, its result and its run time in seconds."""

    check: Check
    result: CheckResult
    took_s: float


def ok(sentence: str) -> CheckResult:
    """Return an ok result."""
    return CheckResult(Verdict.OK, sentence)


def warn(sentence: str, hint: str) -> CheckResult:
    """Return a warning: it works, but may stop working, or could work better."""
    return CheckResult(Verdict.WARN, sentence, hint)


def fail(sentence: str, hint: str, code: ExitCode = ExitCode.FAILED) -> CheckResult:
    """Return a failure: it does not work, or loses jobs."""
    return CheckResult(Verdict.FAIL, sentence, hint, code)


def skip(sentence: str, hint: str = "") -> CheckResult:
    """Return a skipped result: there was nothing to check."""
    return CheckResult(Verdict.SKIP, sentence, hint)


def results_of(findings: Iterable[Finding], check: str = "") -> Iterator[CheckResult]:
    """Yield findings as results; with a name of a check only its own."""
    for finding in findings:
        if check in ("", finding.check):
            yield CheckResult(Verdict(finding.severity), finding.text, finding.hint)


def worst(results: Iterable[CheckResult]) -> CheckResult:
    """Combine the results of one check to one, from those with the worst verdict."""
    found = list(results)
    verdict = max((one.verdict for one in found), key=_ORDER.index)
    found = [one for one in found if one.verdict is verdict]
    hints = dict.fromkeys(one.hint for one in found if one.hint)
    sentence = "; ".join(one.sentence for one in found)
    parts = tuple((one.sentence, one.hint) for one in found) if len(found) > 1 else ()
    return CheckResult(verdict, sentence, "; ".join(hints), max(one.code for one in found), parts)


def run_checks(deployment: Deployment, checks: Sequence[Check]) -> Iterator[CheckRun]:
    """Run the checks, some in the background; yield results in order, background ones last."""
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
        threading.Thread(target=self._run, name=f"doctor-{check.name}", daemon=True).start()

    def _run(self) -> None:
        result = _result_of(self._check, self._deployment)
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


def _result_of(check: Check, deployment: Deployment) -> CheckResult:
    try:
        found = check.run(deployment)
        return found if isinstance(found, CheckResult) else worst(found)
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
