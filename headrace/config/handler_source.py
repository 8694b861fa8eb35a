"""What can be said of a handler's file without running it: is it Python, and is the class there?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.config.suggestions import did_you_mean, listing

_MAKERS: Final = {"type", "exec", "globals", "vars", "setattr"}


def source_problem(path: Path, name: str) -> str | None:
    """What keeps a file from being a handler, as far as its text tells; None where nothing does.

    A name that the text does not show may still be made when the file runs; so whatever is bound
    anywhere in it counts, and nothing is said of a file that takes in names it does not spell out.

    Args:
        path: the file.
        name: the class in it, perhaps with dots; empty for the only one there.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        return f"{path}: {error.strerror}"
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{path}{line}: not valid Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{path}: not valid Python: {error}"
    bound = set(_bound(tree))
    if "*" in bound or "__getattr__" in bound:
        return None
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    wanted = name.partition(".")[0]
    made = _makes_classes(tree)
    if wanted and wanted not in bound and not made:
        near = did_you_mean(wanted, classes)
        return f"{path} has no {wanted}{near or f'; classes in it: {listing(classes)}'}"
    if not wanted and not classes and not made:
        if "handle" in bound:
            return f"{path} has TorchServe's function `handle`; see docs/torchserve.md"
        return f"{path} defines no class"
    return None


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every name that is given a meaning somewhere; `*` where a whole module's are."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]


def _makes_classes(tree: ast.AST) -> bool:
    """Whether it calls what can make or name a class without a `class` of its own."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Name) and func.id in _MAKERS for func in calls)
