"""The models that `headrace torchserve` starts with, and what they change in the registry."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from extensions.torchserve.config.archive import archive_handler, download, is_url
from extensions.torchserve.config.launch import Launch
from extensions.torchserve.config.manifest import MANIFEST
from extensions.torchserve.config.model_config import (
    AT_START,
    details_of,
    model_options,
    requested_too_small,
    with_snapshot,
)
from extensions.torchserve.config.settings import is_allowed
from extensions.torchserve.config.snapshot import HANDLER, SnapshotModel
from extensions.torchserve.config.workflow import SUFFIX, read_workflow, write_archives
from headrace.config.model.options import DEFAULT_VERSION
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.jobs.ids import MODEL_NAME
from headrace.models.archive import ARCHIVES, Limits, is_archive, unpack
from headrace.models.folder import MODEL_FILE
from headrace.models.source import SourceReader
from headrace.registry.model import (
    Change,
    DeclaredModels,
    ModelVersion,
    RegisteredModel,
    Registry,
    unregister,
)
from headrace.registry.store import RegistryStore

#: The author of changes, in the log of the registry.
BY: Final = "headrace torchserve --start"
#: The model processes of a model for which nothing gives a number.
DEFAULT_WORKERS: Final = 1


class Start(NamedTuple):
    """A version of a model that the server starts with."""

    name: str
    version: str
    options: dict[str, Any]
    is_default: bool


class StartReader:
    """Reads the archives that the server starts with; reports what is left out or fetched."""

    def __init__(
        self,
        launch: Launch,
        reader: SourceReader,
        settings: Settings,
        report: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._reader = reader
        self._settings = settings
        self._store = settings.model_store or Path()
        self._report = report

    def read(self) -> list[Start]:
        """Return the models that the server starts with.

        Raises:
            ConfigError: a model that is named does not exist, or cannot be read; the archive of a
                model of the snapshot does not exist.
        """
        restored = self._launch.restored
        if restored is not None:
            return list(filter(None, map(self._restored, restored)))
        if self._launch.loads_all:
            return self._all()
        found: dict[tuple[str, str], Start] = {}
        for one in self._launch.named_models:
            start = self._start(self._in_store(one.source), one.name)
            if (start.name, start.version) in found:
                raise ConfigError(
                    f"{one.source}: the model {start.name} is there twice with version "
                    f"{start.version}",
                    hint="load one of the two archives",
                )
            found[start.name, start.version] = start
        return list(found.values())

    def _all(self) -> list[Start]:
        """Return the models of all archives and folders in the model store."""
        found: dict[tuple[str, str], Start] = {}
        for path in sorted(self._store.iterdir()):
            if path.name.startswith("."):
                continue
            if not _is_model(path):
                self._report(
                    f"{path.name} in the model store is left out: it is no archive of a model"
                )
                continue
            try:
                start = self._start(path.name, "")
            except ConfigError as error:
                self._report(f"{path.name} in the model store is not loaded: {error.message}")
                continue
            first = found.setdefault((start.name, start.version), start)
            if first is not start:
                self._report(
                    f"{path.name} in the model store is not loaded: {first.options['source']} is "
                    f"the model {start.name} with version {start.version} too"
                )
        return list(found.values())

    def _start(self, source: str, name: str) -> Start:
        default = self._launch.config.default_service_handler
        found = self._reader.read(source, given=("handler",) if default else ())
        name = name or found.name or _stem(source)
        _check_name(name, source)
        version = str(found.options.get("version", DEFAULT_VERSION))
        options = model_options(
            self._launch.config, name, version, found.settings, workers=DEFAULT_WORKERS
        )
        details = {AT_START: True, **details_of(found.settings), **options.get("options", {})}
        options |= {"source": source, "options": details}
        if default and "handler" not in found.options:
            options["handler"] = archive_handler(found.folder, default)
        return Start(name, version, options, is_default=False)

    def _restored(self, one: SnapshotModel) -> Start | None:
        """Return a model of a snapshot; None, with a report, if its archive is broken."""
        config = self._launch.config
        given = ("handler",) if HANDLER in one.settings or config.default_service_handler else ()
        try:
            _check_name(one.name, one.archive)
            found = self._reader.read(one.archive, given=given)
        except ConfigError as error:
            if not (self._store / one.archive).exists():
                raise ConfigError(
                    f"{self._launch.file}: the model {one.name}: {error.message}",
                    hint="put the archive back, or start with --ncs",
                ) from error
            self._report(f"the model {one.name} of the snapshot is not loaded: {error.message}")
            return None
        config = msgspec.structs.replace(config, models={one.name: {one.version: one.settings}})
        values = with_snapshot(found.settings, one.settings)
        small = requested_too_small(one.settings)
        options = model_options(config, one.name, one.version, values, small)
        details = {**details_of(found.settings), **options.get("options", {})}
        options |= {"source": one.archive, "options": details}
        if HANDLER in one.settings:
            options["handler"] = str(one.settings[HANDLER])
        elif config.default_service_handler and "handler" not in found.options:
            options["handler"] = archive_handler(found.folder, config.default_service_handler)
        return Start(one.name, one.version, options, one.is_default)

    def _in_store(self, source: str) -> str:
        """Return a source; for a URL, the name in the model store that it is fetched into."""
        if not is_url(source):
            return source
        allowed, shown = self._launch.config.allowed_urls, source.partition("?")[0]
        if not is_allowed(source, allowed):
            raise ConfigError(
                f"{shown}: this URL is not allowed", hint="add an expression to allowed_urls"
            )
        name = PurePosixPath(urlsplit(source).path).name
        if source[:5].lower() == "file:":
            return source
        if not is_archive(name):
            raise ConfigError(f"{shown}: it names no archive ({', '.join(ARCHIVES)})")
        target = self._store / name
        if target.exists():
            self._report(f"{name} is in the model store, so {shown} is not fetched")
            return name
        self._report(f"{shown} is fetched into the model store")
        partial = target.with_name(f".{name}.{os.getpid()}")
        try:
            download(self._settings, allowed, source, partial)
            partial.replace(target)
        except OSError as error:
            raise ConfigError(f"{target}: it cannot be written: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)
        return name


def _check_name(name: str, source: str) -> None:
    if not re.fullmatch(MODEL_NAME, name):
        raise ConfigError(
            f"{source}: the name of a model has 1 to 64 of A-Z a-z 0-9 _ . - and does not "
            f"begin with . or -, unlike {name[:64]!a}",
            hint="load it as name=archive",
        )


def _is_model(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in (MANIFEST, MODEL_FILE))
    return is_archive(path.name)


def _stem(source: str) -> str:
    name = Path(source).name
    suffix = next((one for one in ARCHIVES if name.lower().endswith(one)), "")
    return name[: -len(suffix)] if suffix else name


def register_all(
    store: RegistryStore, starts: Iterable[Start], declared: DeclaredModels, *, alone: bool
) -> list[Change]:
    """Register the models that the server starts with; return what that has changed.

    Args:
        declared: the models file, which has those of workflows; workers follow the registry if it
            is applied.
        alone: whether the registry is of this server alone. Then it has no others afterwards;
            else only those are added that it does not have.
    """
    applied = store.apply(declared, BY, prune=alone)
    registry = store.read()
    changes = changes_for(registry, starts, declared.models, alone=alone)
    store.write(registry, changes, BY, applied=declared)
    return [*applied, *changes]


def changes_for(
    registry: Registry, starts: Iterable[Start], kept: Collection[str] = (), *, alone: bool
) -> list[Change]:
    """Return what makes the registry that of `register_all`; `kept` are models of its file."""
    wanted: dict[str, dict[str, Start]] = {}
    for one in starts:
        wanted.setdefault(one.name, {})[one.version] = one
    changes: list[Change] = []
    for name, versions in wanted.items():
        before = registry.models.get(name)
        after = _model(name, versions, before if not alone else None)
        if before is None or _content(before) != _content(after):
            changes.append(
                Change(name, before, after, f"loaded {', '.join(versions)} at the start")
            )
    if alone:
        for name in registry.models:
            changes += unregister(registry, name) if name not in {*wanted, *kept} else []
    return changes


def _model(
    name: str, versions: Mapping[str, Start], before: RegisteredModel | None
) -> RegisteredModel:
    found = {version: ModelVersion(changed=one.options) for version, one in versions.items()}
    if before is not None:
        return msgspec.structs.replace(before, versions={**found, **before.versions})
    default = next((one.version for one in versions.values() if one.is_default), "")
    return RegisteredModel(
        name=name, generation=0, versions=found, default=default or next(iter(found))
    )


def _content(model: RegisteredModel) -> tuple[object, ...]:
    versions = {
        version: msgspec.structs.replace(one, loads=0) for version, one in model.versions.items()
    }
    return model.default_version, model.declared_default, model.traffic, versions


def read_workflows(
    store: Path, folder: Path, limits: Limits, reader: SourceReader, report: Callable[[str], None]
) -> str:
    """Return the models file with the workflows of a store; without any, it has no models.

    Args:
        folder: where the archives are unpacked; what is there is removed.
        report: prints which workflow is left out, and why.
    """
    shutil.rmtree(folder, ignore_errors=True)
    document: dict[str, Any] = {"models": {}, "pipelines": {}}
    archives = {}
    for path in sorted(store.glob(f"[!.]*{SUFFIX}")):
        target = folder / path.stem
        try:
            unpack(path, target, limits)
            workflow = read_workflow(target, path.name)
            for source in filter(None, (node.source for node in workflow.nodes)):
                reader.read(source)
        except ConfigError as error:
            report(f"{path.name} in the workflow store is not loaded: {error.message}")
            continue
        if workflow.name in document["pipelines"]:
            report(f"{path.name} in the workflow store is not loaded: {workflow.name} is there")
            continue
        for key, members in workflow.document(str(target)).items():
            document[key] |= members
        archives[workflow.name] = path.name
        report(f"{path.name} in the workflow store is the pipeline {workflow.name}")
    write_archives(folder, archives)
    if not document["pipelines"]:
        del document["pipelines"]  # a models file has at least one, or no such section
    return yaml.safe_dump(document, sort_keys=False)
