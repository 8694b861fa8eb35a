"""The folder of a model: its `model.yaml`, or TorchServe's manifest.

Reads text only, and imports nothing. The text may come from a stranger.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import yaml
from msgspec import Meta

from headrace.config.handler_reference import TORCHSERVE
from headrace.config.input_schema import SECTIONS
from headrace.config.model_catalog import MODEL_NAME_PATTERN
from headrace.config.model_options import ModelOptions
from headrace.config.option_problems import read_options
from headrace.config.parameters import Parameter
from headrace.config.paths import name_problem
from headrace.config.suggestions import listing
from headrace.config.yaml_file import BoundedLoader, load_yaml
from headrace.errors import ConfigError
from headrace.jobs.ids import VERSION, VERSION_GRAMMAR
from headrace.models.members import is_of_system
from headrace.torchserve.model_config import ModelYaml, read_model_config, why_refused, yaml_options
from headrace.torchserve.workflow import SUFFIX as WORKFLOW

logger = logging.getLogger(__name__)

MODEL_FILE: Final = "model.yaml"
MANIFEST: Final = "MAR-INF/MANIFEST.json"
REQUIREMENTS: Final = "requirements.txt"
#: Files that run without a handler.
PROGRAMS: Final = (".pt", ".pth", ".pt2", ".onnx")
TENSOR_HANDLER: Final = "tensor_model"

_MANIFEST_MAX_BYTES: Final = 1024 * 1024
_MODEL_FILE_MAX_BYTES: Final = 256 * 1024
_HANDLER_MAX_CHARS: Final = 4 * 1024 * 1024
_IMPORTS: Final = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
#: What TorchServe has where nothing is set, for the models that run its handlers.
TORCHSERVE_DEFAULTS: Final[dict[str, Any]] = {
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
#: Keys that only the operator decides.
_NOT_HERE: Final = ("source", "sha256", "weights_only", "traffic")


class ModelFile(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file model.yaml: the keys of a model of the models file, and its name.

    Attributes:
        name: the model's name, where no other is given.
    """

    name: Annotated[str, Meta(pattern=MODEL_NAME_PATTERN)] | None = None


class ModelFolder(NamedTuple):
    """A model as its folder describes it.

    Attributes:
        folder: where relative paths start.
        name: the model's name; "" if the folder does not name it.
        options: the keys that it sets, among them `handler`.
        requirements: its requirements.txt; None without one.
        kind: what describes it: `model.yaml`, `MAR-INF/MANIFEST.json`, or the name of its file.
        config: its model-config.yaml.
    """

    folder: Path
    name: str
    options: dict[str, Any]
    requirements: Path | None
    kind: str
    config: ModelYaml = ModelYaml({}, [])

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the values of model-config.yaml that become options, by TorchServe's names."""
        return self.config.values


def read_folder(folder: Path, label: str, given: Collection[str] = ()) -> ModelFolder:
    """Return the model in a folder; log what is ignored in its model-config.yaml.

    Args:
        folder: the folder of the model, or the one with only this folder in it.
        label: the source, in messages.
        given: the keys that the models file sets itself.

    Raises:
        ConfigError: it does not describe a model.
    """
    found = examine_folder(folder, label, given)
    if problems := found.config.problems:
        logger.warning("%s: %s: configFile: %s", label, MANIFEST, "; ".join(problems))
    return found


def examine_folder(folder: Path, label: str, given: Collection[str] = ()) -> ModelFolder:
    """Return the model in a folder, and log nothing.

    Args:
        folder: the folder of the model, or the one with only this folder in it.
        label: the source, in messages.
        given: the keys that the models file sets itself.

    Raises:
        ConfigError: it does not describe a model.
    """
    folder = _inner(folder)
    if (folder / MODEL_FILE).is_file():
        found = _model_file(folder)
    elif (folder / MANIFEST).is_file():
        found = _manifest(folder, label, given)
    else:
        found = ModelFolder(folder, "", {}, _requirements(folder, REQUIREMENTS), "")
    if "handler" in found.options or "handler" in given:
        return found
    return _program(found, label, "weights" in given)


