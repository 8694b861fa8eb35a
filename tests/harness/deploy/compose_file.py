"""Compose files as Compose reads them: interpolated, then merged. What ours use, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

#: Replaced by a later file, and not appended to.
REPLACED = ("command", "entrypoint", "test")
#: Lists of `NAME=value` that may as well be written as mappings.
MAPPINGS = ("environment", "args", "labels")
#: Lists whose entries are known by their target.
BY_TARGET = ("volumes", "tmpfs")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-+?]")


class _Given(dict[str, str]):
    """Variables of which each is set, so that none is missed."""

    def get(self, name: str, default: Any = None) -> str:
        del name, default
        return "given"


def load(files: Sequence[Path], variables: Mapping[str, str]) -> dict[str, Any]:
    """`docker compose -f FILE -f FILE config`, with these variables from `.env` and the shell."""
    model: dict[str, Any] = {}
    for file in files:
        parsed = yaml.load(file.read_text("utf-8"), yaml.CSafeLoader)
        # Extension fields are of use to YAML anchors only, which are resolved by now.
        plain = {key: value for key, value in parsed.items() if not key.startswith("x-")}
        model = merge(model, _normal(interpolated(plain, variables)))
    for service in model["services"].values():
        # A variable without a value is that of the shell or `.env`; without one it is left out.
        service["environment"] = {
            name: variables[name] if value is None else value
            for name, value in service.get("environment", {}).items()
            if value is not None or name in variables
        }
    return model


def names_in(value: Any) -> dict[str, str]:
    """Every variable that is interpolated somewhere below, with its default."""
    found: dict[str, str] = {}
    if isinstance(value, Mapping):
        for item in value.values():
            found |= names_in(item)
    elif isinstance(value, list):
        for item in value:
            found |= names_in(item)
    elif isinstance(value, str):
        _expand(value, _Given(), found)
    return found


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """A tree with the variables in its values, not in its keys, filled in."""
    if isinstance(value, dict):
        return {key: interpolated(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, variables) for item in value]
    return _expand(value, variables, {}) if isinstance(value, str) else value


def merge(base: Any, over: Any, key: str = "") -> Any:
    """One file's tree with the next one's over it."""
    if isinstance(base, dict) and isinstance(over, dict):
        both = {name: merge(base[name], over[name], name) for name in base if name in over}
        return {**base, **over, **both}
    if not isinstance(base, list) or not isinstance(over, list) or key in REPLACED:
        return over
    if key in BY_TARGET:
        targets = {_target(item) for item in over}
        return [item for item in base if _target(item) not in targets] + over
    return base + [item for item in over if item not in base]


def seconds(duration: str) -> float:
    """A duration as Compose writes it: what ours use."""
    assert duration.endswith("s"), duration
    return float(duration[:-1])


def _normal(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _normal(item, name) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if key in MAPPINGS:
        return dict(item.split("=", 1) for item in value)
    return [_normal(item) for item in value]


def _target(volume: str) -> str:
    parts = volume.split(":")
    return parts[1] if len(parts) > 1 else parts[0]


def _expand(text: str, variables: Mapping[str, str], seen: dict[str, str]) -> str:
    """The text with its variables filled in; `seen` gets the names, and the first default of each.

    Raises:
        ValueError: a `$` stands alone, a brace is not closed, or a `:?` variable is missing.
    """
    out, at = "", 0
    while at < len(text):
        if text[at] != "$":
            out, at = out + text[at], at + 1
        elif text[at : at + 2] == "$$":
            out, at = out + "$", at + 2
        elif text[at : at + 2] == "${":
            end = _closing(text, at + 2)
            out, at = out + _braced(text[at + 2 : end], variables, seen), end + 1
        else:
            name = _NAME.match(text, at + 1)
            if name is None:
                raise ValueError(f"a single $ in {text!r}")
            seen.setdefault(name.group(), "")
            out, at = out + variables.get(name.group(), ""), name.end()
    return out


def _closing(text: str, at: int) -> int:
    depth = 1
    while at < len(text):
        depth += text.startswith("${", at) - (text[at] == "}")
        if depth == 0:
            return at
        at += 1
    raise ValueError(f"a brace is not closed in {text!r}")


def _braced(inside: str, variables: Mapping[str, str], seen: dict[str, str]) -> str:
    name = _NAME.match(inside)
    operator = _OPERATOR.match(inside, name.end()) if name else None
    if name is None or (operator is None and name.end() < len(inside)):
        raise ValueError(f"${{{inside}}} is no variable")
    value = variables.get(name.group())
    if operator is None:
        seen.setdefault(name.group(), "")
        return value or ""
    word, kind = inside[operator.end() :], operator.group()
    other = _expand(word, variables, seen)
    is_set = bool(value) if kind.startswith(":") else value is not None
    seen.setdefault(name.group(), word if kind[-1] == "-" else "")
    if kind[-1] == "+":
        return other if is_set else ""
    if kind[-1] == "?" and not is_set:
        raise ValueError(f"{name.group()} is not set: {other}")
    return value if is_set and value is not None else other
