"""What this extension adds."""

from __future__ import annotations

from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _top() -> Any:
    from extensions.top.cli.command import top

    return top


EXTENSION: Final = Extension(
    name="top",
    summary="The live view of queues, models, hosts and devices",
    commands={"top": Command(load=_top)},
)
