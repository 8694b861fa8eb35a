"""The models file: models and pipelines as typed, frozen values. Independent of Redis and torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from typing_extensions import override

from headrace.config.inputs.input_schema import read_keys
from headrace.config.inputs.parameters import Parameter, example_values
from headrace.config.inputs.tensors import has_rows
from headrace.config.model.handler_reference import handler_problem, missing, parse_handler
from headrace.config.model.options import DEFAULT_TIMEOUT_S, ModelOptions, read_options
from headrace.config.model.pipelines import (
    HANDLER,
    STAGE_NAME_PATTERN,
    STAGES_MAX,
    PipelineConfig,
    PipelineOptions,
    PipelineSection,
    StageSection,
    build,
    unknown_models,
)
from headrace.config.model.traffic import Traffic
from headrace.config.suggestions import did_you_mean, unknown_model
from headrace.config.values import shown
from headrace.config.yaml_file import Document, KeyProblem, load_yaml, read_fields
from headrace.errors import ConfigError
from headrace.jobs.ids import MODEL_NAME
from headrace.redis import keys

NO_TRAFFIC: Final[Mapping[str, Traffic]] = {}

_KEYS: Final = ("models", "pipelines")
_MODEL_NAME = re.compile(MODEL_NAME)
_Name = Annotated[str, Meta(pattern=MODEL_NAME)]
_STAGE_NAME: Final = re.compile(STAGE_NAME_PATTERN)


class Requirements(msgspec.Struct, frozen=True):
    """The packages of a model: its requirements.txt, and the folder of all environments."""

    file: str
    environments: str


class ModelConfig(ModelOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model as the servers use it, with an absolute `weights`.

    Attributes:
        handler: its handler; empty while its `source` was not read.
        folder: the folder to which its relative paths refer; empty for the models file's.
        written: the keys that are written for a model with a source; they win over the source's.
        requirements: the packages that its source asks for, if the settings allow to install them.
        asked_version: the version that the jobs of this queue ask for; "" for none, as in the
            catalog.
        declared: whether these are the options of this version; of others only workers know them.
        replicas: 1 where `auto_replicas` is set, until a worker resolves it.
    """

    name: str
    handler: str = ""
    replicas: int = 1
    auto_replicas: bool = False
    folder: str = ""
    written: tuple[str, ...] = ()
    requirements: Requirements | None = None
    asked_version: str = ""
    declared: bool = True

    @override
    def __hash__(self) -> int:
        return hash((self.name, self.version, self.asked_version))

    @property
    def on_demand(self) -> bool:
        """Whether a worker loads it at its first job."""
        return self.load == "on_demand"

    @property
    def has_no_replicas(self) -> bool:
        """Whether no worker may run it, by its options."""
        return self.total_replicas == 0 or (self.replicas == 0 and not self.on_demand)

    @property
    def counts_tokens(self) -> bool:
        """Whether its jobs are counted in tokens, and run in an order by tokens."""
        return self.schedule == "tokens"

    @property
    def queue(self) -> str:
        """Return the name of the queue that its jobs join."""
        if self.asked_version:
            return keys.version_queue(self.name, self.asked_version)
        return keys.queue_name(self.name)

    def of_version(self, version: str) -> ModelConfig:
        """Return the model for jobs that ask for this version, which join its queue."""
        asked = msgspec.structs.replace(self, version=version, asked_version=version, traffic=None)
        if version == self.version:
            return asked
        return msgspec.structs.replace(asked, declared=False, inputs=None, outputs=None)

    def init_frame(self, folder: Path, device: str) -> dict[str, Any]:
        """Return what a model process reads to load the handler; `folder` is the models file's."""
        folder = Path(self.folder) if self.folder else folder
        # YAML reads a bare `on` as true.
        layout = self.channels_last
        return {
            "model": self.name,
            "version": self.version,
            "handler": self.handler,
            "device": device,
            "model_dir": str(folder),
            "weights": str(folder / self.weights) if self.weights else "",
            "weights_only": self.weights_only,
            "tensors": msgspec.to_builtins(self.tensors) if self.tensors else {},
            "requirements": msgspec.to_builtins(self.requirements) if self.requirements else {},
            "options": self.options,
            "preprocess_threads": self.preprocess_threads,
            "preprocess_processes": self.preprocess_processes,
            "optimize": self._optimize_frame(folder),
            "channels_last": layout if isinstance(layout, str) else ("on" if layout else "off"),
            "max_batch_size": self.max_batch_size,
            "allowed_batch_sizes": self.allowed_batch_sizes or [],
            "input_check": self.inputs.check_frame() if self.inputs else None,
            "output_check": (
                self.outputs.check_frame() if self.outputs and self.outputs.enforce else None
            ),
            "declared_tensors": self._tensors_frame(),
            "example_parameters": example_values(self.parameters),
            "profile": msgspec.to_builtins(self.profile) if self.profile else None,
        }

    def _tensors_frame(self) -> dict[str, Any] | None:
        """Return the tensors that `inputs` and `outputs` declare; None if the inputs have none."""
        if self.inputs is None or self.inputs.tensors is None:
            return None
        outputs = self.outputs.tensors if self.outputs else None
        frame: dict[str, Any] = msgspec.to_builtins(
            {"inputs": self.inputs.tensors, "outputs": outputs or []}
        )
        return frame

    def _optimize_frame(self, folder: Path) -> dict[str, Any]:
        if self.optimize is None:
            return {}
        frame: dict[str, Any] = msgspec.to_builtins(self.optimize)
        if self.optimize.calibrate:
            frame["calibrate"] = str(folder / Path(self.optimize.calibrate).expanduser())
        return frame


class ModelsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole models file.

    Attributes:
        models: the models that are served, by name.
        pipelines: several models over one input, by name; docs/pipelines.md.
    """

    models: dict[_Name, ModelOptions]
    pipelines: dict[_Name, PipelineSection] = {}


@dataclass(slots=True)
class Catalog:
    """All registered models and pipelines. Only `adopt` changes it.

    Attributes:
        models: by name, in the order of the file.
        pipelines: by name, in the order of the file. No model has the name of a pipeline.
        versions: the versions of each model, if the registry has been read.
        written: the options of each model as they are written in the file.
    """

    path: Path
    models: dict[str, ModelConfig]
    pipelines: dict[str, PipelineConfig] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, ModelConfig]] = field(default_factory=dict)
    written: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _addressed: dict[str, ModelConfig] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._address()

    def adopt(
        self,
        versions: Mapping[str, Mapping[str, ModelConfig]],
        traffic: Mapping[str, Traffic] = NO_TRAFFIC,
    ) -> None:
        """Replace the models, for all that hold this catalog.

        Args:
            versions: the versions of each model, the default version first.
            traffic: where the jobs go that name no version; by default to the default version.
        """
        self.versions = versions
        self.models = {
            name: _routed(next(iter(known.values())), known, traffic.get(name))
            for name, known in versions.items()
        }
        self._address()

    def _address(self) -> None:
        self._addressed = {
            **self.models,
            **{name: _facade(one, self.models) for name, one in self.pipelines.items()},
        }

    @property
    def base_dir(self) -> Path:
        """Return the folder to which relative paths in the file refer."""
        return self.path.absolute().parent

    @property
    def served(self) -> list[ModelConfig]:
        """Return the models, and the pipelines as models: all that jobs can be submitted to."""
        return list(self._addressed.values())

    def has_shadow(self) -> bool:
        """Return whether any model has a shadow version."""
        routed = (model.traffic for model in self.models.values())
        return any(one is not None and one.shadow is not None for one in routed)

    def differing(self) -> Iterator[tuple[str, str]]:
        """Yield the pipelines whose models declare a parameter differently, with a message."""
        for name, pipeline in self.pipelines.items():
            for one in _merged(pipeline.models, self.models)[1]:
                text = f"its models declare the parameter {one} differently; rename it in one"
                yield name, text

    def get(self, name: str) -> ModelConfig:
        """Return a model, or a pipeline as one; raise ModelNotFound, which lists all, if none."""
        try:
            return self._addressed[name]
        except KeyError:
            raise unknown_model(name, self._addressed) from None


def _routed(
    model: ModelConfig, known: Mapping[str, ModelConfig], traffic: Traffic | None
) -> ModelConfig:
    """Return the default version of a model with the traffic among its known versions."""
    found = traffic and traffic.among(known)
    return model if model.traffic == found else msgspec.structs.replace(model, traffic=found)


def _facade(pipeline: PipelineConfig, models: Mapping[str, ModelConfig]) -> ModelConfig:
    """Return a pipeline as a model: its queue, version, limits, inputs, and models' parameters."""
    first = models.get(pipeline.whole_to)
    headers = (models[name].headers for name in pipeline.models if name in models)
    return ModelConfig(
        name=pipeline.name,
        handler=HANDLER,
        version=pipeline.version,
        max_queue_depth=pipeline.max_queue_depth,
        timeout_s=pipeline.timeout_s,
        inputs=pipeline.inputs or (first.inputs if first else None),
        outputs=pipeline.outputs,
        parameters=_merged(pipeline.models, models)[0],
        headers=sorted({name for names in headers for name in names}),
    )


