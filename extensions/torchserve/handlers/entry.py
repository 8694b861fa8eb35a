"""Finds what to call in the handler of an archive: a function, or the methods of its only class."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from handlers.loader import import_file
from headrace.config.suggestions import listing
from headrace.errors import ConfigError

#: TorchServe's own handlers.
BUILTINS: Final = "ts.torch_handler"


class Entry(NamedTuple):
    """What to call.

    Attributes:
        initialize: loads the model; it takes the context.
        handle: runs a batch; it takes the rows and the context.
    """

    initialize: Callable[[Any], Any]
    handle: Callable[[Any, Any], Any]


def load_entry(target: str, function: str, folder: Path) -> Entry:
    """Return what to call, after the import of the handler's module.

    Args:
        target: the file or module as the manifest names it, such as `service` or `handler.py`.
        function: the function in it; "" for `handle`, or for its only class.

    Raises:
        ConfigError: it does not exist, its import failed, or it has neither.
    """
    module = _module(target, folder)
    name = function or "handle"
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        return Entry(functools.partial(found, None), found)
    cls = found if isinstance(found, type) else _only_class(module, name)
    service = cls()
    for method in ("initialize", "handle"):
        if not callable(getattr(service, method, None)):
            raise ConfigError(
                f"{module.__file__}: {cls.__name__} has no method {method}",
                hint="define initialize(self, context) and handle(self, data, context), "
                "or derive it from BaseHandler",
            )
    # From the instance: its constructor may have set `handle`.
    return Entry(service.initialize, service.handle)


def _only_class(module: ModuleType, name: str) -> type:
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        names = f": {listing({cls.__name__ for cls in own})}" if own else ""
        raise ConfigError(
            f"{module.__file__} has no function {name}, and {len(own)} classes{names}",
            hint=f"define a function {name}(data, context), or exactly one class",
        )
    return own[0]


def _module(target: str, folder: Path) -> ModuleType:
    name = Path(target).name.removesuffix(".py")
    path = folder / f"{name}.py"
    try:
        if path.is_file():
            return import_file(path)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        return importlib.import_module(f"{BUILTINS}.{name}")
    except (Exception, SystemExit) as error:
        raise _not_imported(error, name, folder) from error


def _not_imported(error: BaseException, name: str, folder: Path) -> ConfigError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing == f"{BUILTINS}.{name}":
        files = listing(sorted(file.name for file in folder.glob("*.py")))
        return ConfigError(
            f"there is no file {folder / name}.py, and no handler of TorchServe has the name "
            f"{name!r}",
            hint=f"Python files of the archive: {files or 'none'}",
        )
    hint = "see the traceback of the import above"
    if missing and missing.partition(".")[0] == "ts":
        hint = f"Headrace does not have this part of TorchServe; {hint}"
    elif missing:
        package = missing.partition(".")[0]
        hint = (
            f"install {package} where the worker runs, or name it in the archive's requirements "
            "and set install_requirements"
        )
    return ConfigError(
        f"the import of the handler {name!r} failed: {type(error).__name__}: {error}", hint=hint
    )


def put_first(*folders: Path) -> None:
    """Put folders at the beginning of `sys.path`, in order."""
    wanted = [str(folder) for folder in folders]
    sys.path[:] = [*wanted, *(one for one in sys.path if one not in wanted)]
    importlib.invalidate_caches()


def fed_by_nodes(entry: Entry, sources: Sequence[str]) -> Entry:
    """Return an entry whose rows have the results of a workflow's nodes, as TorchServe gives them.

    A result is bytes: text in UTF-8, other values as JSON. That of one node is `body`; those of
    several nodes have their names.

    Args:
        sources: the nodes; none for an entry that is no node, which stays as it is.
    """
    if not sources:
        return entry

    def handle(rows: Any, context: Any) -> Any:
        return entry.handle([_results_row(row["body"], sources) for row in rows], context)

    return entry._replace(handle=handle)


def _results_row(value: Any, sources: Sequence[str]) -> dict[str, bytearray]:
    if len(sources) == 1:
        return {"body": _result_bytes(value)}
    return {name: _result_bytes(value[name]) for name in sources}


def _result_bytes(value: Any) -> bytearray:
    if isinstance(value, dict) and value.keys() == {"content_type", "base64"}:
        return bytearray(base64.b64decode(value["base64"]))
    if isinstance(value, (bytes, bytearray)):
        return bytearray(value)
    return bytearray((value if isinstance(value, str) else json.dumps(value, indent=2)).encode())
