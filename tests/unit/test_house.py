"""The layout of the product: small folders, no circles of imports, modules of one subject."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from tests.room import PRODUCT, ROOT, name

FILES_MAX = 14
LINES_MAX = 800
#: TorchServe's import paths decide these folders.
SHIM = ROOT / "extensions" / "torchserve" / "handlers" / "shim"


@cache
def modules() -> dict[str, Path]:
    return {name(path): path for top in PRODUCT for path in (ROOT / top).rglob("*.py")}


def test_a_folder_has_few_files() -> None:
    files = [
        path
        for top in PRODUCT
        for kind in ("py", "lua")
        for path in (ROOT / top).rglob(f"*.{kind}")
    ]
    counts = Counter(path.parent.relative_to(ROOT) for path in files if SHIM not in path.parents)
    assert {str(folder): count for folder, count in counts.items() if count > FILES_MAX} == {}


def test_a_module_has_few_lines() -> None:
    lines = {
        module: len(path.read_text("utf-8").splitlines()) for module, path in modules().items()
    }
    assert {module: count for module, count in lines.items() if count > LINES_MAX} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types count. Those within functions do not: they wait for the call."""
    graph = {module: edges(path) & set(modules()) - {module} for module, path in modules().items()}
    assert circles(graph) == []


def test_the_servers_import_nothing_that_only_handlers_need() -> None:
    """torch alone takes a second and 200 MB, and each API and each worker would pay for it."""
    program = (
        "import sys, api.process, workers.celery_app;"
        "print({'PIL', 'llguidance', 'numpy', 'onnxruntime', 'torch', 'transformers'}"
        ".intersection(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"


def edges(path: Path) -> set[str]:
    found = set[str]()
    for node in statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module; other names are the package's own.
            found |= inner & set(modules()) or {node.module}
    return found


def statements(tree: ast.AST) -> list[ast.AST]:
    result, pending = [], [tree]
    while pending:
        for child in ast.iter_child_nodes(pending.pop()):
            result.append(child)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                pending.append(child)
    return result


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other: those left when ends are taken away."""
    left = dict(graph)
    while ends := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in ends:
            del left[module]
    while begins := set(left) - {target for targets in left.values() for target in targets}:
        for module in begins:
            del left[module]
    return [sorted(left)] if left else []
