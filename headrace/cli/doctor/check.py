"""What a check is, and what it gives: a verdict, a sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.cli.shared.exit_codes import ExitCode

if TYPE_CHECKING:
    from headrace.cli.doctor.deployment import Deployment

#: So many things are named in a sentence; of more it says how many.
NAMED_MAX: Final = 3


class Verdict(StrEnum):
    """How a check came out, the worst last."""

    SKIP = "skip"
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_ORDER: Final = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found.

    Attributes:
        verdict: how it came out.
        sentence: what was seen, in a line.
        hint: what to do about it; empty where there is nothing to do.
        code: the exit code of a failure.
        parts: where several things were found, the sentence and the hint of each.
    """

    verdict: Verdict
    sentence: str
    hint: str = ""
    code: ExitCode = ExitCode.FAILED
    parts: tuple[tuple[str, str], ...] = ()


class CheckSkipped(Exception):
    """A check has nothing to look at, or may not look; its text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: what it is called, in the report and in docs/doctor.md.
        group: the heading that it stands under.
        look: looks; may raise anything, and may hang.
        limit_s: for so long.
        beside: it takes seconds of its own and is done beside the others.
    """

    name: str
    group: str
    look: Callable[[Deployment], CheckResult]
    limit_s: float = 15.0
    beside: bool = False


def ok(sentence: str) -> CheckResult:
    """All is well."""
    return CheckResult(Verdict.OK, sentence)


def warn(sentence: str, hint: str) -> CheckResult:
    """It works, and may not for long, or not as well as it could."""
    return CheckResult(Verdict.WARN, sentence, hint)


def fail(sentence: str, hint: str, code: ExitCode = ExitCode.FAILED) -> CheckResult:
    """It does not work, or loses jobs."""
    return CheckResult(Verdict.FAIL, sentence, hint, code)


def skip(sentence: str, hint: str = "") -> CheckResult:
    """There was nothing to look at."""
    return CheckResult(Verdict.SKIP, sentence, hint)


def worst(findings: Sequence[CheckResult], otherwise: CheckResult) -> CheckResult:
    """Several findings of one check as one: those of the worst verdict, in one sentence.

    Args:
        findings: what was found wrong.
        otherwise: what to say where nothing was.
    """
    if not findings:
        return otherwise
    verdict = max((one.verdict for one in findings), key=_ORDER.index)
    found = [one for one in findings if one.verdict is verdict]
    hints = dict.fromkeys(one.hint for one in found if one.hint)
    sentence = "; ".join(one.sentence for one in found)
    parts = tuple((one.sentence, one.hint) for one in found) if len(found) > 1 else ()
    return CheckResult(verdict, sentence, "; ".join(hints), max(one.code for one in found), parts)


def named(names: Sequence[str]) -> str:
    """Names in a sentence: the first few, and how many more there are."""
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def size(number: float) -> str:
    """Bytes as people read them: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
