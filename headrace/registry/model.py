"""The registered models as data, and what a change makes of them. Does no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from headrace.config.model.traffic import Traffic, known_parts, read_traffic
from headrace.config.suggestions import did_you_mean, listing, unknown_model
from headrace.errors import Conflict, InvalidRequest, ModelNotFound

#: The options of a version as a models file or a request has them.
Options = dict[str, Any]
#: Options whose values stay in the server: paths and addresses of files, and what may be secret.
HIDDEN_OPTIONS: Final = frozenset({"options", "source", "weights"})
#: The longest value that the text of a change shows.
_SHOWN_CHARS: Final = 80


class Revision(NamedTuple):
    """Which state of the registry one is.

    Attributes:
        generation: how often anything was changed; 0 if nothing ever was.
        change: the id of the newest change. If Redis loses a write and counts to the same number
            again, it has another one.
    """

    generation: int = 0
    change: str = ""


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a registered model.

    Attributes:
        declared: its options in the models file; None if the file does not have it.
        changed: options that were changed over the API; they win.
        loads: how many reloads were requested.
    """

    declared: Options | None = None
    changed: Options = {}
    loads: int = 0

    @property
    def options(self) -> Options:
        """Return the options that hold."""
        return {**(self.declared or {}), **self.changed}


class RegisteredModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One registered model.

    Attributes:
        generation: how often it was changed; the first is 1.
        versions: its versions, the oldest registration first.
        declared_default: the default version by the models file; "" if the file does not have it.
        default: the default version that was chosen over the API; "" if none was.
        traffic: the traffic that was set over the API; None if the models file decides.
        by: who made the last change: an API key's id, or a command.
        at_s: when, in seconds since 1970.
        what: the last change in words.
    """

    name: str
    generation: int
    versions: dict[str, ModelVersion]
    declared_default: str = ""
    default: str = ""
    traffic: Traffic | None = None
    by: str = ""
    at_s: float = 0.0
    what: str = ""

    @property
    def default_version(self) -> str:
        """Return the version of jobs that name none."""
        for version in (self.default, self.declared_default):
            if version in self.versions:
                return version
        return next(iter(self.versions))

    @property
    def declared_traffic(self) -> Traffic | None:
        """Return the traffic of the models file."""
        declared = self.versions.get(self.declared_default)
        return _declared_traffic((declared and declared.declared) or {})

    @property
    def routing(self) -> Traffic | None:
        """Return the traffic that holds; None if all jobs run on the default version."""
        found = self.traffic if self.traffic is not None else self.declared_traffic
        return found if found is not None and found.versions else None

    def version(self, name: str) -> ModelVersion:
        """Return a version, "" for the default one; raise ModelNotFound for unknown ones."""
        found = self.versions.get(name or self.default_version)
        if found is None:
            raise ModelNotFound(
                f"the model {self.name} has no version {name[:64]!r}"
                f"{did_you_mean(name[:64], self.versions)}",
                hint=f"use one of {listing(self.versions)}",
            )
        return found


@dataclass(frozen=True, slots=True)
class Registry:
    """All registered models at one moment.

    Attributes:
        generation: how often anything was changed; 0 if nothing ever was.
        file: the SHA-256 of the models file that was applied last; "" if none was.
        models: by name, in order of their names.
        change: the id of the newest change; see `Revision`.
        declared: the version of each model in that file.
    """

    generation: int = 0
    file: str = ""
    models: Mapping[str, RegisteredModel] = field(default_factory=dict)
    change: str = ""
    declared: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> Revision:
        """Return which state this is."""
        return Revision(self.generation, self.change)

    def get(self, name: str) -> RegisteredModel:
        """Return a model; raise ModelNotFound if no such model is registered."""
        found = self.models.get(name)
        if found is None:
            raise unknown_model(name, self.models)
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """What one change makes of one model.

    Attributes:
        before: the model as it was; None if it is new.
        after: the model as it is to become; None if it is removed.
        what: the change in words, for the log of changes.
    """

    name: str
    before: RegisteredModel | None
    after: RegisteredModel | None
    what: str


class DeclaredModels(NamedTuple):
    """The models of a models file.

    Attributes:
        models: name -> version and options, as they are written.
        digest: the SHA-256 of the models; comments and order do not count.
    """

    models: Mapping[str, tuple[str, Options]]
    digest: str

    def changes(self, registry: Registry, *, prune: bool) -> list[Change]:
        """Return the changes that make the file the declared state.

        Args:
            prune: remove the models and versions that only a file had, and this one has not.
        """
        changes = []
        for name, (version, options) in self.models.items():
            before = registry.models.get(name)
            after = _declared(before, name, version, options, prune=prune)
            if before is None:
                changes.append(Change(name, None, after, f"added version {version} from the file"))
            elif _content(before) != _content(after):
                what = _difference(before, after)
                changes.append(Change(name, before, after, f"applied the file: {what}"))
        for name, before in registry.models.items():
            if prune and name not in self.models:
                changes += _pruned(before)
        return changes


class Difference(NamedTuple):
    """One place where the registry differs from the models file.

    Attributes:
        option: the option; "" for a version that the file does not have; `version` for one that
            the file has and that was removed.
        declared: its value in the file; None if it has none there.
        present: the value that holds.
    """

    model: str
    version: str
    option: str
    declared: Any
    present: Any


def digest_of(declared: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the SHA-256 of a models file's models; comments and the order of keys do not count."""
    return hashlib.sha256(msgspec.msgpack.encode(_sorted(declared))).hexdigest()


