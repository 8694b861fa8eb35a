"""`headrace doctor`: prints the report, as text or as JSON."""

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
from headrace.cli.doctor.runner import CheckRun, run_checks
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode

_COLOURS: Final = {
    Verdict.OK: typer.colors.GREEN,
    Verdict.WARN: typer.colors.YELLOW,
    Verdict.FAIL: typer.colors.RED,
    Verdict.SKIP: typer.colors.BRIGHT_BLACK,
}
#: Maximum number of problems that are printed per check.
_PARTS_MAX: Final = 10
#: Heading of the checks that run in the background.
SLOW_CHECKS: Final = "Slow checks"
_NAME_CHARS: Final = max(len(check.name) for check in CHECKS)


def examine(
    redis_url: str | None,
    models: Path | None,
    api_url: str | None,
    *,
    strict: bool,
    as_json: bool,
) -> int:
    """Run all checks, print the report and return the exit code."""
    deployment = Deployment(DoctorOptions(redis_url, models, api_url), os.environ)
    try:
        results = _printed(run_checks(deployment, CHECKS), as_json=as_json)
    finally:
        deployment.close()
    if not as_json:
        _print_summary(results)
    return exit_code_of(results, strict=strict)


def exit_code_of(runs: Iterable[CheckRun], *, strict: bool) -> ExitCode:
    """Return the highest exit code of the failures; with `strict`, warnings are failures."""
    codes = [ExitCode.DONE]
    for run in runs:
        if run.result.verdict is Verdict.FAIL:
            codes.append(run.result.code)
        elif strict and run.result.verdict is Verdict.WARN:
            codes.append(ExitCode.FAILED)
    return max(codes)


def _printed(runs: Iterable[CheckRun], *, as_json: bool) -> list[CheckRun]:
    printed: list[CheckRun] = []
    group = ""
    for run in runs:
        printed.append(run)
        if as_json:
            output.json_line(_json_object(run))
            continue
        heading = SLOW_CHECKS if run.check.background else run.check.group
        if heading != group:
            group = heading
            output.line(f"{'' if len(printed) == 1 else chr(10)}{_styled(group, bold=True)}")
        for text in _lines(run):
            output.line(text)
    return printed


def _json_object(run: CheckRun) -> dict[str, object]:
    result = run.result
    return {
        "check": run.check.name,
        "group": run.check.group,
        "verdict": str(result.verdict),
        "text": output.printable(result.sentence),
        "hint": result.hint or None,
        "took_ms": round(run.took_s * 1000, 1),
    }


def _lines(run: CheckRun) -> list[str]:
    result = run.result
    coloured = _styled(f"{result.verdict:<4}", fg=_COLOURS[result.verdict])
    head, below = f"  {coloured}  {run.check.name:<{_NAME_CHARS}}  ", " " * (_NAME_CHARS + 10)
    parts = result.parts or ((result.sentence, result.hint),)
    lines: list[str] = []
    shown = parts[:_PARTS_MAX]
    for n, (sentence, hint) in enumerate(shown, 1):
        lines.append((below if lines else head) + output.printable(" ".join(sentence.split())))
        # A hint that several problems share is printed once, after the last of them.
        hint_follows = n < len(shown) and shown[n][1] == hint
        if hint and not hint_follows and result.verdict is not Verdict.OK:
            lines.append(f"{below}-> {output.printable(hint)}")
    if len(parts) > _PARTS_MAX:
        lines.append(f"{below}and {len(parts) - _PARTS_MAX} more; --json has them")
    return lines


def _print_summary(runs: list[CheckRun]) -> None:
    counts = Counter(run.result.verdict for run in runs)
    parts = [f"{counts[verdict]} {verdict}" for verdict in reversed(Verdict) if counts[verdict]]
    output.line(f"\n{output.count(len(runs), 'check')}: {', '.join(parts)}")


def _styled(text: str, **style: object) -> str:
    """Return text that is styled on a terminal and plain elsewhere."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, **style)  # type: ignore[arg-type]
