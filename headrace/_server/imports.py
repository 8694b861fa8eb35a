"""Imports in a process that runs a user's code: the servers' packages have private names there.

`api`, `workers`, `handlers` and `extensions` are names that users choose too. In such a process the
names of ours begin with `headrace._server`. An `import workers` in our code gets ours. In any other
code it gets the user's, or ours if the user has none.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Final

from typing_extensions import override

from headrace.config.environment import server_root

_PRIVATE: Final = "headrace._server"
_ROOT: Final = str(server_root())
_PACKAGES: Final = ("api", "workers", "handlers", "extensions")
_FOLDERS: Final = tuple(os.path.join(_ROOT, package, "") for package in _PACKAGES)
#: In a checkout the folder has others with names that users choose, such as `tests`.
_NEIGHBOURS: Final = {entry.name for entry in os.scandir(_ROOT)}.difference(_PACKAGES, ["headrace"])


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    """Import for our code: the names of our packages are ours."""
    head = name.partition(".")[0]
    if level or head not in _PACKAGES:
        return builtins.__import__(name, globals, locals, fromlist, level)
    module = builtins.__import__(f"{_PRIVATE}.{name}", globals, locals, fromlist or ("__name__",))
    return module if fromlist else sys.modules[f"{_PRIVATE}.{head}"]


_BUILTINS: Final = {**vars(builtins), "__import__": _import}


class _OwnLoader(SourceFileLoader):
    """Loads a module of ours, whose import statements use `_import`."""

    @override
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _BUILTINS
        super().exec_module(module)


class _AliasLoader(Loader):
    """Gives a module of ours a second name, for a user without a package of that name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    @override
    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds our packages under their private names, and the user's under the public ones."""

    @override
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        head = fullname.partition(".")[0]
        if fullname.startswith(f"{_PRIVATE}."):
            return _ours(PathFinder.find_spec(fullname, path, target))
        if path is None and head in _NEIGHBOURS:
            return self._users(fullname, target)
        if head not in _PACKAGES:
            brought = _brought(fullname, path)
            return _ours(PathFinder.find_spec(fullname, path, target)) if brought else None
        if path is None:
            return self._users(fullname, target) or _alias(fullname)
        is_ours = sys.modules.get(head) is sys.modules.get(f"{_PRIVATE}.{head}")
        return _alias(fullname) if is_ours else None

    def _users(self, name: str, target: ModuleType | None) -> ModuleSpec | None:
        # A package in our folder would hide the user's folder of that name without `__init__.py`.
        path = [entry for entry in sys.path if not _has_ours(entry)]
        for finder in sys.meta_path:
            if finder is not self:
                where = path if finder is PathFinder else None
                if (spec := finder.find_spec(name, where, target)) is not None:
                    return spec
        return None


def _has_ours(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "workers", "model_process", "__main__.py"))


def _brought(name: str, path: Sequence[str] | None) -> bool:
    """Return whether an extension has a module in a folder that it has put on the path."""
    own = [entry for entry in (sys.path if path is None else path) if entry.startswith(_FOLDERS)]
    return bool(own) and PathFinder.find_spec(name, own) is not None


def _ours(spec: ModuleSpec | None) -> ModuleSpec | None:
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        file = spec.loader.path
        if file.startswith(_FOLDERS):
            spec.loader = _OwnLoader(spec.name, file)
    return spec


def _alias(name: str) -> ModuleSpec | None:
    own = f"{_PRIVATE}.{name}"
    return spec_from_loader(name, _AliasLoader(own)) if find_spec(own) is not None else None


def install() -> None:
    """Let this process import so. Nothing of the servers may have been imported."""
    path = sys.modules[_PRIVATE].__path__
    if _ROOT not in path:
        path.append(_ROOT)
    sys.meta_path.insert(0, _Finder())
