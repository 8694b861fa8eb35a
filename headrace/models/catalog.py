"""The models file with the sources that it names: what the servers load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from headrace.config.extensions import handler_extension
from headrace.config.model.catalog import Catalog, ModelConfig, Requirements, load_catalog, model_of
from headrace.config.model.options import PER_WORKER, option_problems
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.extension import ModelFolder, descriptions, models_parts
from headrace.models.source import SourceReader

logger = logging.getLogger(__name__)

#: Below the state directory: the installed requirements of models.
ENVIRONMENTS: Final = "environments"


def hosted(settings: Settings) -> Callable[[ModelConfig], bool]:
    """Return whether the labels of a worker with these settings admit a model."""
    return lambda model: set(model.labels) <= set(settings.worker_labels)


def load_models(
    settings: Settings, *, needed: Callable[[ModelConfig], bool] = lambda _: True
) -> Catalog:
    """Return the models file with all sources read, unpacked and kept while this process lives.

    Args:
        settings: name the models file, and where sources may come from.
        needed: whether this process needs the source of a model. One that it does not need and
            cannot read is only logged. Its model then has the keys of the models file.

    Raises:
        ConfigError: the file or a needed source has mistakes; the message has one line per mistake.
    """
    catalog = load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    if all(model.source is None for model in catalog.models.values()):
        return catalog
    reader = SourceReader(settings, catalog.base_dir)
    must = [name for name, model in catalog.models.items() if needed(model)]
    others = [name for name in catalog.models if name not in must]
    if problems := read_sources(reader, catalog, settings, must):
        raise ConfigError("\n".join(problems))
    for text in read_sources(reader, catalog, settings, others):
        logger.warning("%s; only the models file's keys are known here", text)
    reader.unpacked.prune()
    for name, text in catalog.differing():
        raise ConfigError(f"{catalog.path}: pipelines.{name}.stages: {text}")
    return catalog


def read_sources(
    reader: SourceReader, catalog: Catalog, settings: Settings, names: Iterable[str]
) -> list[str]:
    """Give models the keys of their sources; return the mistakes, one line for each model."""
    models, problems = dict(catalog.models), []
    for name in names:
        try:
            models[name] = with_source(reader, models[name], settings)
        except ConfigError as error:
            problems.append(f"{catalog.path}: models.{name}.source: {error.message_with_hint}")
    catalog.adopt({name: {model.version: model} for name, model in models.items()})
    return problems


def with_source(reader: SourceReader, model: ModelConfig, settings: Settings) -> ModelConfig:
    """Return a model with its source's keys, its own first; raise ConfigError if they are bad."""
    if model.source is None:
        return model
    found = reader.read(model.source, model.sha256, model.written)
    written = {key: getattr(model, key) for key in model.written}
    if model.auto_replicas and "replicas" in written:
        written["replicas"] = "auto"
    values = {**_beside(written, found.options), **written}
    runs = models_parts().get(handler_extension(str(values.get("handler", ""))))
    defaults = runs.defaults() if runs and runs.defaults else {"timeout_s": model.timeout_s}
    values = {**defaults, **values}
    values["options"] = {**found.options.get("options", {}), **model.options}
    for key, text in option_problems(values):
        raise ConfigError(f"{key}: {text}", hint=f"compare {found.kind} with the models file")
    described = descriptions().get(found.kind)
    if described is not None and described.check is not None:
        described.check(values)
    return msgspec.structs.replace(
        model_of(model.name, values, found.folder),
        folder=str(found.folder),
        requirements=_requirements(model.name, found, settings),
    )


def _beside(written: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a source that go with those that are written for the model.

    A number for each worker and one for the whole deployment do not go together.
    """
    dropped: tuple[str, ...] = ()
    if "total_replicas" in written:
        dropped = PER_WORKER
    elif any(key in written for key in PER_WORKER):
        dropped = ("total_replicas",)
    return {key: value for key, value in options.items() if key not in dropped}


def _requirements(name: str, found: ModelFolder, settings: Settings) -> Requirements | None:
    if found.requirements is None:
        return None
    if not settings.install_requirements:
        logger.info(
            "%s is not installed, as install_requirements is off",
            found.requirements, extra={"model": name},
        )  # fmt: skip
        return None
    environments = settings.state_dir.absolute() / ENVIRONMENTS
    return Requirements(str(found.requirements), str(environments))
