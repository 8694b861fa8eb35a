"""Extensions that are installed for a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from api.extension import api_parts
from handlers.extension import handler_parts, tensor_parts
from headrace.cli.main import every_command
from headrace.config.extensions import GROUP, Extension, found, settings_types
from headrace.models.extension import models_parts
from workers.extension import worker_parts

_MODULE = "made_by_tests"


@contextmanager
def installed(*extensions: Extension, missing: str = "") -> Iterator[None]:
    """These are all extensions of this Python; `missing` names one that cannot be imported."""
    module = ModuleType(_MODULE)
    for extension in extensions:
        setattr(module, extension.name, extension)
    names = [extension.name for extension in extensions]
    entries = [EntryPoint(name, f"{_MODULE}:{name}", GROUP) for name in names]
    if missing:
        entries.append(EntryPoint(missing, "not_installed:EXTENSION", GROUP))
    with (
        patch("importlib.metadata.entry_points", lambda group: entries),
        patch.dict(sys.modules, {_MODULE: module}),
    ):
        _forget()
        try:
            yield
        finally:
            _forget()


def write_distribution(folder: Path, name: str, source: str) -> None:
    """Install a distribution into a folder: one module, with its `EXTENSION`."""
    (folder / f"{name}_extension.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}_extension:EXTENSION\n")


def _forget() -> None:
    for cached in (
        found, settings_types, every_command, api_parts, handler_parts, tensor_parts, models_parts,
        worker_parts,
    ):  # fmt: skip
        cached.cache_clear()
