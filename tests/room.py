"""The test modules of one room and of what imports it: `python -m tests.room workers/batching`.

A room is a folder of the product. Its tests are the modules that import one of its modules, or a
module that imports one of those, and those in the folders of tests with its name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("headrace", "api", "workers", "handlers", "extensions")


def test_modules(room: str) -> list[Path]:
    """Return the test modules of a room, as paths below the repository's root."""
    own = {name(path) for path in (ROOT / room).rglob("*.py")}
    if not own:
        raise SystemExit(f"room: {room} has no modules; name a folder, such as workers/batching")
    product = {name(path): path for top in PRODUCT for path in (ROOT / top).rglob("*.py")}
    touched = own | {module for module, path in product.items() if imports(path) & own}
    last = room.rpartition("/")[2]
    folders = {
        ROOT / "tests" / kind / part
        for kind in ("contract", "integration")
        for part in (room, last)
    }
    folders |= {ROOT / "tests" / "unit" / room, ROOT / "tests" / room}
    return sorted(
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if folders & set(path.parents) or imports(path) & touched
    )


def name(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Return the dotted names that a module imports anywhere in its text."""
    return set(_imports(ast.parse(path.read_bytes())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, test_modules(sys.argv[1].rstrip("/")))))
