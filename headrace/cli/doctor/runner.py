"""Does the checks, each for itself: one that raises or hangs becomes a line, and ends no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis.exceptions import NoPermissionError, RedisError

from headrace.cli.doctor.check import Check, CheckResult, CheckSkipped, fail, skip
from headrace.cli.doctor.deployment import Deployment, sentence
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Result:
    """A check, and what it has found."""

    check: Check
    finding: CheckResult
    took_s: float


def rounds(site: Deployment, checks: Sequence[Check]) -> Iterator[Result]:
    """Do the checks in their order; those that take their time run beside the others.

    Yields:
        A result for each check, in the order of the checks within those that are done in turn;
        what ran beside comes last.
    """
    beside = [(check, _Look(site, check)) for check in checks if check.beside]
    for check in checks:
        if not check.beside:
            yield _Look(site, check).result()
    for _, look in beside:
        yield look.result()


class _Look:
    """One check, begun in a thread of its own, which keeps nobody alive should it hang."""

    def __init__(self, site: Deployment, check: Check) -> None:
        self._site, self._check = site, check
        self._began_s = time.monotonic()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        threading.Thread(target=self._do, name=f"doctor-{check.name}", daemon=True).start()

    def _do(self) -> None:
        finding = _finding(self._site, self._check)
        self._results.put(Result(self._check, finding, time.monotonic() - self._began_s))

    def result(self) -> Result:
        """What was found, once it is, or once the check's time is up."""
        left_s = self._check.limit_s - (time.monotonic() - self._began_s)
        try:
            return self._results.get(timeout=max(left_s, 0.001))
        except queue.Empty:
            hung = fail(
                f"did not end within {self._check.limit_s:g} s",
                "what it looks at hangs; run it again, and look there",
            )
            return Result(self._check, hung, time.monotonic() - self._began_s)


def _finding(site: Deployment, check: Check) -> CheckResult:
    try:
        return check.look(site)
    except CheckSkipped as error:
        return skip(str(error))
    except NoPermissionError as error:
        return skip(f"this user of Redis may not look: {sentence(error)}")
    except RedisError as error:
        return fail(f"Redis: {sentence(error)}", "see the line of `redis`, and the server's log")
    except HeadraceError as error:
        return fail(sentence(error), error.hint)
    except Exception as error:  # noqa: BLE001 - a check that fails is a line, whatever it met
        return fail(f"the check itself failed: {type(error).__name__}: {sentence(error)}", "")