def set_options(
    registry: Registry, name: str, version: str, options: Mapping[str, Any]
) -> list[Change]:
    """Return the change that sets options of a version.

    An option that is set to None returns to its value in the models file, or to its default.
    """
    model = registry.get(name)
    version = version or model.default_version
    one = model.version(version)
    _check_version(version, options)
    changed = {**one.changed, **options}
    changed = {key: value for key, value in changed.items() if value is not None}
    after = _with_version(model, version, msgspec.structs.replace(one, changed=changed))
    given = ", ".join(_in_words(k, v) for k, v in sorted(options.items()) if v is not None)
    back = ", ".join(sorted(k for k, v in options.items() if v is None))
    words = [f"set {given}"] * bool(given) + [f"took back {back}"] * bool(back)
    return _change_of(model, after, f"{', '.join(words)} of version {version}")


def register(registry: Registry, name: str, version: str, options: Options) -> list[Change]:
    """Return the change that adds a model or a version, or replaces what the API had set of it.

    The first version of a model is its default version, until another one is chosen.
    """
    _check_version(version, options)
    model = registry.models.get(name)
    one = ModelVersion(changed=options)
    if model is None:
        after = RegisteredModel(name=name, generation=0, versions={version: one}, default=version)
        return [Change(name, None, after, f"registered version {version}")]
    old = model.versions.get(version)
    if old is not None:
        # The same registration again starts new processes: its files may have changed.
        one = msgspec.structs.replace(old, changed=options, loads=old.loads + 1)
    after = _with_version(model, version, one)
    return [Change(name, model, after, f"registered version {version}")]


def withdraw(registry: Registry, name: str, version: str, options: Options) -> list[Change]:
    """Return the change that takes back a registration whose version could not be loaded.

    There is nothing to take back if the version was removed or changed since.
    """
    model = registry.models.get(name)
    one = model.versions.get(version) if model is not None else None
    if model is None or one is None or one != ModelVersion(changed=options):
        return []
    what = f"took back version {version}, which could not be loaded"
    versions = {key: other for key, other in model.versions.items() if key != version}
    if not versions:
        return [Change(name, model, None, what)]
    default = "" if model.default == version else model.default
    after = msgspec.structs.replace(model, versions=versions, default=default)
    return [Change(name, model, after, what)]


