"""What this extension adds."""

from __future__ import annotations

from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _run() -> Any:
    from extensions.runs.cli.run import run

    return run


def _runs() -> Any:
    from extensions.runs.cli.runs import runs_group

    return runs_group


def _run_offline() -> Any:
    from extensions.runs.offline import run_offline

    return run_offline


EXTENSION: Final = Extension(
    name="runs",
    summary="Offline runs: many inputs through one model, from files and S3 into files and S3",
    commands={"run": Command(load=_run), "runs": Command(load=_runs)},
    exports={"headrace.runs.offline.run_offline": _run_offline},
)
