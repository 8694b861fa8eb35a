"""What this extension adds."""

from __future__ import annotations

from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _bench() -> Any:
    from extensions.tuning.cli.bench import bench_group

    return bench_group


def _optimize() -> Any:
    from extensions.tuning.cli.optimize import optimize

    return optimize


def _profile() -> Any:
    from extensions.tuning.cli.profile import profile

    return profile


def _tune() -> Any:
    from extensions.tuning.cli.tune import tune

    return tune


EXTENSION: Final = Extension(
    name="tuning",
    summary="The commands that measure, optimize, profile and tune models",
    commands={
        "bench": Command(load=_bench),
        "optimize": Command(load=_optimize),
        "profile": Command(load=_profile),
        "tune": Command(load=_tune),
    },
)
