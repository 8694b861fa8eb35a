"""Imports a handler's file whose name is taken, or cannot be the name of a module.

Its module has a name made of its path. A process that the handler spawns can import that name too,
as it has the same `sys.path`.
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

from typing_extensions import override

_PREFIX: Final = "headrace_file_"


def module_name(path: Path) -> str:
    """Return the name of the module of a file."""
    return f"{_PREFIX}{zlib.crc32(bytes(path)):08x}"


class HandlerFiles(MetaPathFinder):
    """Finds the file of such a name in the folders of `sys.path`."""

    @override
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        for entry in sys.path:
            for file in Path(entry or ".").resolve().glob("*"):
                if module_name(file) == fullname and file.is_file():
                    loader = SourceFileLoader(fullname, str(file))
                    return importlib.util.spec_from_file_location(fullname, file, loader=loader)
        return None


def install() -> None:
    """Let this process find such modules."""
    if not any(isinstance(finder, HandlerFiles) for finder in sys.meta_path):
        sys.meta_path.append(HandlerFiles())
