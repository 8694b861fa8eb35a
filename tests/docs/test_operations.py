"""What an operator reads at night is held to the code: metrics, errors, commands, names, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.observability.metric_families import FAMILIES
from headrace.cli.main import every_command
from headrace.config.settings import OTHER_VARIABLES, VARIABLES, extension_variables
from headrace.errors import BY_CODE

ROOT = Path(__file__).parents[2]
#: The documents outside of `docs`.
OUTSIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "examples/README.md")]
DOCS = sorted([*OUTSIDE, *(ROOT / "docs").rglob("*.md")])
GUIDES = [ROOT / "docs" / name for name in ("operations.md", "troubleshooting.md", "compose.md")]
COMPOSE = [ROOT / "docker-compose.yml", *sorted((ROOT / "deploy").glob("compose.*.yml"))]
COMMANDS: Any = typer.main.get_command(every_command())
#: Samples of a metric, by how they end.
SUFFIX = re.compile(r"_(bucket|count|sum)$")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


def anchors(path: Path) -> set[str]:
    """Where links into a document may lead, by GitHub's rule."""
    heads = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()) for head in heads)
    return {word.strip().replace(" ", "-") for word in words}


def commands_in(path: Path) -> list[list[str]]:
    """The words of each line of a shell block that calls `headrace`, without what follows it."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text_of(path), re.MULTILINE | re.DOTALL)
    call = re.compile(r"(?:^|; |exec api )\s*(headrace [^;#|>\n]*)", re.MULTILINE)
    return [words.split()[1:] for block in blocks for words in call.findall(block)]


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_every_metric_that_a_document_names_exists(path: Path) -> None:
    known = {family.shown for family in FAMILIES} | {family.name for family in FAMILIES}
    named = re.findall(r"\bheadrace_[a-z_]+", text_of(path))
    # The volume of Redis is called so too.
    for name in set(named) - {"headrace_redis"}:
        assert name in known or SUFFIX.sub("", name) in known, f"{path.name}: {name}"


def test_every_error_code_has_what_to_do_about_it() -> None:
    table = text_of(GUIDES[1]).partition("## Every error code")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \| .*\|$", table, re.MULTILINE)
    assert sorted(code for code, _ in rows) == sorted(BY_CODE)
    assert all(whose.strip() for _, whose in rows)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_variables_settings_and_tests_that_are_named_exist(path: Path) -> None:
    text = text_of(path)
    known = VARIABLES.keys() | extension_variables().keys() | OTHER_VARIABLES
    # Shown as what is misspelt.
    named = set(re.findall(r"\bHEADRACE_[A-Z_]+\b", text)) - {"HEADRACE_API_PRT", "HEADRACE_"}
    assert named <= known
    tests = "".join(text_of(one) for one in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name
    for name in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_commands_are_those_of_the_command_line(path: Path) -> None:
    calls = commands_in(path)
    assert calls
    for words in calls:
        command = COMMANDS
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not COMMANDS, words
        options = {name for param in command.params for name in param.opts}
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= options, f"{path.name}: {command.name} has no {asked - options}"


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_links_lead_to_headings_that_there_are(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text_of(path)):
        leads_to = (path.parent / target) if target else path
        if leads_to.suffix == ".md":
            assert anchor in anchors(leads_to), f"{path.name}: {target}#{anchor}"


def test_compose_md_has_every_file_service_and_volume() -> None:
    text = text_of(GUIDES[2])
    for path in COMPOSE:
        assert f"`{path.relative_to(ROOT)}`" in text
        content = yaml.safe_load(text_of(path))
        for name in (*content.get("services", {}), *content.get("volumes", {})):
            assert f"`{name}`" in text, f"{path.name} has {name}"