def _merged(
    names: Iterable[str], models: Mapping[str, ModelConfig]
) -> tuple[dict[str, Parameter], list[str]]:
    """Return the parameters of several models together, and those that they declare differently.

    Each model has its own defaults, so the parameters here have none.
    """
    found: dict[str, Parameter] = {}
    differing: list[str] = []
    for model in (models[one] for one in names if one in models):
        for name, parameter in model.parameters.items():
            plain = msgspec.structs.replace(parameter, default=None, description="", required=False)
            first = found.setdefault(name, plain)
            if msgspec.structs.replace(first, required=False, description="") != plain:
                differing.append(name)
            found[name] = msgspec.structs.replace(
                first,
                required=first.required or parameter.required,
                description=first.description or parameter.description,
            )
    return found, differing


def load_catalog(path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Catalog:
    """Read a models file, but not the sources that it names (`headrace.models.catalog`).

    The timeout is that of models without their own.

    Raises:
        ConfigError: the file has mistakes; the message has one line per mistake.
    """
    document = load_yaml(path, what="models file")
    catalog = _read(document, timeout_s)
    if document.problems:
        raise ConfigError("\n".join(document.problems))
    return catalog


def read_model(
    name: str, options: Mapping[str, Any], folder: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> ModelConfig:
    """Return a model with options written as in a file; raise ConfigError with each mistake."""
    document = Document(folder, {"models": {name: dict(options)}}, None)
    model = _read_model(document, name, folder, timeout_s)
    if model is None:
        raise ConfigError("\n".join(document.problems))
    return model


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
        if model.source is not None:  # headrace.models.catalog checks what is in it
            continue
        problem = handler_problem(parse_handler(model.handler), catalog.base_dir)
        if problem:
            document.report((*where, "handler"), problem)
        if model.weights is not None and (problem := missing(Path(model.weights))):
            document.report((*where, "weights"), problem)
    return document.problems


def _read(document: Document, timeout_s: float) -> Catalog:
    for key in document.data:
        if key not in _KEYS:
            document.report((key,), f"unknown key{did_you_mean(str(key), _KEYS)}")
    models: dict[str, ModelConfig] = {}
    sections = document.data.get("models")
    # `models: {}` is for a deployment whose models are all registered while it runs.
    if not isinstance(sections, dict):
        given = f"got {shown(sections)}" if "models" in document.data else "the key is missing"
        document.report(("models",), f"expected a mapping of models, {given}")
        return Catalog(document.path, models)
    base_dir = document.path.absolute().parent
    for name in sections:
        model = _read_model(document, name, base_dir, timeout_s)
        if model is not None:
            models[name] = model
    catalog = Catalog(document.path, models, _pipelines(document, sections), written=sections)
    for name, text in catalog.differing():
        document.report(("pipelines", name, "stages"), text)
    return catalog


def _check_source(document: Document, name: str, section: Mapping[Any, Any]) -> None:
    if section.get("source") is None and section.get("handler") is None:
        document.report(("models", name), "the key `handler` is missing, or `source`")
    if section.get("sha256") is not None and section.get("source") is None:
        document.report(("models", name, "sha256"), "it needs source; add that key")


def _read_model(
    document: Document, name: Any, base_dir: Path, timeout_s: float
) -> ModelConfig | None:
    """Return a model; None after a mistake, which is reported."""
    before = len(document.problems)
    if problem := _name_problem(name, "model"):
        document.report(("models", name), problem)
    values = read_options(document, ("models", name), ModelOptions, base_dir)
    section = document.data["models"][name]
    if isinstance(section, dict):
        _check_source(document, name, section)
    if len(document.problems) > before:
        return None
    model = model_of(name, {"timeout_s": timeout_s, **values}, base_dir)
    if model.source is None:
        return model
    written = tuple(key for key, value in values.items() if value is not None)
    return msgspec.structs.replace(model, written=written, weights=values.get("weights"))


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
        if problem := _name_problem(name, "pipeline"):
            document.report(("pipelines", name), problem)
        elif name in models:
            document.report(("pipelines", name), "a model has this name; choose another")
        pipeline = _pipeline(document, name, models)
        if pipeline is not None:
            found[name] = pipeline
    return found


def _pipeline(document: Document, name: str, models: Mapping[Any, Any]) -> PipelineConfig | None:
    """Return a pipeline; None after a mistake, which is reported."""
    before = len(document.problems)
    keys = ("pipelines", name)
    written = document.data["pipelines"][name]
    if not isinstance(written, dict):
        document.report(keys, f"expected a mapping with the key `stages`, got {shown(written)}")
        return None
    stages = _pipeline_stages(document, name, written)
    folder = document.path.absolute().parent
    values = read_keys(document, keys, PipelineOptions, folder, leave=("stages",))
    if len(document.problems) > before:
        return None
    try:
        pipeline = build(name, PipelineSection(stages=stages, **values))
    except KeyProblem as problem:
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


def model_of(name: str, values: Mapping[str, Any], base_dir: Path) -> ModelConfig:
    """Return a model from its valid options, with the folder to which relative paths refer."""
    sizes = values.get("allowed_batch_sizes")
    if sizes is not None:
        values = {"max_batch_size": max(sizes), **values, "allowed_batch_sizes": sorted(sizes)}
    values = {**values, "handler": values.get("handler") or ""}
    if values.get("replicas") == "auto":
        values |= {"replicas": 1, "auto_replicas": True}
    model = ModelConfig(name=name, **values)
    tensors = model.inputs.tensors if model.inputs else None
    if tensors and has_rows(tensors) and model.max_batch_cost is None:
        # A batch has as many rows as it may have inputs.
        most = model.max_batch_size
        model = msgspec.structs.replace(model, cost="rows", max_batch_cost=most)
    if model.weights is None:
        return model
    weights = (base_dir / Path(model.weights).expanduser()).absolute()
    return msgspec.structs.replace(model, weights=str(weights))


def _name_problem(name: object, what: str) -> str:
    if not isinstance(name, str):
        return f"a {what}'s name must be text; write {shown(name)} in quotes"
    if _MODEL_NAME.fullmatch(name):
        return ""
    return f"a {what}'s name has 1 to 64 of A-Z a-z 0-9 _ . - and does not begin with . or -"
