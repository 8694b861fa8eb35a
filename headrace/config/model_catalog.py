"""The models file: models and pipelines as typed, frozen values. Independent of Redis and torch."""

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

from headrace.config.handler_reference import (
    HandlerKind,
    HandlerReference,
    parse_handler,
    source_problem,
)
from headrace.config.model_options import DEFAULT_TIMEOUT_S, ModelOptions
from headrace.config.pipelines import (
    HANDLER,
    STAGE_NAME_PATTERN,
    STAGES_MAX,
    PipelineConfig,
    PipelineOptions,
    PipelineProblem,
    PipelineSection,
    StageSection,
    build,
    unknown_models,
)
from headrace.config.suggestions import did_you_mean, listing
from headrace.config.yaml_file import Document, load_yaml, read_fields, shown
from headrace.errors import ConfigError, ModelNotFound
from headrace.redis import keys

#: No leading dot or dash: HTTP clients read `..` as a path, and commands `-x` as an option.
MODEL_NAME_PATTERN: Final = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_KEYS: Final = ("models", "pipelines")
_MODEL_NAME = re.compile(MODEL_NAME_PATTERN)
_STAGE_NAME: Final = re.compile(STAGE_NAME_PATTERN)


class ModelConfig(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model as the servers use it, with an absolute `weights`.

    Attributes:
        name: the model's name.
    """

    name: str

    @property
    def queue(self) -> str:
        """Return the name of its queue."""
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
    """All registered models and pipelines.

    Attributes:
        path: the models file.
        models: by name, in the order of the file.
        pipelines: by name, in the order of the file. No model has the name of a pipeline.
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
        """Return the folder to which relative paths in the file refer."""
        return self.path.absolute().parent

    @property
    def served(self) -> list[ModelConfig]:
        """Return the models, and the pipelines as models: all that jobs can be submitted to."""
        return list(self._addressed.values())

    def get(self, name: str) -> ModelConfig:
        """Return the model, or the pipeline as a model.

        Raises:
            ModelNotFound: neither exists; the hint lists all.
        """
        try:
            return self._addressed[name]
        except KeyError:
            known = self._addressed
            raise ModelNotFound(
                f"no model {shown(name)} is registered{did_you_mean(name[:64], known)}",
                hint=f"use one of {listing(known)}",
            ) from None


def _facade(pipeline: PipelineConfig) -> ModelConfig:
    """Return a pipeline as a model, with its queue, version and limits."""
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
        timeout_s: the timeout of models without their own.

    Raises:
        ConfigError: the file has mistakes; the message has one line per mistake.
    """
    document = load_yaml(path, what="models file")
    catalog = _read(document, timeout_s)
    document.raise_problems()
    return catalog


def check_config(path: Path) -> list[str]:
    """Return the mistakes of a models file, one line each.

    In addition to `load_catalog`, this checks that all files exist and that handlers' files are
    Python with the class. No handler is imported.
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
            document.report((*where, "weights"), f"the file {model.weights} does not exist")
    return document.problems


def _handler_problem(spec: HandlerReference, base_dir: Path) -> str | None:
    if spec.kind is not HandlerKind.FILE:
        return None
    path = spec.file(base_dir)
    return source_problem(path, spec.name) if path.is_file() else f"the file {path} does not exist"


def models_schema() -> dict[str, Any]:
    """Return the JSON Schema of the models file, for editors."""
    schema = msgspec.json.schema(ModelsFile)
    return {"$schema": SCHEMA_DIALECT, "title": "Headrace models file", **schema}


def schema_text() -> str:
    """Return the text of `configs/models.schema.json`."""
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
            document.report(("pipelines", name), "a model has this name; choose another")
        pipeline = _pipeline(document, name, models)
        if pipeline is not None:
            found[name] = pipeline
    return found


def _pipeline(document: Document, name: str, models: Mapping[Any, Any]) -> PipelineConfig | None:
    """Return a pipeline; None after a mistake, which is reported.

    Args:
        document: the models file.
        name: its name below `pipelines`.
        models: all models, by name.
    """
    before = len(document.problems)
    keys = ("pipelines", name)
    written = document.data["pipelines"][name]
    if not isinstance(written, dict):
        document.report(keys, f"expected a mapping with the key `stages`, got {shown(written)}")
        return None
    stages = _pipeline_stages(document, name, written)
    # The options are read without the stages, so that each mistake has its own key.
    document.data["pipelines"][name] = {k: v for k, v in written.items() if k != "stages"}
    values = read_fields(document, keys, PipelineOptions)
    document.data["pipelines"][name] = written
    if len(document.problems) > before:
        return None
    try:
        pipeline = build(name, PipelineSection(stages=stages, **values))
    except PipelineProblem as problem:
        document.report((*keys, *problem.where), problem.text)
        return None
    for stage, text in unknown_models(pipeline, models, document.data["pipelines"]):
        own = stages[stage].model is not None
        where = ("stages", stage, "model") if own else ("stages", stage)
        document.report((*keys, *where), text)
    return pipeline if len(document.problems) == before else None


def _pipeline_stages(
    document: Document, name: str, written: dict[Any, Any]
) -> dict[str, StageSection]:
    keys = ("pipelines", name, "stages")
    sections = written.get("stages")
    if not isinstance(sections, dict) or not sections:
        given = f"got {shown(sections)}" if "stages" in written else "the key is missing"
        document.report(keys, f"expected a mapping of at least one stage, {given}")
        return {}
    found = {}
    if len(sections) > STAGES_MAX:
        document.report(keys, f"a pipeline has at most {STAGES_MAX} stages, not {len(sections)}")
    for stage, section in sections.items():
        if not isinstance(stage, str) or not _STAGE_NAME.fullmatch(stage):
            text = "a stage's name has 1 to 64 of A-Z a-z 0-9 _ - and does not begin with 0-9 or -"
            document.report((*keys, stage), text)
        if section is None:  # `detect:` alone: the model of that name
            sections[stage] = {}
        values = read_fields(document, (*keys, stage), StageSection)
        found[stage] = msgspec.convert(values, StageSection)
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
    # They are sent to the model process as msgpack.
    try:
        msgspec.msgpack.encode(values.get("options"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = "it contains itself" if isinstance(error, RecursionError) else str(error)
        document.report(("models", name, "options"), f"not plain data: {text}")


def _check_batches(document: Document, name: str, values: Mapping[str, Any]) -> None:
    where = ("models", name)
    sizes, most = values.get("allowed_batch_sizes"), values.get("max_batch_size")
    if sizes is not None and len(set(sizes)) < len(sizes):
        document.report((*where, "allowed_batch_sizes"), "a size is given twice; remove one")
    if sizes is not None and most is not None and max(sizes) != most:
        document.report(
            (*where, "allowed_batch_sizes"),
            f"the largest is {max(sizes)}, but max_batch_size is {most}; make them the same, "
            "or leave max_batch_size out",
        )
    if "cost" in values and "max_batch_cost" not in values:
        document.report((*where, "cost"), "it needs max_batch_cost; add that key")


def _name_problem(name: object, what: str = "model") -> str:
    if not isinstance(name, str):
        return f"a {what}'s name must be text; write {shown(name)} in quotes"
    return f"a {what}'s name has 1 to 64 of A-Z a-z 0-9 _ . - and does not begin with . or -"


if __name__ == "__main__":  # python -m headrace.config.model_catalog > configs/models.schema.json
    sys.stdout.write(schema_text())
