"""What this extension adds."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _command(name: str, function: str = "") -> Command:
    def load() -> Any:
        return getattr(import_module(f".cli.{name}", __package__), function or name)

    return Command(load=load)


EXTENSION: Final = Extension(
    name="tuning",
    summary="The commands that measure, optimize, profile and tune models",
    commands={
        "bench": _command("bench", "bench_group"),
        "optimize": _command("optimize"),
        "profile": _command("profile"),
        "tune": _command("tune"),
    },
)
