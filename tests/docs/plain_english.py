"""Find the words that plain English does without: in docs, docstrings, comments, texts and names.

Run `python -m tests.docs.plain_english [PATH ...]` to list them; without a path, everywhere.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: The folders whose Python and Lua is read.
CODE = ("headrace", "api", "workers", "handlers", "extensions")
#: The documents outside of `docs` that are read.
DOCUMENTS: Final = frozenset({"README.md", "CHANGELOG.md", "examples/README.md"})
#: Speech for data, persons for things, archaisms, and the names that the glossary replaced.
WORDS = re.compile(
    r"\b(?:"
    r"told|tells?|telling|said|says?|saying|heard|hears?|hearing"
    r"|whom|whoever|whomever|nobody|somebody"
    r"|anew|beside|stands?|stood|lies|lie|lay|thereof|whereof|hitherto|henceforth"
    r"|(?:is|are|was|were) to be|(?-i:there (?:is|are|was|were) none|is none)"
    r"|so (?:many|long|much) (?:seconds|jobs|bytes|times|microseconds|milliseconds)"
    r"|heralds?|porters?|ledgers?|lanes?|errands?|couriers?|conductors?|vigils?|sequels?|harvests?"
    r")\b",
    re.IGNORECASE,
)
#: Where such a word is right: quoted names that are on the wire, and idioms of the field.
ALLOWED = re.compile(r"`[^`]*`|\"[^\"]*\"|that is to say", re.IGNORECASE)
#: Names that users or the wire know.
KEPT_NAMES: Final = frozenset({"told_at"})
#: Parts of identifiers that the glossary replaced.
NAMES = frozenset(
    [
        "told",
        "tell",
        "tells",
        "said",
        "says",
        "heard",
        "hears",
        "hear",
        "anew",
        "whoever",
        "nobody",
        "herald",
        "porter",
        "ledger",
        "lane",
        "lanes",
        "errand",
        "errands",
        "courier",
        "conductor",
        "vigil",
        "vigils",
        "sequel",
        "sequels",
        "harvest",
        "dropping",
        "cargo",
    ]
)


class Finding(NamedTuple):
    """One word at one place."""

    path: str
    line: int
    word: str
    text: str


def findings(paths: Sequence[str] = ()) -> list[Finding]:
    """Return every such word in the files that git tracks below `paths`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[Finding] = []
    for name in listed.stdout.splitlines():
        found += findings_in(name)
    return found


def findings_in(name: str) -> Iterator[Finding]:
    """Yield the findings of one file, named by its path from the root."""
    path = ROOT / name
    if not path.is_file():
        return
    if name.endswith(".py") and name.startswith(CODE):
        yield from _of_python(name, path.read_text("utf-8"))
    elif name.endswith(".lua") and name.startswith(CODE):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            _, dashes, comment = line.partition("--")
            if dashes:
                yield from _of_text(name, number, comment)
    elif name.endswith(".md") and (name in DOCUMENTS or name.startswith("docs/")):
        fenced = False
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield from _of_text(name, number, line)


def _of_python(name: str, source: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " in node.value:
                for offset, line in enumerate(node.value.splitlines()):
                    yield from _of_text(name, node.lineno + offset, line)
            continue
        for word in _identifiers(node):
            parts = word.lower().strip("_").split("_")
            if word not in KEPT_NAMES and not NAMES.isdisjoint(parts):
                yield Finding(name, getattr(node, "lineno", 0), word, "a name")
    # Tokens take half of the time, so they are read only if a word is behind some #.
    if any(any(_of_text(name, 0, line.partition("#")[2])) for line in source.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from _of_text(name, token.start[0], token.string)


def _identifiers(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _of_text(name: str, number: int, line: str) -> Iterator[Finding]:
    for match in WORDS.finditer(ALLOWED.sub(" ", line)):
        yield Finding(name, number, match[0], line.strip()[:120])


if __name__ == "__main__":
    for one in findings(sys.argv[1:]):
        print(f"{one.path}:{one.line}: {one.word}: {one.text}")  # noqa: T201
