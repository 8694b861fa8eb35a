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


def _offline() -> Any:
    from extensions.runs.offline import offline

    return offline


def _offline_async() -> Any:
    from extensions.runs.offline_async import offline_async

    return offline_async


def _read_rows() -> Any:
    from extensions.runs.rows import read_rows

    return read_rows


EXTENSION: Final = Extension(
    name="runs",
    summary="Offline runs: many inputs through one model, from files and S3 into files and S3",
    commands={"run": Command(load=_run), "runs": Command(load=_runs)},
    exports={
        "headrace.client.offline.run": _offline,
        "headrace.client.offline.run_async": _offline_async,
        "headrace.client.offline.read_rows": _read_rows,
    },
)
