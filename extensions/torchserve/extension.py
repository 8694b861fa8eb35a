"""What this extension adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headrace.config.extensions import Command, Extension


def _torchserve() -> Any:
    from headrace.cli.torchserve import torchserve

    return torchserve


#: Its options are TorchServe's, and argparse reads them as TorchServe does.
_FREE: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

EXTENSION: Final = Extension(
    name="torchserve",
    summary="TorchServe's URLs, handlers, archives, logs, metrics and command",
    commands={"torchserve": Command(load=_torchserve, context=_FREE)},
    settings=lambda: Path,
)