def unregister(registry: Registry, name: str, version: str = "") -> list[Change]:
    """Return the change that removes a version, or with "" the whole model.

    Raises:
        Conflict: it is the default version, and the model has others; or the traffic names it.
    """
    model = registry.get(name)
    if not version:
        return [Change(name, model, None, "removed the model")]
    model.version(version)
    if len(model.versions) == 1:
        return [Change(name, model, None, f"removed version {version}, the last one")]
    if version == model.default_version:
        others = listing([one for one in model.versions if one != version])
        raise Conflict(
            f"version {version} is the default version of {name}",
            hint=f"first choose another default version: {others}",
        )
    if model.routing is not None and version in model.routing.versions:
        raise Conflict(
            f"the traffic of {name} names version {version}: {model.routing.in_words()}",
            hint=f"first change the traffic: `headrace models route {name}`",
        )
    versions = {key: one for key, one in model.versions.items() if key != version}
    after = msgspec.structs.replace(model, versions=versions)
    return [Change(name, model, after, f"removed version {version}")]


def choose_default(registry: Registry, name: str, version: str) -> list[Change]:
    """Return the change that makes a version the default one, which then gets all traffic."""
    model = registry.get(name)
    model.version(version)
    after, what = msgspec.structs.replace(model, default=version), ""
    routing = model.routing
    if routing is not None and routing.without_weights(version) != routing:
        after = _with_traffic(after, routing.without_weights(version))
        what = f", and ended the traffic {routing.in_words()}"
    return _change_of(model, after, f"chose version {version} as the default{what}")


def set_traffic(registry: Registry, name: str, traffic: Traffic | None) -> list[Change]:
    """Return the change that sets the traffic of a model; None returns to that of the models file.

    Raises:
        ModelNotFound: the model, or a version that the traffic names, is not registered.
    """
    model = registry.get(name)
    for version in traffic.versions if traffic is not None else ():
        model.version(version)
    after = _with_traffic(model, traffic)
    words = after.routing.in_words() if after.routing is not None else "the default version"
    return _change_of(model, after, f"routed jobs to {words}")


def reload(registry: Registry, name: str, *versions: str) -> list[Change]:
    """Return the change that starts new model processes of versions; "" is the default one."""
    model = after = registry.get(name)
    chosen = {version or model.default_version for version in versions or ("",)}
    for version in chosen:
        one = model.version(version)
        newer = msgspec.structs.replace(one, loads=one.loads + 1)
        after = _with_version(after, version, newer)
    return [Change(name, model, after, f"reloaded {listing(chosen)}")]


def differences(registry: Registry) -> list[Difference]:
    """Return where the registry differs from the models file."""
    rows = [
        Difference(name, version, "version", version, None)
        for name, version in registry.declared.items()
        if name not in registry.models or version not in registry.models[name].versions
    ]
    for name, model in registry.models.items():
        for version, one in model.versions.items():
            if one.declared is None:
                rows.append(Difference(name, version, "", None, None))
                continue
            rows += [
                Difference(name, version, key, one.declared.get(key), value)
                for key, value in sorted(one.changed.items())
                if one.declared.get(key) != value
            ]
        if model.default and model.default != model.declared_default:
            both = (model.declared_default or None, model.default)
            rows.append(Difference(name, model.default, "default_version", *both))
        if model.traffic is not None and model.traffic != model.declared_traffic:
            traffic = (model.declared_traffic, model.traffic)
            was, now = (one and msgspec.to_builtins(one) for one in traffic)
            rows.append(Difference(name, model.default_version, "traffic", was, now))
    return rows


def _declared_traffic(options: Options) -> Traffic | None:
    """Return the traffic among the options of a models file, which were checked when it was read.

    A process has none if it cannot read it, as of another version.
    """
    try:
        written = known_parts(options.get("traffic"))
        return read_traffic(written) if written is not None else None
    except ValueError:
        return None


