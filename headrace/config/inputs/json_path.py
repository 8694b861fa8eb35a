"""A path into JSON text, such as `crops[*].image`, and the places of its values in the text.

Values are found, not decoded, so they are passed on as their writer wrote them.
Independent of Redis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from headrace.errors import InvalidRequest

#: A name, an index, or None for each element.
Step = str | int | None

PATH_PATTERN: Final = (
    r'^(?:[A-Za-z_][\w-]*|\[(?:\*|\d{1,9}|"[^"\\]*")\])'
    r'(?:\.[A-Za-z_][\w-]*|\[(?:\*|\d{1,9}|"[^"\\]*")\])*$'
)
_PATH: Final = re.compile(PATH_PATTERN, re.ASCII)
_STEP: Final = re.compile(r'\.?([A-Za-z_][\w-]*)|\[(\*|\d+|"[^"]*")\]', re.ASCII)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PLAIN: Final = re.compile(rb"[^ \t\r\n,\]}]+")
#: Brackets, which change the depth, and strings, in which brackets do not count.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_OPEN: Final = b"[{"


class TextSpan(NamedTuple):
    """The place of a value in a text."""

    start: int
    end: int


def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a path; raise ValueError with examples if it is malformed."""
    if not _PATH.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a path; write names and indices, such as crops[*].image or [0]"
        )
    steps: list[Step] = []
    for found in _STEP.finditer(text):
        name, index = found.groups()
        if name is not None:
            steps.append(name)
        elif index == "*":
            steps.append(None)
        else:
            steps.append(index[1:-1] if index.startswith('"') else int(index))
    return tuple(steps)


def path_text(steps: tuple[Step, ...]) -> str:
    """Return the text of a path, for messages."""
    text = ""
    for step in steps:
        if isinstance(step, str):
            text += f".{step}" if text else step
        else:
            text += "[*]" if step is None else f"[{step}]"
    return text


def find(text: bytes, steps: tuple[Step, ...]) -> list[TextSpan]:
    """Return the places of the values of a path, in order.

    An empty path leads to the value itself.

    Raises:
        InvalidRequest: the text is not JSON, or has no such value.
    """
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the value of the path is not JSON: {error}") from None
    start = _after_space(text, 0)
    spans = [TextSpan(start, _end(text, start))]
    for n, step in enumerate(steps):
        below: list[TextSpan] = []
        for span in spans:
            below += _below(text, span, step, path_text(steps[: n + 1]))
        spans = below
    return spans


def _below(text: bytes, span: TextSpan, step: Step, shown: str) -> list[TextSpan]:
    first = text[span.start : span.start + 1]
    if isinstance(step, str):
        if first != b"{":
            raise InvalidRequest(f"there is no {shown}: its parent is not an object")
        found = [value for key, value in _members(text, span) if key == step]
        if not found:
            raise InvalidRequest(f"there is no {shown}")
        return found[-1:]  # JSON parsers take the last of duplicate keys
    if first != b"[":
        raise InvalidRequest(f"there is no {shown}: its parent is not a list")
    elements = list(_elements(text, span))
    if step is None:
        return elements
    if step >= len(elements):
        raise InvalidRequest(f"there is no {shown}: the list has {len(elements)} elements")
    return [elements[step]]


def _elements(text: bytes, span: TextSpan) -> Iterator[TextSpan]:
    at = _after_space(text, span.start + 1)
    while text[at : at + 1] != b"]":
        end = _end(text, at)
        yield TextSpan(at, end)
        at = _after_space(text, end)
        if text[at : at + 1] == b",":
            at = _after_space(text, at + 1)


def _members(text: bytes, span: TextSpan) -> Iterator[tuple[str, TextSpan]]:
    at = _after_space(text, span.start + 1)
    while text[at : at + 1] != b"}":
        key_end = _end(text, at)
        key: str = msgspec.json.decode(text[at:key_end])
        value = _after_space(text, _after_space(text, key_end) + 1)  # after the colon
        end = _end(text, value)
        yield key, TextSpan(value, end)
        at = _after_space(text, end)
        if text[at : at + 1] == b",":
            at = _after_space(text, at + 1)


def _after_space(text: bytes, at: int) -> int:
    return next(_SPACE.finditer(text, at)).end()


def _end(text: bytes, start: int) -> int:
    """Return the end of the value at `start`, in valid JSON."""
    first = text[start : start + 1]
    if first not in (b"[", b"{"):
        return next((_STRING if first == b'"' else _PLAIN).finditer(text, start)).end()
    depth = 0
    for token in _TOKEN.finditer(text, start):
        word = token.group()
        if word[:1] == b'"':
            continue
        depth += 1 if word in _OPEN else -1
        if depth == 0:
            return token.end()
    raise AssertionError  # each bracket has its other one
