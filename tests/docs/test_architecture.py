"""The architecture is held to the code: what documents name exists, and its pages stay short."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
GLOSSARY = ROOT / "docs" / "glossary.md"
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PACKAGES = ("headrace", "api", "workers", "handlers", "extensions")
SCRIPTS = ROOT / "headrace" / "redis" / "scripts"
PAGE_MAX_BYTES = 8000
LINE_MAX = 120
#: Names in capitals and small letters that are not classes of ours.
NOT_CLASSES = frozenset({"Reason"})
#: What looks like a module or a path and is another name, or is not in the repository.
ELSEWHERE = frozenset(
    [
        "headrace.digits",  # a queue
        "headrace.extensions",  # a group of entry points
        "headrace.predict",  # a task
        # Attributes of spans.
        "headrace.attempt",
        "headrace.batch.id",
        "headrace.batch.reason",
        "headrace.queued_ms",
        "headrace.hold_ms",
        "headrace.device_wait_ms",
        "headrace.model",
        "headrace.tests.yml",  # in deploy/prometheus
        "headrace/_server",  # in a wheel
        "deploy/prometheus/headrace.key",  # the operator's
    ]
)


def code_words(path: Path) -> list[str]:
    """What stands in back quotes, outside of blocks."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


@cache
def classes() -> frozenset[str]:
    """Every class of the product, and every name that a module gives to one."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.add(node.name)
    return frozenset(found)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.encode()) <= PAGE_MAX_BYTES
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        in_block ^= line.startswith("```")
        if not in_block and not line.startswith(("|", "```")):
            assert len(line) <= LINE_MAX, f"{path.name}:{number}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_a_diagram(path: Path) -> None:
    assert "\n```text\n" in path.read_text("utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_folders_and_scripts_exist(path: Path) -> None:
    top = (*PACKAGES, "docs", "tests", "benchmarks", "configs", "deploy", "examples")
    for word in code_words(path):
        if word in ELSEWHERE:
            continue
        if word.endswith(".lua"):
            own = (*ROOT.glob("extensions/*/redis"), *ROOT.glob("headrace/*/redis"))
            places = (SCRIPTS, ROOT, *own)
            assert any((place / word).is_file() for place in places), word
        elif word.partition("/")[0] in top and re.fullmatch(r"[\w./-]+", word) and "/" in word:
            assert (ROOT / word).exists(), word
        elif re.fullmatch(rf"(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)+", word):
            folder = ROOT / word.replace(".", "/")
            assert folder.is_dir() or folder.with_suffix(".py").is_file(), word


def test_benchmarks_exist() -> None:
    code = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "Makefile", *code]:
        for name in re.findall(r"\bbenchmarks(?:\.[a-z]\w*)+", path.read_text("utf-8")):
            module = ROOT / name.replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").is_file(), f"{path}: {name}"


@pytest.mark.parametrize("path", [*PAGES, GLOSSARY], ids=lambda path: path.name)
def test_classes_exist(path: Path) -> None:
    for word in code_words(path):
        # Celery's and HTTP's names have another form: SIGTERM, `Prefer`, `Headrace-Acts-For`.
        if re.fullmatch(r"(?:\w+\.)*[A-Z][a-z]\w*", word):
            name = word.rpartition(".")[2]
            assert name in classes() | NOT_CLASSES, word


def test_the_overview_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (PAGES[0].parent / "README.md").read_text()))
    assert {page.name for page in PAGES} - {"README.md"} <= linked
