"""A check and its result: a verdict, a sentence and a hint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.cli.shared.exit_codes import ExitCode

if TYPE_CHECKING:
    from headrace.cli.doctor.deployment import Deployment

#: A sentence lists at most this many names, and then the number of further names.
NAMED_MAX: Final = 3


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
        verdict: the verdict.
        sentence: what the check found, on one line.
        hint: what to do; empty if there is nothing to do.
        code: the exit code of a failure.
        parts: the sentence and the hint of each problem, if there are several.
    """

    verdict: Verdict
    sentence: str
    hint: str = ""
    code: ExitCode = ExitCode.FAILED
    parts: tuple[tuple[str, str], ...] = ()


class CheckSkipped(Exception):
    """A check has nothing to check, or lacks permission; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: its name in the report and in docs/doctor.md.
        group: its heading in the report.
        run: the function; it may raise any exception, and may hang.
        limit_s: maximum run time in seconds.
        background: it takes seconds, and runs while the others run.
    """

    name: str
    group: str
    run: Callable[[Deployment], CheckResult]
    limit_s: float = 15.0
    background: bool = False


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


def worst(results: Sequence[CheckResult], otherwise: CheckResult) -> CheckResult:
    """Combine several results of one check to one, from those with the worst verdict.

    Args:
        results: the problems.
        otherwise: the result without problems.
    """
    if not results:
        return otherwise
    verdict = max((one.verdict for one in results), key=_ORDER.index)
    found = [one for one in results if one.verdict is verdict]
    hints = dict.fromkeys(one.hint for one in found if one.hint)
    sentence = "; ".join(one.sentence for one in found)
    parts = tuple((one.sentence, one.hint) for one in found) if len(found) > 1 else ()
    return CheckResult(verdict, sentence, "; ".join(hints), max(one.code for one in found), parts)


def named(names: Sequence[str]) -> str:
    """Return names for a sentence: the first few, and the number of the others."""
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def size(number: float) -> str:
    """Return a number of bytes as text: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
