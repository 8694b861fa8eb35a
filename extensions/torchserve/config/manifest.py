"""The parts of an archive's manifest and model-config.yaml that are no model options.

It is for descriptions: a file that cannot be read counts as empty.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

import yaml

MANIFEST: Final = "MAR-INF/MANIFEST.json"
_MAX_BYTES: Final = 1024 * 1024


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in the folder of an archive; {} without one."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = folder / MANIFEST
        if path.stat().st_size <= _MAX_BYTES:
            found = json.loads(path.read_bytes())
            return found if isinstance(found, dict) else {}
    return {}


def read_settings(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, flags and texts at the top level of a model's model-config.yaml."""
    model = manifest.get("model")
    name = model.get("configFile") if isinstance(model, dict) else None
    if not isinstance(name, str) or not name or ".." in Path(name).parts:
        return {}
    with contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        path = folder / name.lstrip("/")
        if path.stat().st_size <= _MAX_BYTES:
            return _scalars(yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader))
    return {}


def _scalars(root: yaml.Node | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    constructor = yaml.constructor.SafeConstructor()
    for key, node in root.value if isinstance(root, yaml.MappingNode) else ():
        # Other nodes are not made into values: aliases could make them long.
        if isinstance(key, yaml.ScalarNode) and isinstance(node, yaml.ScalarNode):
            found[str(key.value)] = constructor.construct_object(node)
    return found
