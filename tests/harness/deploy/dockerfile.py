"""A Dockerfile as its instructions, stage by stage."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

_WORD = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass
class Stage:
    """What stands between one FROM and the next.

    Attributes:
        base: the image, or the name of an earlier stage.
        name: what later stages call it; "" for none.
        steps: word and text of each instruction, in order.
    """

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        """The texts of all instructions of one kind."""
        return [text for kind, text in self.steps if kind == word]

    def last(self, word: str) -> str:
        """The text of the last instruction of a kind, which is the one that counts."""
        return self.all(word)[-1]

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """What ENV makes of the environment of the image below."""
        made = dict(base)
        for text in self.all("ENV"):
            before = dict(made)
            for item in shlex.split(text):
                name, _, value = item.partition("=")
                made[name] = substitute(value, before)
        return made

    def command(self) -> list[str]:
        """CMD, which must be in its form as a list: a shell would not hand on signals."""
        command: list[str] = json.loads(self.last("CMD"))
        return command


@dataclass
class Dockerfile:
    """A parsed file.

    Attributes:
        arguments: the ARGs before the first FROM, with their defaults.
        stages: in order; the last makes the image.
    """

    arguments: dict[str, str]
    stages: list[Stage]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)


def parse(path: Path) -> Dockerfile:
    """Read a Dockerfile.

    Raises:
        ValueError: a line is no instruction.
    """
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in _instructions(path.read_text("utf-8")):
        match = _WORD.fullmatch(instruction)
        if match is None:
            raise ValueError(f"{path.name}: no instruction: {instruction!r}")
        word, text = match.groups()
        if word == "FROM":
            base, _, name = text.partition(" AS ")
            stages.append(Stage(substitute(base, arguments), name))
        elif stages:
            stages[-1].steps.append((word, text))
        else:
            name, _, value = text.partition("=")
            arguments[name] = value
    return Dockerfile(arguments, stages)


def substitute(text: str, values: dict[str, str]) -> str:
    """The text with `$NAME` and `${NAME}` filled in, as Docker does outside RUN."""
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], ""), text)


def _instructions(text: str) -> list[str]:
    """Logical lines: comments are gone, continuations joined by a space."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [line.strip() for line in joined.splitlines() if line.strip()]
