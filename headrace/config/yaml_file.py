"""YAML files whose mistakes are reported with file, line, key and remedy.

Knows YAML and typed structs, but not the meaning of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from typing_extensions import override

from headrace.config.suggestions import did_you_mean
from headrace.config.values import convert, shown
from headrace.errors import ConfigError

FILE_MAX_BYTES: Final = 4 * 1024 * 1024
#: PyYAML recurses for each level, and needs seconds for thousands of them.
DEPTH_MAX: Final = 100

Key = str | int


@dataclass(slots=True)
class Document:
    """A YAML file with the line of each value, or a mapping from elsewhere: `root` is None."""

    path: Path
    data: dict[Any, Any]
    root: yaml.MappingNode | None
    _found: list[tuple[int, str]] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Return the mistakes so far, one line each, in the order of the file."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]

    def at(self, keys: tuple[Key, ...]) -> Any:
        """Return the value at these keys."""
        return reduce(getitem, keys, self.data)

    def report(self, keys: tuple[Key, ...], text: str) -> None:
        """Report a mistake in the value at these keys."""
        where = ".".join(str(key) if str(key).isidentifier() else repr(key) for key in keys)
        if self.root is None:
            self._found.append((0, f"{where}: {text}"))
            return
        # A key that was merged by `<<` has no line; its mapping has one.
        nodes = [self.root, *(name for name, _ in self._pairs(keys))]
        line = nodes[-1].start_mark.line + 1
        self._found.append((line, f"{self.path}:{line}: {where}: {text}"))

    def text_at(self, keys: tuple[Key, ...]) -> str:
        """Return the text of the scalar at these keys; "" for other values."""
        values = [value for _, value in self._pairs(keys)]
        found = values[-1] if values and len(values) == len(keys) else None
        return str(found.value) if isinstance(found, yaml.ScalarNode) else ""

    def _pairs(self, keys: tuple[Key, ...]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield each key on the way with its value, as far as the file has them."""
        node: yaml.Node | None = self.root
        for key in keys:
            pair = _pair(node, key)
            if pair is None:
                return
            yield pair
            node = pair[1]


class KeyProblem(Exception):
    """A mistake in the value at some keys (`where`): what is wrong, and what to do."""

    def __init__(self, where: tuple[Key, ...], text: str) -> None:
        super().__init__(text)
        self.where = where
        self.text = text


class TooDeep(yaml.YAMLError):
    """A file has values in more than DEPTH_MAX others."""


class BoundedLoader(yaml.SafeLoader):
    """Reads YAML; `TooDeep` is raised at the first value that is nested too deeply."""

    _depth = 0

    @override
    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        # The scanner is ahead of the composer, and compares each [ and { with all open ones.
        self._check(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._check(self._depth)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    @staticmethod
    def _check(depth: int) -> None:
        if depth > DEPTH_MAX:
            raise TooDeep(f"it is nested more than {DEPTH_MAX} levels deep; flatten it")


def load_yaml(path: Path, *, what: str) -> Document:
    """Read a YAML file whose top level is a mapping.

    Messages call it `what`, such as "models file".

    Raises:
        ConfigError: it cannot be read, is not YAML, is empty, is not a mapping or repeats a key.
    """
    text = _read(path, what)
    example = "see the example in docs/configuration.md"
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=BoundedLoader)
        if root is None:
            raise ConfigError(f"{path}: the {what} is empty", hint=example)
        if not isinstance(root, yaml.MappingNode):
            line = root.start_mark.line + 1
            kind = "list" if isinstance(root, yaml.SequenceNode) else "single value"
            raise ConfigError(
                f"{path}:{line}: the {what} must be a mapping (`key: value`), not a {kind}",
                hint=example,
            )
        problems = list(_duplicates(root, path))
        if problems:
            raise ConfigError("\n".join(problems), hint="remove the duplicates")
        # This replaces `<<` by plain keys in the nodes too, so it comes last.
        data = yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        where = path if error.problem_mark is None else f"{path}:{error.problem_mark.line + 1}"
        # As in `{top_k: integer?}`: the parser takes the character for the mark of a key there.
        quotes = "; inside { } or [ ] write a text with ? in quotes"
        hint = quotes if str(error.problem).endswith("got '?'") else ""
        raise ConfigError(f"{where}: not valid YAML: {error.problem}{hint}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: U+{error.character:04X} is not allowed"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    return Document(path, data, root)


def read_fields(
    document: Document,
    keys: tuple[Key, ...],
    struct: type[msgspec.Struct],
    leave: Collection[str] = (),
) -> dict[str, Any]:
    """Return the values of a mapping that fit the fields of `struct`; report the others.

    The keys in `leave` are left to the caller. Each value is converted by itself, so that all
    mistakes are reported and not only the first.
    """
    section = document.at(keys)
    if not isinstance(section, dict):
        document.report(keys, f"expected a mapping (`key: value`), got {shown(section)}")
        return {}
    fields = {item.encode_name: item for item in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key in leave:
            continue
        if key not in fields:
            document.report((*keys, key), f"unknown key{did_you_mean(str(key), fields)}")
            continue
        read_value(document, (*keys, key), value, fields[key].type, values)
    for name, item in fields.items():
        if item.required and name not in section:
            document.report(keys, f"the key `{name}` is missing")
    return values


def read_value(
    document: Document, keys: tuple[Key, ...], value: object, kind: Any, values: dict[str, Any]
) -> None:
    """Put the value at these keys into `values` if it fits its type; else report it."""
    try:
        values[str(keys[-1])] = convert(value, kind)
    except ValueError as error:
        document.report(keys, f"{error}{_quote(document, keys, value, error)}")


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the {what} does not exist", hint="correct its path") from None
    except OSError as error:
        raise ConfigError(f"{path}: the {what} cannot be read: {error.strerror}") from None
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(f"{path}: the {what} is larger than {FILE_MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the {what} is not UTF-8 text: {error}") from None


def _pair(node: yaml.Node | None, key: Key) -> tuple[yaml.Node, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if isinstance(name, yaml.ScalarNode) and name.value == str(key):
            return name, value
    return None


def _duplicates(root: yaml.Node, path: Path) -> Iterator[str]:
    """Yield duplicate keys, which YAML forbids and PyYAML ignores."""
    pending, seen = [root], {id(root)}
    while pending:
        node = pending.pop(0)
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        elif isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], int] = {}
            for name, value in node.value:
                children.append(value)
                line = name.start_mark.line + 1
                if not isinstance(name, yaml.ScalarNode) or name.value == "<<":
                    continue
                known = (name.tag, name.value)
                if known in first:
                    yield (
                        f"{path}:{line}: {name.value}: this key is already at line {first[known]}"
                    )
                first.setdefault(known, line)
        for child in children:
            # An anchor is visited once, however often it is used; that also ends a cycle.
            if id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def _quote(document: Document, keys: tuple[Key, ...], value: object, error: ValueError) -> str:
    wants_text = str(error).startswith(("expected str", "expected path"))
    if not wants_text or isinstance(value, (str, dict, list, type(None))):
        return ""
    return f'; write it in quotes: "{document.text_at(keys)}"'
