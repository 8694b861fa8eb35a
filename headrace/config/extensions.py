"""Extensions: what adds a surface or a tool to Headrace without a line in the core.

Python's entry points of the group `headrace.extensions` name the objects, so that any distribution
can publish one. docs/architecture/extensions.md has the rules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.config.environment import server_root

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "headrace.extensions"
#: The package of the extensions that Headrace brings.
PACKAGE: Final = "extensions"
_PRIVATE: Final = "headrace._server"

#: The points whose parts are objects of a class of the core: its module and its name.
POINTS: Final = {
    "api": ("api.extension", "ApiPart"),
    "workers": ("workers.extension", "WorkerPart"),
    "handlers": ("handlers.extension", "HandlerPart"),
    "tensors": ("handlers.extension", "TensorPart"),
    "models": ("headrace.models.extension", "ModelsPart"),
    "server": ("headrace.server.extension", "ServerPart"),
    "logs": ("headrace.observability.extension", "LogsPart"),
}

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `headrace`.

    Attributes:
        load: imports it: a function with typer's options, or a `typer.Typer` with commands.
        context: settings of click's context.
    """

    load: Callable[[], Any]
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What an extension adds. Each part is a function that imports it, called by who needs it.

    `POINTS` has the classes of the parts.

    Attributes:
        name: one word; also the key of its settings.
        summary: what it adds, in a sentence, for `headrace doctor`.
        settings: returns the type of its value in the settings: a struct whose fields have
            defaults, or a simple type.
        variables: HEADRACE_ variables that are not settings; the extension reads them.
        file_hints: what a handler's file without a class is, by a name that it has.
        checks: returns a tuple of `headrace.cli.doctor.check.Check`, for `headrace doctor`.
        exports: what users import from modules of headrace, by its full name there.
    """

    name: str
    summary: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    settings: Callable[[], Any] | None = None
    variables: Collection[str] = ()
    file_hints: Mapping[str, str] = field(default_factory=dict)
    api: Callable[[], object] | None = None
    workers: Callable[[], object] | None = None
    handlers: Callable[[], object] | None = None
    tensors: Callable[[], object] | None = None
    models: Callable[[], object] | None = None
    server: Callable[[], object] | None = None
    logs: Callable[[], object] | None = None
    checks: Callable[[], object] | None = None
    exports: Mapping[str, Callable[[], object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The extensions of this Python that can be used, and why others cannot, by entry point."""

    extensions: dict[str, Extension] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


@cache
def found() -> Found:
    """Return the extensions that are installed. One that cannot be imported stops nothing."""
    # Imported here because a plain command needs none of it.
    from importlib.metadata import entry_points

    result = Found()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            extension = _extension_of(entry)
        except Exception as error:  # noqa: BLE001 - code of any distribution
            result.problems[entry.name] = f"it cannot be imported: {type(error).__name__}: {error}"
            continue
        if not isinstance(extension, Extension) or extension.name != entry.name:
            result.problems[entry.name] = f"{entry.value} is no Extension of that name"
        elif extension.name not in result.extensions:  # a checkout may be installed twice
            result.extensions[extension.name] = extension
    return result


def parts(point: str, kind: type[_Part]) -> dict[str, _Part]:
    """Return the parts of all extensions for one point, by the extension's name.

    A part that cannot be imported is left out, with a warning and a line in `headrace doctor`.
    """
    result: dict[str, _Part] = {}
    for name, extension in found().extensions.items():
        load: Callable[[], object] | None = getattr(extension, point)
        part = None if load is None else loaded(name, f"part `{point}`", load)
        if isinstance(part, kind):
            result[name] = part
        elif part is not None:
            _report(name, f"its part `{point}` is no {kind.__name__}")
    return result


def handler_extension(handler: str) -> str:
    """Return whose handler a model names, as `NAME:...`; "" if it is of no extension."""
    name, colon, _ = handler.partition(":")
    # Most names before a colon are a file or a module, and need no search for extensions.
    extension = found().extensions.get(name) if colon and name.isidentifier() else None
    return name if extension is not None and extension.handlers is not None else ""


@cache
def settings_types() -> dict[str, Any]:
    """Return the types of the values that extensions have in the settings, by their names."""
    loads = {name: extension.settings for name, extension in found().extensions.items()}
    types = {name: loaded(name, "settings", load) for name, load in loads.items() if load}
    return {name: kind for name, kind in types.items() if kind is not None}


def exported(module: str, name: str) -> object:
    """Return what an extension exports to users under a name; raise AttributeError if none does."""
    for extension in found().extensions.values():
        load = extension.exports.get(f"{module}.{name}")
        if load is not None:
            return load()
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def loaded(name: str, what: str, load: Callable[[], object]) -> Any:
    """Return what a function of an extension returns; None, with a warning, if it cannot."""
    try:
        return load()
    except Exception as error:  # noqa: BLE001 - code of any distribution
        _report(name, f"its {what} cannot be used: {type(error).__name__}: {error}")
        return None


def _report(name: str, problem: str) -> None:
    if found().problems.setdefault(name, problem) == problem:
        import logging  # rarely needed, and slow to import

        logging.getLogger("headrace.extensions").warning(
            "the extension %s is left out: %s", name, problem
        )


def _extension_of(entry: EntryPoint) -> object:
    if entry.module.partition(".")[0] != PACKAGE:
        return entry.load()
    # Ours, although a user may have a package of that name.
    if str(server_root()) in getattr(sys.modules.get(_PRIVATE), "__path__", ()):
        return getattr(importlib.import_module(f"{_PRIVATE}.{entry.module}"), entry.attr)
    if str(server_root()) not in sys.path:
        sys.path.append(str(server_root()))  # a command has no path to the servers' packages
    if PACKAGE not in sys.modules:
        _import_ours()
    return entry.load()


def _import_ours() -> None:
    """Import our package, although another one of that name may be before it on the path."""
    file = server_root() / PACKAGE / "__init__.py"
    spec = importlib.util.spec_from_file_location(PACKAGE, file)
    assert spec is not None  # noqa: S101 - it has a suffix that Python loads
    assert spec.loader is not None  # noqa: S101
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
