"""The documentation as a site: it has every page, short lines, and nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: The documents outside of the site.
OUTSIDE = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
]
LINE_MAX = 120
#: What a page would load from elsewhere: scripts, styles, pictures, frames.
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def listed(entries: list[Any]) -> Iterator[str]:
    """The pages of a `nav`, at any depth."""
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, list):
            yield from listed(value)
        else:
            yield value


def test_the_site_lists_every_page_once() -> None:
    nav = list(listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(nav) == sorted(str(path.relative_to(DOCS)) for path in PAGES)


def test_the_overview_lists_the_pages_as_the_site_does() -> None:
    (*groups, (_, _)) = (
        next(iter(group.items()))
        for group in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    )
    shown: dict[str, list[dict[str, str]]] = {}
    for line in (DOCS / "README.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            shown[line.removeprefix("## ")] = []
        elif row := re.match(r"\| \[(.+?)\]\((.+?\.md)\) \|", line):
            shown[list(shown)[-1]].append({row[1]: row[2]})
    assert list(shown.items())[:-1] == [
        (name, [page for page in pages if page != {"Overview": "README.md"}])
        for name, pages in groups
    ]


@pytest.mark.parametrize("path", [*OUTSIDE, *PAGES], ids=name_of)
def test_lines_are_short_outside_of_tables_and_blocks(path: Path) -> None:
    in_block = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        fence = line.lstrip().startswith("```")
        in_block ^= fence
        if not (in_block or fence or line.startswith("|")):
            assert len(line) <= LINE_MAX, f"{path.name}:{number}"


def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    built = list(tmp_path.rglob("*.html"))
    assert len(built) == len(PAGES) + 1  # and a page for what is not found
    for page in built:
        assert not LOADED.findall(page.read_text("utf-8")), page.name
    for style in tmp_path.rglob("*.css"):
        assert "url(http" not in style.read_text("utf-8"), style.name
