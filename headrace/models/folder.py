"""The folder of a model: its `model.yaml`, or the file of an extension that describes it.

Reads text only, and imports nothing. The text may come from a stranger.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import yaml
from msgspec import Meta

from headrace.config.inputs.input_schema import SECTIONS
from headrace.config.model.options import ModelOptions, read_options
from headrace.config.suggestions import listing
from headrace.config.yaml_file import BoundedLoader, load_yaml
from headrace.errors import ConfigError
from headrace.jobs.ids import MODEL_NAME
from headrace.models.archive import is_of_system
from headrace.models.extension import ModelFolder, descriptions, pipeline_readers

logger = logging.getLogger(__name__)

MODEL_FILE: Final = "model.yaml"
REQUIREMENTS: Final = "requirements.txt"
#: Files that run without a handler.
PROGRAMS: Final = (".pt", ".pth", ".pt2", ".onnx")
TENSOR_HANDLER: Final = "tensor_model"

_MODEL_FILE_MAX_BYTES: Final = 256 * 1024
#: Keys that only the operator decides.
_NOT_HERE: Final = ("source", "sha256", "weights_only", "traffic")


class ModelFile(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file model.yaml: the keys of a model of the models file, and its name.

    Attributes:
        name: the model's name, where no other is given.
    """

    name: Annotated[str, Meta(pattern=MODEL_NAME)] | None = None


def read_folder(folder: Path, label: str, given: Collection[str] = ()) -> ModelFolder:
    """Return the model in a folder, as `examine_folder`; log what is ignored or wrong there."""
    found = examine_folder(folder, label, given)
    if notes := [*found.problems, *found.warnings]:
        logger.warning("%s: %s", label, "; ".join(notes))
    return found


def examine_folder(folder: Path, label: str, given: Collection[str] = ()) -> ModelFolder:
    """Return the model in a folder.

    Args:
        folder: the folder of the model, or the one with only this folder in it.
        label: the source, in messages.
        given: the keys that the models file sets itself.

    Raises:
        ConfigError: it does not describe a model.
    """
    folder = _inner(folder)
    parts = (part for file, part in descriptions().items() if (folder / file).is_file())
    if (folder / MODEL_FILE).is_file():
        found = _model_file(folder)
    elif (part := next(parts, None)) is not None and part.read is not None:
        found = part.read(folder, label, given)
    else:
        found = ModelFolder(folder, "", {}, requirements_file(folder, REQUIREMENTS), "")
    if "handler" in found.options or "handler" in given:
        return found
    return _program(found, label, "weights" in given)


def read_file(path: Path, label: str) -> ModelFolder:
    """Return the model that is a single file; raise ConfigError if it needs a handler."""
    if path.suffix.lower() not in PROGRAMS:
        if path.suffix.lower() in pipeline_readers():
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
    described = {file.partition("/")[0] for file in descriptions()}
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in described:
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
        if leads_out(str(values.get(key, ""))):
            document.report((key,), "it leads out of the model's folder")
    if document.problems:
        raise ConfigError("\n".join(document.problems))
    name = values.pop("name", None)
    requirements = requirements_file(folder, REQUIREMENTS)
    return ModelFolder(folder, name or "", values, requirements, MODEL_FILE)


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


def leads_out(path: str) -> bool:
    """Return whether a path could be outside of the folder that it is relative to."""
    return path.startswith(("/", "~")) or ".." in Path(path).parts


def requirements_file(folder: Path, name: str) -> Path | None:
    """Return a file of requirements in a folder; None if it is not there."""
    file = folder / name
    return file if name and os.path.isfile(file) else None


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
            f"{label}: it has no {' and no '.join((MODEL_FILE, *descriptions()))}, and {what}"
            if not found.kind
            else f"{label}: {found.kind} names no handler, and the folder has {what}",
            hint=f"write {MODEL_FILE} with the key `handler` into it",
        )
    options = {**found.options, "handler": TENSOR_HANDLER, "weights": weights}
    return found._replace(options=options, kind=found.kind or weights)
