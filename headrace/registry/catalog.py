"""The registry as a catalog of models, and the models file as the registry's declared state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.config.model.catalog import Catalog, ModelConfig, load_catalog, read_model
from headrace.config.model.options import DEFAULT_VERSION
from headrace.config.model.traffic import known_parts
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.catalog import read_sources, with_source
from headrace.models.source import SourceReader, reading
from headrace.registry.model import DeclaredModels, ModelVersion, Registry, digest_of

logger = logging.getLogger(__name__)


def declared_of(catalog: Catalog) -> DeclaredModels:
    """Return the models of the models file that this catalog was read from.

    A model without a `version` in the file has that of its source, if the catalog was read with its
    sources.
    """
    models = {
        name: (options.get("version", catalog.models[name].version), dict(options))
        for name, options in catalog.written.items()
    }
    digested = dict(catalog.written)
    for name, (version, options) in models.items():
        # A new version in a source changes the digest, as one in the file does.
        if version != options.get("version", DEFAULT_VERSION):
            digested[name] = {**options, "version": version}
    return DeclaredModels(models, digest_of(digested))


class RegisteredConfig(NamedTuple):
    """One version of a registered model, as a worker serves it.

    Attributes:
        config: the model; None if its options are wrong for this version of Headrace.
        is_default: whether jobs that name no version run on it.
        problem: what is wrong with the options; "" if nothing is.
    """

    config: ModelConfig | None
    loads: int
    is_default: bool
    problem: str


def read_declared(path: Path, settings: Settings | None = None) -> DeclaredModels:
    """Read a models file, and the sources of its models that have no `version` there.

    Args:
        settings: where sources may come from; None: from the disk.

    Raises:
        ConfigError: the file or a source has mistakes; the message has one line per mistake.
    """
    catalog = load_catalog(path)
    settings = settings or Settings(models_file=path)
    names = [
        name
        for name, model in catalog.models.items()
        if model.source is not None and "version" not in catalog.written[name]
    ]
    problems = read_sources(SourceReader(settings, catalog.base_dir), catalog, settings, names)
    if problems:
        raise ConfigError(
            "\n".join(problems), hint="if it cannot be read here, write its `version` into the file"
        )
    return declared_of(catalog)


class ConfigReader:
    """Makes the configurations of registered models, for one process.

    Args:
        catalog: the models file, with its sources; they are not read again while they are
            registered as the file has them. Relative paths refer to the file's folder.
        lenient: whether a source that cannot be read is only logged. Its model then has the keys
            that are registered, which is enough for a process that does not run it.
    """

    def __init__(self, settings: Settings, catalog: Catalog, *, lenient: bool = False) -> None:
        self._settings = settings
        self._folder = catalog.base_dir
        self._lenient = lenient
        self.sources = SourceReader(settings, self._folder)
        self._known: dict[tuple[str, str], tuple[ModelVersion, ModelConfig]] = {
            (name, version): (ModelVersion(declared=options), catalog.models[name])
            for name, (version, options) in declared_of(catalog).models.items()
            if catalog.models[name].version == version
        }

    def read(self, name: str, version: str, one: ModelVersion) -> ModelConfig:
        """Return one version of a registered model.

        Raises:
            ConfigError: an option is wrong, or a file cannot be read; the message has one line per
                mistake.
        """
        known = self._known.get((name, version))
        if known is not None and known[0] == one:
            return known[1]
        options = {**one.options, "version": version}
        if "traffic" in options:
            options["traffic"] = known_parts(options["traffic"])
        # What is wrong with one model must not end what reads all of them.
        with reading(f"models.{name}, version {version}"):
            model = read_model(name, options, self._folder, timeout_s=self._settings.timeout_s)
            try:
                model = with_source(self.sources, model, self._settings)
            except ConfigError as error:
                if not self._lenient:
                    raise
                logger.warning("the source of %s is not read: %s", name, error.message)
        self._known[name, version] = (one, model)
        return model

    def all(self, registry: Registry) -> Iterator[tuple[str, str, RegisteredConfig]]:
        """Yield the name, the version and the configuration of all that is registered."""
        for name, version in list(self._known):
            # A version that is removed and registered again may have other files.
            if name not in registry.models or version not in registry.models[name].versions:
                self._known.pop((name, version), None)
        for name, model in registry.models.items():
            default = model.default_version
            for version, one in model.versions.items():
                try:
                    config, problem = self.read(name, version, one), ""
                except ConfigError as error:
                    config, problem = None, error.message
                found = RegisteredConfig(config, one.loads, version == default, problem)
                yield name, version, found

    def versions(self, registry: Registry) -> dict[str, dict[str, ModelConfig]]:
        """Return the versions of each model, the default version first.

        Versions with wrong options are left out, and models whose default version has them.
        """
        found: dict[str, dict[str, ModelConfig]] = {}
        for name, version, one in sorted(self.all(registry), key=lambda one: not one[2].is_default):
            if one.config is not None and (one.is_default or name in found):
                found.setdefault(name, {})[version] = one.config
        return found
