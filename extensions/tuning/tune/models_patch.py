"""Edits one model of a models file, and leaves all other text as it is: comments, order, quotes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import ConfigError


def snippet(model: str, options: Mapping[str, Any]) -> str:
    """Return the options as a part of a models file."""
    lines = [f"    {key}: {_written(value)}\n" for key, value in options.items()]
    return "".join(["models:\n", f"  {model}:\n", *lines])


def patch(path: Path, model: str, options: Mapping[str, Any]) -> str:
    """Return a unified diff that sets options of a model; "" if the file has them all.

    Raises:
        ConfigError: the text cannot be edited in place, such as a model behind a YAML alias.
    """
    try:
        before = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    after = edited(before, model, options)
    if after is None:
        raise ConfigError(
            f"{path}: the options of {model} cannot be edited in place",
            hint="write them into the file yourself",
        )
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), str(path)
        )
    )


def edited(text: str, model: str, options: Mapping[str, Any]) -> str | None:
    """Return the text with these options of a model; None if it cannot be edited in place."""
    expected = yaml.safe_load(text)
    section = expected["models"][model]
    if not isinstance(section, dict):
        return None
    wanted = {key: value for key, value in options.items() if section.get(key) != value}
    for key, value in wanted.items():
        changed = _with(text, model, key, value)
        if changed is None:
            return None
        text = changed
    # Merged keys, anchors and what else YAML has: the result counts.
    expected["models"][model] = {**section, **wanted}
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return text if found == expected else None


def _with(text: str, model: str, key: str, value: Any) -> str | None:
    node = _section(text, model)
    if node is None:
        return None
    for name, old in node.value:
        if name.value == key:
            begin, end = name.end_mark.index, _end(old)
            if end < begin:  # an alias: the value is elsewhere in the file
                return None
            return f"{text[:begin]}: {_written(value)}{text[end:]}"
    new = f"{key}: {_written(value)}"
    if node.flow_style:
        at = node.end_mark.index - 1
        separator = ", " if node.value else ""
        return f"{text[:at].rstrip()}{separator}{new}{text[at:]}"
    return _inserted(text, node, new)


def _inserted(text: str, node: yaml.MappingNode, new: str) -> str:
    """Return the text with a line after the first value of one line, or before all keys."""
    indent = " " * node.value[0][0].start_mark.column
    for name, value in node.value:
        if isinstance(value, yaml.ScalarNode) and value.style not in ("|", ">"):
            one_line = name.start_mark.line == value.end_mark.line
            at = text.find("\n", value.end_mark.index)
            if one_line and at >= 0 and value.end_mark.index > name.end_mark.index:
                return f"{text[: at + 1]}{indent}{new}\n{text[at + 1 :]}"
    at = node.value[0][0].start_mark.index
    return f"{text[:at]}{new}\n{indent}{text[at:]}"


def _section(text: str, model: str) -> yaml.MappingNode | None:
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    begin = -1
    for key in ("models", model):
        if not isinstance(node, yaml.MappingNode):
            return None
        pair = next(((name, value) for name, value in node.value if name.value == key), None)
        if pair is None:
            return None
        begin, node = pair[0].start_mark.index, pair[1]
    if not isinstance(node, yaml.MappingNode) or not node.value or node.start_mark.index < begin:
        return None
    return node


def _end(node: yaml.Node) -> int:
    """Return where the text of a value ends; PyYAML counts the comments after a block to it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")