def _check_version(version: str, options: Mapping[str, Any]) -> None:
    if "traffic" in options:
        raise InvalidRequest(
            "traffic: it belongs to the model, and not to one version",
            hint="use `headrace models route`, or PUT /api/v1/models/{model}/traffic",
        )
    if options.get("version", version) != version:
        raise InvalidRequest(
            f"version: it is {version} here, and cannot be {options['version']!r} too",
            hint="leave the option out; to rename a version, register the new one and promote it",
        )


def _sorted(value: Any) -> Any:
    """Return a value with the keys of its mappings in one order; they may be of several types."""
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
        return [[key, _sorted(one)] for key, one in items]
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _declared(
    before: RegisteredModel | None, name: str, version: str, options: Options, *, prune: bool
) -> RegisteredModel:
    if before is None:
        one = ModelVersion(declared=options)
        return RegisteredModel(
            name=name, generation=0, versions={version: one}, declared_default=version
        )
    versions = dict(before.versions)
    old = versions.get(version, ModelVersion())
    versions[version] = msgspec.structs.replace(old, declared=options)
    traffic = before.traffic if before.traffic is not None else _declared_traffic(options)
    kept = {before.default, *(traffic.versions if traffic is not None else ())}
    for other, one in before.versions.items():
        if other != version and one.declared is not None and prune:
            if one.changed or other in kept:
                versions[other] = _undeclared(one)
            else:
                del versions[other]
    return msgspec.structs.replace(before, versions=versions, declared_default=version)


def _undeclared(one: ModelVersion) -> ModelVersion:
    """Return a version that the file has no more, with all options that hold but the traffic."""
    options = {key: value for key, value in one.options.items() if key != "traffic"}
    return msgspec.structs.replace(one, declared=None, changed=options)


def _pruned(before: RegisteredModel) -> list[Change]:
    kept = {
        version: _undeclared(one)
        for version, one in before.versions.items()
        if one.changed or one.declared is None
    }
    if not kept:
        return [Change(before.name, before, None, "removed: the file does not have it")]
    after = msgspec.structs.replace(before, versions=kept, declared_default="")
    if _content(before) == _content(after):
        return []
    what = "kept what was changed over the API: the file does not have it"
    return [Change(before.name, before, after, what)]


def _with_traffic(model: RegisteredModel, traffic: Traffic | None) -> RegisteredModel:
    """Return the model with this traffic; none at all is stored only against that of the file."""
    if traffic == Traffic() and model.declared_traffic is None:
        traffic = None
    return msgspec.structs.replace(model, traffic=traffic)


def _with_version(model: RegisteredModel, version: str, one: ModelVersion) -> RegisteredModel:
    return msgspec.structs.replace(model, versions={**model.versions, version: one})


def _change_of(before: RegisteredModel, after: RegisteredModel, what: str) -> list[Change]:
    return [] if _content(before) == _content(after) else [Change(before.name, before, after, what)]


def _content(model: RegisteredModel) -> tuple[Any, ...]:
    return (list(model.versions.items()), model.declared_default, model.default, model.traffic)


def _in_words(key: str, value: object) -> str:
    """Return an option with its value; without it if it is hidden, long or not a single value."""
    if value is None:
        return f"{key} removed"
    plain = isinstance(value, bool | int | float | str)
    if key in HIDDEN_OPTIONS or not plain or len(text := repr(value)) > _SHOWN_CHARS:
        return key
    return f"{key}={text}"


def _difference(before: RegisteredModel, after: RegisteredModel) -> str:
    """Return what differs between two states of a model, in words."""
    words = []
    for version, one in after.versions.items():
        old = before.versions.get(version)
        if old is None or old.declared is None:
            words.append(f"version {version}")
            continue
        was, now = old.declared, one.declared or {}
        keys = sorted(key for key in {*was, *now} if was.get(key) != now.get(key))
        words += [_in_words(key, now.get(key)) for key in keys]
    words += [f"without version {one}" for one in before.versions if one not in after.versions]
    return ", ".join(words) or f"default version {after.default_version}"
