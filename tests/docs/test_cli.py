"""docs/cli.md is held to `--help` of each command, to the exit codes, and to what is accepted."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.jobs.jobs import Status
from headrace.cli.main import every_command
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import StdinAs

TEXT = (Path(__file__).parents[2] / "docs/cli.md").read_text("utf-8")
APP = every_command()
COMMANDS: dict[str, Any] = typer.main.get_command(APP).commands  # type: ignore[attr-defined]
GROUPS = {
    name: command.commands for name, command in COMMANDS.items() if hasattr(command, "commands")
}
CLIENTS = (
    "submit", "run", "result", "jobs", "watch", "cancel", "models", "queues", "tune", "top",
    "doctor",
    *(f"{group} {name}" for group, commands in GROUPS.items() for name in commands),
)  # fmt: skip


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found.group(1)


def documented(command: str) -> dict[str, tuple[str, str]]:
    """The options in the table of a command: their first cell, and their default."""
    rows = re.findall(r"^\| (`--[^|]*) \| [^|]+ \| ([^|]*) ?\|$", section(command), re.MULTILINE)
    return {re.findall(r"--[\w-]+", cell)[0]: (cell, default.strip(" `")) for cell, default in rows}


@cache
def helped(command: str) -> str:
    shown = CliRunner().invoke(APP, [*command.split(), "--help"])
    assert shown.exit_code == 0
    return shown.output


def params(words: list[str]) -> list[Any]:
    """What the command that a line begins with takes."""
    command = COMMANDS[words[0]]
    if words[0] in GROUPS and len(words) > 1 and words[1] in GROUPS[words[0]]:
        command = GROUPS[words[0]][words[1]]
    return list(command.params)


@pytest.mark.parametrize("command", CLIENTS)
def test_every_option_of_the_help_is_documented_and_none_is_invented(command: str) -> None:
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", helped(command), re.MULTILINE)
    assert options[-1] == "--help"
    assert list(documented(command)) == options[:-1]


@pytest.mark.parametrize("command", sorted({*COMMANDS, *CLIENTS}))
def test_no_help_names_a_type_of_python(command: str) -> None:
    assert re.findall(r"<(?:int|float|str|path|bool|list)\b[^>]*>", helped(command)) == []


@pytest.mark.parametrize("command", CLIENTS)
def test_short_names_and_defaults_are_those_of_the_help(command: str) -> None:
    table = documented(command)
    for option in params(command.split()):
        cell, default = table.get(option.opts[0], (None, ""))
        if cell is None:  # an argument
            continue
        assert set(re.findall(r"-\w\b|--[\w-]+", cell)) == set(option.opts)
        shown = re.search(r"\(default: ([^()]+)\)$", option.help.removesuffix("."))
        if shown and option.name != "url":
            assert default == shown[1]


def test_every_command_is_in_the_table() -> None:
    named = set(re.findall(r"^\| `headrace [^|]*", TEXT, re.MULTILINE))
    words = set(re.findall(r"[a-z-]+", " ".join(named)))
    inner = {name for commands in GROUPS.values() for name in commands}
    shown = {name for name, command in COMMANDS.items() if not command.hidden}
    assert words - {"headrace"} == shown | inner


def test_the_exit_codes_are_these() -> None:
    codes = re.findall(r"^\| (\d+) \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert [int(code) for code in codes] == list(ExitCode)


def test_the_words_that_options_take_are_all_named() -> None:
    for option, kind in (("--stdin KIND", StdinAs), ("--status STATUS", Status)):
        (row,) = re.findall(rf"^\| `{option}` \| ([^|]+) \|", TEXT, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == {str(word) for word in kind}


def test_the_readme_shows_only_options_that_exist() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    for command, rest in re.findall(r"^\$ .*?headrace (\w+)(.*)$", TEXT + readme, re.MULTILINE):
        known = {name for option in params([command, *rest.split()]) for name in option.opts}
        assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest.partition("|")[0])) <= known, rest
