"""The models file, read once into typed, frozen values. Knows no Redis, no HTTP and no torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headrace.config.handler_reference import HandlerKind, HandlerReference, parse_handler
from headrace.config.handler_source import source_problem
from headrace.config.model_options import DEFAULT_TIMEOUT_S, ModelOptions
from headrace.config.pipelines import HANDLER, PipelineConfig, PipelineSection
from headrace.config.pipelines_file import read_pipeline
from headrace.config.suggestions import did_you_mean, listing
from headrace.config.yaml_file import Document, load_yaml, read_fields, shown
from headrace.errors import ConfigError, ModelNotFound
from headrace.redis import keys

#: A leading dot or dash is refused: `..` is a path to an HTTP client, `-x` an option to a shell.
MODEL_NAME_PATTERN: Final = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_KEYS: Final = ("models", "pipelines")
_MODEL_NAME = re.compile(MODEL_NAME_PATTERN)


class ModelConfig(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model as the servers see it; `weights` is absolute here.

    Attributes:
        name: the model's name, as clients say it.
    """

    name: str

    @property
    def queue(self) -> str:
        """The queue that it is served from."""
        return keys.queue_name(self.name)


class ModelsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole models file."""

    models: Annotated[
        dict[Annotated[str, Meta(pattern=MODEL_NAME_PATTERN)], ModelOptions],
        Meta(description="The models that are served, by name."),
    ]
    pipelines: Annotated[
        dict[Annotated[str, Meta(pattern=MODEL_NAME_PATTERN)], PipelineSection],
        Meta(description="Several models over one input, by name; docs/pipelines.md."),
    ] = {}


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every model that is registered.

    Attributes:
        path: the file that it was read from.
        models: by name, in the order of the file.
        pipelines: by name, in the order of the file; no model has such a name.
    """

    path: Path
    models: dict[str, ModelConfig]
    pipelines: dict[str, PipelineConfig] = field(default_factory=dict)
    _addressed: dict[str, ModelConfig] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._addressed.update(self.models)
        self._addressed.update({name: _facade(one) for name, one in self.pipelines.items()})

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths in the file are taken from."""
        return self.path.absolute().parent

    @property
    def served(self) -> list[ModelConfig]:
        """All that jobs can be sent to: the models, and the pipelines as they look from outside."""
        return list(self._addressed.values())

    def get(self, name: str) -> ModelConfig:
        """The model of that name, or the pipeline, as it looks from outside.

        Raises:
            ModelNotFound: there is none; the message names those that there are.
        """
        try:
            return self._addressed[name]
        except KeyError:
            known = self._addressed
            raise ModelNotFound(
                f"no model {shown(name)} is registered{did_you_mean(name[:64], known)}",
                hint=f"registered: {listing(known)}",
            ) from None


def _facade(pipeline: PipelineConfig) -> ModelConfig:
    """A pipeline as those see it who send it jobs: it has a queue, a version and bounds."""
    return ModelConfig(
        name=pipeline.name,
        handler=HANDLER,
        version=pipeline.version,
        max_queue_depth=pipeline.max_queue_depth,
        timeout_s=pipeline.timeout_s,
    )


def load_catalog(path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Catalog:
    """Read a models file.

    Args:
        path: the file.
        timeout_s: for models that name none.

    Raises:
        ConfigError: anything in it is wrong; all mistakes are named, one a line.
    """
    document = load_yaml(path, what="models file")
    catalog = _read(document, timeout_s)
    document.raise_problems()
    return catalog


def check_config(path: Path) -> list[str]:
    """All that is wrong with a models file, one line each; empty when nothing is.

    Beyond what `load_catalog` refuses, the files that it names must exist, and handlers' files must
    be Python in which the class is found. No handler is imported.
    """
    try:
        document = load_yaml(path, what="models file")
    except ConfigError as error:
        return error.message.splitlines()
    catalog = _read(document, DEFAULT_TIMEOUT_S)
    for model in catalog.models.values():
        where = ("models", model.name)
        problem = _handler_problem(parse_handler(model.handler), catalog.base_dir)
        if problem is not None:
            document.report((*where, "handler"), problem)
        if model.weights is not None and not Path(model.weights).exists():
            document.report((*where, "weights"), f"there is no file {model.weights}")
    return document.problems


def _handler_problem(spec: HandlerReference, base_dir: Path) -> str | None:
    if spec.kind is not HandlerKind.FILE:
        return None
    path = spec.file(base_dir)
    return source_problem(path, spec.name) if path.is_file() else f"there is no file {path}"


def models_schema() -> dict[str, Any]:
    """The JSON Schema of the models file, for editors."""
    schema = msgspec.json.schema(ModelsFile)
    return {"$schema": SCHEMA_DIALECT, "title": "Headrace models file", **schema}


def schema_text() -> str:
    """The schema as `configs/models.schema.json` holds it."""
    return json.dumps(models_schema(), indent=2, ensure_ascii=False) + "\n"


def _read(document: Document, timeout_s: float) -> Catalog:
    for key in document.data:
        if key not in _KEYS:
            document.report((key,), f"unknown key{did_you_mean(str(key), _KEYS)}")
    models: dict[str, ModelConfig] = {}
    sections = document.data.get("models")
    if not isinstance(sections, dict) or not sections:
        given = f"got {shown(sections)}" if "models" in document.data else "the key is missing"
        document.report(("models",), f"expected a mapping of at least one model, {given}")
        return Catalog(document.path, models)
    base_dir = document.path.absolute().parent
    for name in sections:
        before = len(document.problems)
        if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
            document.report(("models", name), _name_problem(name))
        values = read_fields(document, ("models", name), ModelOptions)
        _check_handler(document, name, values)
        _check_options(document, name, values)
        _check_batches(document, name, values)
        if len(document.problems) == before:
            models[name] = _model(name, {"timeout_s": timeout_s, **values}, base_dir)
    return Catalog(document.path, models, _pipelines(document, sections))


def _pipelines(document: Document, models: Mapping[Any, Any]) -> dict[str, PipelineConfig]:
    if "pipelines" not in document.data:
        return {}
    sections = document.data["pipelines"]
    if not isinstance(sections, dict) or not sections:
        text = f"expected a mapping of at least one pipeline, got {shown(sections)}"
        document.report(("pipelines",), text)
        return {}
    found = {}
    for name in sections:
        if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
            document.report(("pipelines", name), _name_problem(name, "pipeline"))
        elif name in models:
            document.report(("pipelines", name), "a model has this name; jobs could mean either")
        pipeline = read_pipeline(document, name, models)
        if pipeline is not None:
            found[name] = pipeline
    return found


def _model(name: str, values: Mapping[str, Any], base_dir: Path) -> ModelConfig:
    sizes = values.get("allowed_batch_sizes")
    if sizes is not None:
        values = {"max_batch_size": max(sizes), **values, "allowed_batch_sizes": sorted(sizes)}
    model = ModelConfig(name=name, **values)
    if model.weights is None:
        return model
    weights = (base_dir / Path(model.weights).expanduser()).absolute()
    return msgspec.structs.replace(model, weights=str(weights))


def _check_handler(document: Document, name: str, values: Mapping[str, Any]) -> None:
    if "handler" not in values:
        return
    try:
        parse_handler(values["handler"])
    except ConfigError as error:
        document.report(("models", name, "handler"), f"{error.message}; {error.hint}")


def _check_options(document: Document, name: str, values: Mapping[str, Any]) -> None:
    # They cross to the model process as msgpack.
    try:
        msgspec.msgpack.encode(values.get("options"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = "it holds itself" if isinstance(error, RecursionError) else str(error)
        document.report(("models", name, "options"), f"not plain data: {text}")


def _check_batches(document: Document, name: str, values: Mapping[str, Any]) -> None:
    where = ("models", name)
    sizes, most = values.get("allowed_batch_sizes"), values.get("max_batch_size")
    if sizes is not None and len(set(sizes)) < len(sizes):
        document.report((*where, "allowed_batch_sizes"), "a size stands there twice")
    if sizes is not None and most is not None and max(sizes) != most:
        document.report(
            (*where, "allowed_batch_sizes"),
            f"the largest is {max(sizes)}, but max_batch_size is {most}; make them the same, "
            "or leave max_batch_size out",
        )
    if "cost" in values and "max_batch_cost" not in values:
        document.report((*where, "cost"), "without max_batch_cost it has no effect; add that key")


def _name_problem(name: object, what: str = "model") -> str:
    if not isinstance(name, str):
        return f"a {what}'s name is text; write {shown(name)} in quotes"
    return f"a {what}'s name has 1 to 64 of A-Z a-z 0-9 _ . - and begins with none of . -"


if __name__ == "__main__":  # python -m headrace.config.model_catalog > configs/models.schema.json
    sys.stdout.write(schema_text())
