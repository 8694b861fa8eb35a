"""Snapshots: the configuration and the models of a server, as a properties file.

TorchServe's files are read, and ours have the same form: the keys of config.properties, and
`model_snapshot` with the models as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from extensions.torchserve.config.properties import write_properties
from headrace.errors import ConfigError

#: The folder of the snapshots, below that of the log files.
FOLDER: Final = "config"
MODELS_KEY: Final = "model_snapshot"
#: Below the state directory: the name of the last snapshot, and the generation of the registry that
#: it has. There is no generation until this run of the server has written one.
LAST_NAME: Final = "last_snapshot"
#: Our own key: the state of the registry of which a snapshot was made.
REVISION_KEY: Final = "headrace_registry"
#: Our own key of a model: the handler, if a request has named it.
HANDLER: Final = "handler"
#: Keys of a snapshot that no config.properties has.
KEYS: Final = frozenset({MODELS_KEY, REVISION_KEY, "tsConfigFile", "version", "python"})
_NAME: Final = re.compile(r"\d{17}-(startup|snapshot|shutdown)\.cfg")

Kind = Literal["startup", "snapshot", "shutdown"]


class SnapshotModel(NamedTuple):
    """One version of a model.

    Attributes:
        archive: its archive, as a name in the model store or a path.
        is_default: whether requests without a version run on it.
        settings: the numbers that TorchServe keeps: `minWorkers`, `batchSize` and so on.
    """

    name: str
    version: str
    archive: str
    is_default: bool
    settings: dict[str, Any]


def last_snapshot(folder: Path) -> Path | None:
    """Return the newest snapshot in a folder; None if it has none."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return None
    return max(found, key=lambda path: path.name, default=None)


def last_written(state_dir: Path) -> tuple[str, int | None]:
    """Return the name of the last snapshot of a state directory, and its generation."""
    try:
        name, _, generation = (state_dir / LAST_NAME).read_text().partition(" ")
    except OSError:
        return "", None
    return name, int(generation) if generation.isdecimal() else None


def read_models(text: str, where: str) -> list[SnapshotModel]:
    """Return the models of `model_snapshot`, in its order.

    Raises:
        ConfigError: it is not readable.
    """
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
        models = msgspec.convert(content.get("models", {}), dict[str, dict[str, dict[str, Any]]])
        return [
            SnapshotModel(
                name,
                version,
                msgspec.convert(settings["marName"], str),
                settings.get("defaultVersion") is True,
                settings,
            )
            for name, versions in models.items()
            for version, settings in versions.items()
        ]
    except (msgspec.MsgspecError, UnicodeEncodeError, KeyError) as error:
        text = "marName is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{where}: {MODELS_KEY}: it is not readable: {text}",
            hint="remove the file, or start with --ncs",
        ) from error


def write_snapshot(
    folder: Path,
    kind: Kind,
    now: datetime,
    values: Mapping[str, str],
    models: Sequence[SnapshotModel],
    revision: str,
) -> Path:
    """Write a snapshot, which appears when it is complete; return its path.

    Args:
        now: the local time.

    Raises:
        OSError: it cannot be written.
    """
    name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}-{kind}.cfg"
    content: dict[str, dict[str, Any]] = {}
    for model in models:
        content.setdefault(model.name, {})[model.version] = {
            "defaultVersion": model.is_default,
            "marName": model.archive,
            **model.settings,
        }
    snapshot = {"name": name, "modelCount": len(content), "models": content}
    written = {
        **{key: value for key, value in values.items() if key not in KEYS},
        MODELS_KEY: msgspec.json.format(msgspec.json.encode(snapshot), indent=2).decode(),
        REVISION_KEY: revision,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_properties(folder / name, written)
    return folder / name
