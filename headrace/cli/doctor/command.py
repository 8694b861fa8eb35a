"""`headrace doctor`: the report of headrace.cli.doctor, for people and as JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

from headrace.cli.doctor.check import Verdict
from headrace.cli.doctor.deployment import Deployment, DoctorOptions
from headrace.cli.doctor.registry import CHECKS
from headrace.cli.doctor.runner import Result, rounds
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode

_COLOURS: Final = {
    Verdict.OK: typer.colors.GREEN,
    Verdict.WARN: typer.colors.YELLOW,
    Verdict.FAIL: typer.colors.RED,
    Verdict.SKIP: typer.colors.BRIGHT_BLACK,
}
#: Of what one check has found, so many are shown.
_PARTS_MAX: Final = 10
_NAME_CHARS: Final = max(len(check.name) for check in CHECKS)


def examine(
    redis_url: str | None,
    models: Path | None,
    api_url: str | None,
    *,
    strict: bool,
    as_json: bool,
) -> int:
    """Do all checks and print what they find; the exit code."""
    site = Deployment(DoctorOptions(redis_url, models, api_url), os.environ)
    try:
        results = _printed(rounds(site, CHECKS), as_json=as_json)
    finally:
        site.close()
    if not as_json:
        _say_sum(results)
    return exit_code_of(results, strict=strict)


def exit_code_of(results: Iterable[Result], *, strict: bool) -> ExitCode:
    """The highest code of what failed; with `strict`, a warning counts as a failure."""
    codes = [ExitCode.DONE]
    for result in results:
        if result.finding.verdict is Verdict.FAIL:
            codes.append(result.finding.code)
        elif strict and result.finding.verdict is Verdict.WARN:
            codes.append(ExitCode.FAILED)
    return max(codes)


def _printed(found: Iterable[Result], *, as_json: bool) -> list[Result]:
    results, group = [], ""
    for result in found:
        results.append(result)
        if as_json:
            output.json_line(_said(result))
            continue
        if result.check.group != group and not result.check.beside:
            group = result.check.group
            output.line(f"{'' if len(results) == 1 else chr(10)}{_styled(group, bold=True)}")
        if result.check.beside and group:
            group = ""
            output.line(f"\n{_styled('What takes longer', bold=True)}")
        for text in _lines(result):
            output.line(text)
    return results


def _said(result: Result) -> dict[str, object]:
    finding = result.finding
    return {
        "check": result.check.name,
        "group": result.check.group,
        "verdict": str(finding.verdict),
        "text": output.printable(finding.sentence),
        "hint": finding.hint or None,
        "took_ms": round(result.took_s * 1000, 1),
    }


def _lines(result: Result) -> list[str]:
    finding = result.finding
    coloured = _styled(f"{finding.verdict:<4}", fg=_COLOURS[finding.verdict])
    head, below = f"  {coloured}  {result.check.name:<{_NAME_CHARS}}  ", " " * (_NAME_CHARS + 10)
    parts = finding.parts or ((finding.sentence, finding.hint),)
    lines: list[str] = []
    shown = parts[:_PARTS_MAX]
    for n, (sentence, hint) in enumerate(shown, 1):
        lines.append((below if lines else head) + output.printable(" ".join(sentence.split())))
        # What is to be done about several of them stands once, behind the last.
        done_later = n < len(shown) and shown[n][1] == hint
        if hint and not done_later and finding.verdict is not Verdict.OK:
            lines.append(f"{below}-> {output.printable(hint)}")
    if len(parts) > _PARTS_MAX:
        lines.append(f"{below}and {len(parts) - _PARTS_MAX} more; --json has them")
    return lines


def _say_sum(results: list[Result]) -> None:
    counts = Counter(result.finding.verdict for result in results)
    said = [f"{counts[verdict]} {verdict}" for verdict in reversed(Verdict) if counts[verdict]]
    output.line(f"\n{output.count(len(results), 'check')}: {', '.join(said)}")


def _styled(text: str, **style: object) -> str:
    """Coloured on a terminal, and plain everywhere else."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, **style)  # type: ignore[arg-type]
