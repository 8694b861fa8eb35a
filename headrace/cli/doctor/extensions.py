"""The check of the extensions, and the checks that extensions add."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Final

import msgspec

from headrace.cli.doctor.check import Check, CheckResult, Verdict, fail
from headrace.cli.doctor.deployment import Deployment
from headrace.config.extensions import POINTS, found, loaded, parts, settings_types
from headrace.config.user_environment import with_server_path

_PROGRAM: Final = "from headrace.cli.doctor.extensions import print_found; print_found()"
_LIMIT_S: Final = 60
_HINT: Final = "install what it needs here, or remove its distribution"


class _Seen(msgspec.Struct):
    summaries: dict[str, str]
    problems: dict[str, str]


def extensions(deployment: Deployment) -> CheckResult:
    """`extensions`: each extension can be imported, with its parts that this host can run."""
    # In a process of its own, as parts import what servers import.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=with_server_path(deployment.environ),
        capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    try:
        seen = msgspec.json.decode(done.stdout, type=_Seen)
    except msgspec.DecodeError:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return fail(f"extensions end the process that imports them: {lines[-1][:200]}", _HINT)
    problems = [(f"{name}: {problem}", _HINT) for name, problem in seen.problems.items()]
    listed = [(f"{name}: {summary}", "") for name, summary in seen.summaries.items()]
    if problems:
        sentence = "; ".join(text for text, _ in problems)
        return CheckResult(Verdict.WARN, sentence, _HINT, parts=(*problems, *listed))
    sentence = "; ".join(text for text, _ in listed) or "none is installed"
    return CheckResult(Verdict.OK, sentence, parts=tuple(listed))


def print_found() -> None:
    """Import all parts of all extensions, and print what was found as JSON."""
    for point, (module, kind) in POINTS.items():
        try:
            part = getattr(importlib.import_module(module), kind)
        except ImportError:
            continue  # this host cannot run the process that asks there
        parts(point, part)
    settings_types()
    extension_checks()
    for name, extension in found().extensions.items():
        for command, of_it in extension.commands.items():
            loaded(name, f"command `{command}`", of_it.load)
    summaries = {name: extension.summary for name, extension in found().extensions.items()}
    sys.stdout.buffer.write(msgspec.json.encode(_Seen(summaries, found().problems)))


def extension_checks() -> list[Check]:
    """Return the checks that extensions add."""
    return [check for checks in parts("checks", tuple).values() for check in checks]
