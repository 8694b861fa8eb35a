"""An archive of TorchServe (.mar) as a model: its manifest and its model-config.yaml.

Reads text only, and imports nothing. The text may come from a stranger.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from extensions.torchserve.config.manifest import MANIFEST
from extensions.torchserve.config.model_config import (
    SEQUENCES,
    ModelYaml,
    read_model_config,
    why_refused,
    yaml_options,
)
from extensions.torchserve.config.settings import is_allowed
from headrace.config.inputs.parameters import Parameter
from headrace.config.model.handler_reference import HandlerReference
from headrace.config.model.options import PER_WORKER
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.jobs.ids import VERSION, VERSION_GRAMMAR
from headrace.models.extension import ModelFolder
from headrace.models.folder import leads_out, requirements_file

#: Before a handler of TorchServe in the option `handler`.
TORCHSERVE: Final = "torchserve:"
_MANIFEST_MAX_BYTES: Final = 1024 * 1024
_HANDLER_MAX_CHARS: Final = 4 * 1024 * 1024
_URL: Final = re.compile("(https?|file):", re.IGNORECASE)
_IMPORTS: Final = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
#: What TorchServe has where nothing is set, for the models that run its handlers.
DEFAULTS: Final[dict[str, Any]] = {
    "max_batch_size": 1,
    "max_batch_delay_ms": 100.0,
    "max_retries": 0,
    "timeout_s": 120.0,
    "load_timeout_s": 120.0,
    "parameters": {
        "explain": Parameter(
            type="boolean", default=False, description="whether the result is an explanation"
        )
    },
}


def read(folder: Path, label: str, given: Collection[str]) -> ModelFolder:
    """Return the model of a folder with a manifest.

    Args:
        given: the keys that the models file sets itself.

    Raises:
        ConfigError: it does not describe a model.
    """
    label = f"{label}: {MANIFEST}"
    model = _manifest_model(folder / MANIFEST, label)
    handler, weights = _text(model, "handler", label), _text(model, "serializedFile", label)
    options: dict[str, Any] = {}
    version = _text(model, "modelVersion", label)
    if version and "version" not in given:
        if not re.fullmatch(VERSION, version):
            raise ConfigError(
                f"{label}: modelVersion: {version[:64]!r} is no version, which has "
                f"{VERSION_GRAMMAR}",
                hint="set `version` in the models file",
            )
        options["version"] = version
    needs, config = (_text(model, key, label) for key in ("requirementsFile", "configFile"))
    files = {
        "handler": handler, "serializedFile": weights, "requirementsFile": needs,
        "configFile": config,
    }  # fmt: skip
    for key, value in files.items():
        if leads_out(value):
            raise ConfigError(f"{label}: {key}: it leads out of the model's folder")
    if weights:
        if not os.path.isfile(folder / weights):
            raise ConfigError(
                f"{label}: serializedFile: there is no file {weights}", hint="pack it again"
            )
        options["weights"] = weights
    if handler:
        options["handler"] = archive_handler(folder, handler)
    settings = _model_config(folder / config, label) if config else ModelYaml({}, [])
    options |= yaml_options(settings.values)
    name = _text(model, "modelName", label)
    notes = [f"{MANIFEST}: configFile: {problem}" for problem in settings.problems]
    # Without this file the handler does not load. A wrong value in it only leaves a default.
    problems, warnings = ([], notes) if settings.is_readable else (notes, [])
    requirements = requirements_file(folder, needs)
    return ModelFolder(
        folder, name, options, requirements, MANIFEST, settings.values, problems, warnings
    )


def _model_config(path: Path, label: str) -> ModelYaml:
    """Return a model-config.yaml; a wrong value there is ignored."""
    try:
        found = read_model_config(path)
    except ConfigError as error:
        raise ConfigError(f"{label}: configFile: {error.message}", hint=error.hint) from None
    if refused := why_refused(found.values):
        raise ConfigError(f"{label}: configFile: {refused}")
    return found


def _manifest_model(path: Path, label: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MANIFEST_MAX_BYTES:
            raise ConfigError(f"{label}: it is larger than {_MANIFEST_MAX_BYTES} bytes")
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{label}: it cannot be read: {error}", hint="pack it again") from error
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise ConfigError(f"{label}: the key `model` is missing", hint="pack it again")
    return model


def _text(model: dict[str, Any], key: str, label: str) -> str:
    value = model.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{label}: {key}: expected text, got {type(value).__name__}")
    if not value.isprintable():
        raise ConfigError(f"{label}: {key}: it has a control character: {value!a}")
    return value


def name_problem(path: str) -> str:
    """Return why no file can have a path, whatever is on the disk; "" if one can."""
    try:
        os.lstat(path)
    except ValueError as error:
        return str(error)  # a NUL, or half of a surrogate pair
    except OSError as error:
        return "File name too long" if error.errno == errno.ENAMETOOLONG else ""
    return ""


def archive_handler(folder: Path, written: str) -> str:
    """Return the handler of an archive as an option: TorchServe's with a mark, ours as it is.

    Args:
        written: the handler, as a manifest or a request to TorchServe has it.

    Raises:
        ConfigError: no file can have its name.
    """
    name, colon, inner = written.partition(":")
    file = name if name.endswith(".py") else f"{name}.py"
    if problem := name_problem(str(folder / file)):
        raise ConfigError(f"handler: {file[:64]!a}: {problem}", hint="correct the name")
    if os.path.isfile(folder / file) and _is_ours(folder / file):
        return f"{file}{colon}{inner}"
    return f"{TORCHSERVE}{written}"


def _is_ours(file: Path) -> bool:
    """Return whether a handler's file imports headrace and not TorchServe, by its text."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_HANDLER_MAX_CHARS)
    except OSError:
        return False
    roots = set(_IMPORTS.findall(text))
    return "headrace" in roots and "ts" not in roots


def is_url(source: str) -> bool:
    """Return whether a source is a file that must be fetched."""
    return _URL.match(source) is not None


def download(settings: Settings, allowed: str, url: str, file: Path) -> None:
    """Write what a URL has into a file.

    Args:
        allowed: `allowed_urls`, which redirects must match too.

    Raises:
        ConfigError: it cannot be fetched.
        OSError: the file cannot be written.
    """
    # A model process reads archives too, and fetches none.
    from headrace.models.download import Downloader

    downloader = Downloader(
        lambda text: is_allowed(text, allowed),
        settings.model_limit_bytes,
        settings.model_fetch_timeout_s,
    )
    with downloader.fetch(url) as found, file.open("wb") as opened:
        for chunk in found.chunks if found is not None else ():
            opened.write(chunk)


def check(values: Mapping[str, Any]) -> None:
    """Refuse options that do not go with an archive.

    Raises:
        ConfigError: several processes, or one in each worker, would share the requests of one
            sequence.
    """
    if values["options"].get(SEQUENCES) and values.get("total_replicas") not in (0, 1):
        raise ConfigError(
            "total_replicas: the archive has sequences, whose state is in one model process",
            hint=f"set total_replicas: 1, and leave out {', '.join(PER_WORKER)}",
        )


def handler_problem(handler: HandlerReference, folder: Path) -> str | None:
    """Return why a handler of an archive cannot be found; None if it can."""
    name = Path(handler.target).name.removesuffix(".py")
    if handler.target.endswith(".py") and not os.path.isfile(folder / f"{name}.py"):
        return f"there is no file {name}.py, its handler"
    return None
