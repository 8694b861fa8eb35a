"""docs/openapi.json is the API's description as clients know it; the changelog has its changes."""

from __future__ import annotations

import copy
import difflib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.openapi import digest, document, written
from headrace import __version__
from tests.harness.servers.up import ROOT, clean_environment

RECORDED = ROOT / "docs" / "openapi.json"
CHANGELOG = ROOT / "CHANGELOG.md"
SHOWN_LINES = 60
_SAID = re.compile(r"API description `([0-9a-f]{12})`")


def difference(recorded: str, served: str) -> str:
    """What to do where the two differ, and where they do; "" where they do not."""
    if recorded == served:
        return ""
    lines = list(
        difflib.unified_diff(
            recorded.splitlines(), served.splitlines(), "docs/openapi.json", "the API", n=2,
            lineterm="",
        )
    )  # fmt: skip
    more = f"\n… and {len(lines) - SHOWN_LINES} lines more" if len(lines) > SHOWN_LINES else ""
    return (
        "The API is not what docs/openapi.json says. Where that is meant, run `make openapi` and "
        "describe the change in CHANGELOG.md, as it tells you; where it is not, clients break.\n"
        + "\n".join(lines[:SHOWN_LINES])
        + more
    )


def said(changelog: str) -> list[str]:
    """The digests that the newest section names which names any."""
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        found = _SAID.findall(section)
        if found:
            return found
    return []


def unsaid(changelog: str, recorded: dict[str, Any]) -> str:
    """What to do where CHANGELOG.md does not name the recorded description; else ""."""
    current = digest(recorded)
    if current in said(changelog):
        return ""
    return (
        "docs/openapi.json was recorded anew, and CHANGELOG.md does not say so. Describe under "
        f"Unreleased what has changed for clients, with the words: API description `{current}`"
    )


def test_the_api_is_as_recorded() -> None:
    wrong = difference(RECORDED.read_text("utf-8"), written(document(__version__)))
    assert not wrong, wrong


def released() -> bool:
    """Whether there is a version whose clients a change could break."""
    tags = subprocess.run(
        ["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return bool(tags.stdout)


def test_the_changelog_names_what_is_recorded() -> None:
    if not released():
        pytest.skip("nothing has been released")
    wrong = unsaid(CHANGELOG.read_text("utf-8"), json.loads(RECORDED.read_text("utf-8")))
    assert not wrong, wrong


def test_a_change_is_shown_with_what_to_do() -> None:
    served = copy.deepcopy(document(__version__))
    recorded = written(served)
    served["components"]["schemas"]["JobObject"]["required"].remove("attempts")
    wrong = difference(recorded, written(served))
    assert '-     "attempts",' in wrong
    assert "make openapi" in wrong
    assert "CHANGELOG.md" in wrong


def test_recording_it_alone_is_not_enough() -> None:
    before = document(__version__)
    after = copy.deepcopy(before)
    del after["paths"]["/live"]
    changelog = (
        f"# Changelog\n\n## [Unreleased]\n\n- API description `{digest(before)}`.\n\n"
        f"## [0.1.0]\n\n- API description `{digest(after)}`.\n"
    )
    assert unsaid(changelog, before) == ""
    assert f"`{digest(after)}`" in unsaid(changelog, after)
    # What an older version was is no news.
    assert unsaid("## [0.2.0]\n\n- None.\n\n" + changelog, before) == ""


def test_a_release_alone_changes_no_digest() -> None:
    assert digest(document("1.0.0")) == digest(document("2.0.0"))


def test_it_is_recorded_by_a_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "api.openapi", str(tmp_path / "openapi.json")], cwd=ROOT,
        env=clean_environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (tmp_path / "openapi.json").read_text("utf-8") == written(document(__version__))
    assert f"`{digest(document(__version__))}`" in ended.stdout
    assert "openapi:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("text", ["", "## [Unreleased]\n\n- Nothing.\n"])
def test_a_changelog_that_names_no_description(text: str) -> None:
    assert said(text) == []
