"""Loads the `handler` of the models file: imports its module, finds the class, checks its verbs.

Runs only in a model process, which serves one model, so changing `sys.path` is safe.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from handlers.extension import handler_parts
from headrace.config import handler_files
from headrace.config.model.handler_reference import (
    HandlerKind,
    HandlerReference,
    parse_factory,
    parse_handler,
)
from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import ConfigError
from headrace.generator import Generator
from headrace.handler import Handler

VERBS: Final = ("initialize", "preprocess", "inference", "postprocess")


def load_handler(spec: str, base_dir: Path) -> type[Handler] | Handler:
    """Return the class that `spec` names, or the instance if it names one.

    The class needs the four verbs; it need not inherit from `Handler`. A relative path starts at
    `base_dir`.

    Raises:
        ConfigError: the file, module or class does not exist, or its import failed. The error of
            the import is then its `__cause__`, with its traceback.
    """
    parsed = parse_handler(spec)
    if parsed.kind is HandlerKind.EXTENSION:
        return _of_extension(parsed, base_dir)
    module = _import(parsed, base_dir)
    found = _named(parsed, module) if parsed.name else _only(parsed, module)
    missing = [verb for verb in VERBS if not callable(getattr(found, verb, None))]
    if missing:
        raise ConfigError(
            f"{parsed.label}: {_describe(found)} has no {', '.join(missing)}",
            hint="inherit from headrace.Handler, or define all four verbs",
        )
    _check_overrides(parsed, found)
    _check_plain(parsed, found)
    return cast("type[Handler] | Handler", found)


def _of_extension(spec: HandlerReference, folder: Path) -> Handler:
    part = handler_parts().get(spec.extension)
    if part is None:
        raise ConfigError(
            f"{spec.label}: the extension {spec.extension} cannot be used here",
            hint="`headrace doctor` shows why",
        )
    return part.load(spec, folder)


def _check_overrides(spec: HandlerReference, found: Any) -> None:
    """Refuse a class that does nothing, or has a method whose name is nearly that of a verb.

    Such a handler would load, and return its inputs as results.
    """
    cls = found if isinstance(found, type) else type(found)
    inherited = [
        verb
        for verb in VERBS
        if getattr(cls, verb, None) is getattr(Handler, verb) and verb not in vars(found)
    ]
    # Not what its own methods call, such as `_postprocess`, and no flag such as `initialized`.
    own = [
        name
        for one in cls.__mro__
        if one not in (Handler, object)
        for name, value in vars(one).items()
        if callable(value) and not name.startswith("_")
    ]
    for name in own:
        verb = next((verb for verb in inherited if _nearly(name, verb)), None)
        if verb is not None:
            raise ConfigError(
                f"{spec.label}: {_describe(found)} has a method {name}, which is never called",
                hint=f"did you mean {verb}?",
            )
    if set(inherited) >= {"preprocess", "inference", "postprocess"}:
        raise ConfigError(
            f"{spec.label}: {_describe(found)} defines none of preprocess, inference, postprocess",
            hint="define inference(self, items), which returns one result per item",
        )


def _check_plain(spec: HandlerReference, found: Any) -> None:
    """Refuse coroutines: they would be made and never run."""
    for name in dir(Generator):
        method = getattr(found, name, None)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise ConfigError(
                f"{spec.label}: {_describe(found)} defines {name} with async def",
                hint="define it with def; call asyncio.run(...) in it to await something",
            )


def _nearly(name: str, verb: str) -> bool:
    """Return whether a name is a verb with a letter or two wrong, such as `inferense`."""
    letters = name.replace("_", "").casefold()
    return letters == verb or (
        abs(len(letters) - len(verb)) < 2
        and difflib.SequenceMatcher(None, letters, verb).ratio() > 0.85
    )


def load_factory(spec: str, base_dir: Path, *, what: str) -> Callable[..., Any]:
    """Return the function or class named by `path/to/file.py:name` or `package.module:name`.

    Arguments are as for `load_handler`; `what` is its name in error messages.

    Raises:
        ConfigError: as `load_handler`, or it is not callable.
    """
    parsed = parse_factory(spec, what)
    found = _named(parsed, _import(parsed, base_dir))
    if not callable(found):
        raise ConfigError(f"{parsed.label}: {_describe(found)} is not callable")
    return cast("Callable[..., Any]", found)


def _import(spec: HandlerReference, base_dir: Path) -> ModuleType:
    if spec.kind is HandlerKind.FILE and not spec.file(base_dir).is_file():
        raise ConfigError(
            f"{spec.label}: there is no file {spec.file(base_dir)}",
            hint="a relative path starts at the models file's folder",
        )
    try:
        if spec.kind is HandlerKind.FILE:
            return import_file(spec.file(base_dir).resolve())
        if spec.kind is HandlerKind.BUILTIN:
            return importlib.import_module(f".{spec.target}", __package__)
        return _import_module(spec.target)
    except (Exception, SystemExit) as error:
        # A script that calls sys.exit() must not end the model process silently.
        hint = "see the traceback of the import above"
        if spec.kind is HandlerKind.FILE and "relative import" in str(error):
            hint = "a file is not a package: import its neighbour as `import helper`"
        raise ConfigError(
            f"{spec.label}: the import failed: {type(error).__name__}: {error}", hint=hint
        ) from error


def _import_module(name: str) -> ModuleType:
    """Import a module, also one of ours such as `handlers.resnet` that the user's lacks."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or not name.startswith("handlers."):
            raise
        return importlib.import_module(name.removeprefix("handlers"), __package__)


def import_file(path: Path) -> ModuleType:
    """Import a file with its folder first on `sys.path`, so that it finds its siblings."""
    sys.path.insert(0, str(path.parent))
    # Otherwise a file that is newer than Python's listing of its folder is not found.
    importlib.invalidate_caches()
    # Under its own name if that is free, so that a sibling that imports it gets the same module.
    if _origin(path.stem) == path:
        return importlib.import_module(path.stem)
    handler_files.install()
    return importlib.import_module(handler_files.module_name(path))


def _origin(name: str) -> Path | None:
    """Return the file that `import name` loads or has loaded; None if it is not a file."""
    if "." in name:
        return None
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin).resolve() if origin else None


def _named(spec: HandlerReference, module: ModuleType) -> Any:
    found: Any = module
    for part in spec.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [name for name in vars(module) if isinstance(vars(module)[name], type)]
            raise ConfigError(
                f"{spec.label}: {module.__file__} has no {spec.name}"
                f"{did_you_mean(spec.name, names)}",
                hint=f"classes in it: {listing(names)}",
            ) from None
    return found


def _only(spec: HandlerReference, module: ModuleType) -> type:
    """Return the only handler class that the module defines; imported classes do not count."""
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    handlers = [cls for cls in own if issubclass(cls, Handler)]
    if not handlers:
        handlers = [cls for cls in own if all(callable(getattr(cls, verb, None)) for verb in VERBS)]
    if len(handlers) == 1:
        return handlers[0]
    names = listing({cls.__name__ for cls in handlers or own})
    if not handlers:
        raise ConfigError(
            f"{spec.label}: {module.__file__} defines no subclass of headrace.Handler",
            hint=f"classes in it: {names}",
        )
    raise ConfigError(
        f"{spec.label}: {module.__file__} defines {len(handlers)} handlers",
        hint=f"name one after a colon: {names}",
    )


def _describe(found: Any) -> str:
    return found.__name__ if isinstance(found, type) else f"the {type(found).__name__} of that name"