def read_file(path: Path, label: str) -> ModelFolder:
    """Return the model that is a single file.

    Raises:
        ConfigError: it needs a handler.
    """
    if path.suffix.lower() not in PROGRAMS:
        if path.suffix.lower() == WORKFLOW:
            raise ConfigError(
                f"{label}: a workflow is a pipeline and no model",
                hint=f"headrace archive --pipeline {label} prints it for the models file",
            )
        raise ConfigError(
            f"{label}: a file of this kind is no model",
            hint=f"known: {', '.join(PROGRAMS)}, an archive, or a folder with {MODEL_FILE}; "
            "weights need a handler: set `handler` and `weights`",
        )
    options = {"handler": TENSOR_HANDLER, "weights": path.name}
    return ModelFolder(path.parent, "", options, None, path.name)


def _inner(folder: Path) -> Path:
    """Return the only folder in a folder, as many archives have it; else the folder itself."""
    entries = [entry for entry in folder.iterdir() if not is_of_system(entry.name)]
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name != "MAR-INF":
        return entries[0]
    return folder


def _model_file(folder: Path) -> ModelFolder:
    _refuse_costly(folder / MODEL_FILE)
    document = load_yaml(folder / MODEL_FILE, what="model file")
    for key in SECTIONS:
        section = document.data.get(key)
        if isinstance(section, dict) and isinstance(section.get("schema"), str):
            # A file's aliases can make it long, and its path can lead out.
            del section["schema"]
            document.report((key, "schema"), "write the schema in this file, not in one of its own")
    values = read_options(document, (), ModelFile, folder)
    for key in _NOT_HERE:
        if key in document.data:
            document.report((key,), "only the models file may set it; remove it here")
    for key in ("weights", "handler"):
        if _leads_out(str(values.get(key, ""))):
            document.report((key,), "it leads out of the model's folder")
    if document.problems:
        raise ConfigError("\n".join(document.problems))
    name = values.pop("name", None)
    return ModelFolder(folder, name or "", values, _requirements(folder, REQUIREMENTS), MODEL_FILE)


def _refuse_costly(path: Path) -> None:
    """Refuse YAML that is long, or that a few aliases make long."""
    if path.stat().st_size > _MODEL_FILE_MAX_BYTES:
        raise ConfigError(f"{path}: it is larger than {_MODEL_FILE_MAX_BYTES} bytes")
    try:
        events = yaml.parse(path.read_bytes(), Loader=BoundedLoader)
        alias = next((event for event in events if isinstance(event, yaml.AliasEvent)), None)
    except (yaml.YAMLError, RecursionError, ValueError):
        return  # `load_yaml` reports what is wrong
    if alias is not None:
        line = alias.start_mark.line + 1 if alias.start_mark else 1
        raise ConfigError(
            f"{path}:{line}: aliases (*{alias.anchor}) are not accepted here",
            hint="write the value out",
        )


def _leads_out(path: str) -> bool:
    return path.startswith(("/", "~")) or ".." in Path(path).parts


def _requirements(folder: Path, name: str) -> Path | None:
    file = folder / name
    return file if name and os.path.isfile(file) else None


def _manifest(folder: Path, label: str, given: Collection[str]) -> ModelFolder:
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
        if _leads_out(value):
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
    requirements = _requirements(folder, needs)
    return ModelFolder(folder, name, options, requirements, MANIFEST, settings)


def _model_config(path: Path, label: str) -> ModelYaml:
    """Return a model-config.yaml; a wrong value there is ignored.

    Raises:
        ConfigError: a model with these settings cannot run here, or the file is too large or nested
            too deeply.
    """
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


def archive_handler(folder: Path, written: str) -> str:
    """Return the handler of an archive as an option: TorchServe's with a mark, ours as it is.

    Args:
        folder: the folder of the archive.
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


def _program(found: ModelFolder, label: str, has_weights: bool) -> ModelFolder:
    """Return a model without a handler, as its only program."""
    if has_weights:
        return found._replace(options={**found.options, "handler": TENSOR_HANDLER})
    weights = found.options.get("weights")
    programs = sorted(
        file.name
        for file in found.folder.iterdir()
        if file.suffix.lower() in PROGRAMS and not is_of_system(file.name)
    )
    if weights is None and len(programs) == 1:
        weights = programs[0]
    if weights is None:
        what = f"{len(programs)} programs ({listing(programs)})" if programs else "no program"
        raise ConfigError(
            f"{label}: it has no {MODEL_FILE} and no {MANIFEST}, and {what}"
            if not found.kind
            else f"{label}: {found.kind} names no handler, and the folder has {what}",
            hint=f"write {MODEL_FILE} with the key `handler` into it",
        )
    options = {**found.options, "handler": TENSOR_HANDLER, "weights": weights}
    return found._replace(options=options, kind=found.kind or weights)
