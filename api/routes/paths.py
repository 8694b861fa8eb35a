"""The paths of a table as a tree of their segments: finds the rows of a request."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

_Row = TypeVar("_Row")
_PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")


class Route(NamedTuple, Generic[_Row]):
    """One row of a table, at its place in the tree.

    Attributes:
        label: the template of its path, for metrics and logs.
        positions: which segments of the path are its parameters.
        rest: the first segment of a `:path` parameter; 0 for none.
    """

    row: _Row
    label: str
    positions: tuple[int, ...]
    rest: int

    def parameters(self, segments: Sequence[str]) -> Sequence[str]:
        """Return the values of the path's parameters."""
        values = [segments[position] for position in self.positions]
        return [*values, "/".join(segments[self.rest :])] if self.rest else values


class Routes(NamedTuple, Generic[_Row]):
    """All rows of one path, by method."""

    label: str
    by_method: dict[str, Route[_Row]]


class _Node(Generic[_Row]):
    """A place in the tree of all paths: the beginning that several of them share.

    Attributes:
        fixed: the places behind this one, by their segment.
        parameter: the place behind a segment of any text, which is a parameter.
        may_be_empty: this parameter may be "".
        routes: the rows whose path ends here; None for none.
    """

    __slots__ = ("fixed", "may_be_empty", "parameter", "routes")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node[_Row]] = {}
        self.parameter: _Node[_Row] | None = None
        self.may_be_empty = False
        self.routes: Routes[_Row] | None = None

    def inherit(self) -> None:
        for child in self.fixed.values():
            if self.parameter is not None:
                child.add(self.parameter)
            child.inherit()
        if self.parameter is not None and self.parameter is not self:
            self.parameter.inherit()

    def add(self, other: _Node[_Row]) -> None:
        """Add the rows behind another place; the rows of this one take precedence."""
        if other.routes is not None:
            own = self.routes or other.routes
            self.routes = Routes(own.label, {**other.routes.by_method, **own.by_method})
        for text, child in other.fixed.items():
            if text in self.fixed:
                self.fixed[text].add(child)
            else:
                self.fixed[text] = child
        if self.parameter is None:
            self.parameter, self.may_be_empty = other.parameter, other.may_be_empty


class Paths(Generic[_Row]):
    """The rows of a table, by path and method; `may_be_empty` names parameters that may be ""."""

    def __init__(self, may_be_empty: Collection[str]) -> None:
        self._may_be_empty = may_be_empty
        self._root: _Node[_Row] = _Node()

    def add(self, method: str, path: str, row: _Row, label: str = "") -> None:
        """Add a row; the template is its label, unless it has another one.

        In a template `{name}` is one segment, and `{name:path}` is the rest.
        """
        node, positions, rest = self._insert(path)
        route = Route(row, label or path, tuple(positions), rest)
        if node.routes is None:
            node.routes = Routes(route.label, {})
        node.routes.by_method[method] = route

    def reserve(self, path: str) -> None:
        """Let a path be unknown, although it fits a template with a parameter."""
        self._insert(path)

    def inherit(self) -> None:
        """Let each fixed segment be a value of a parameter at its place too, after the last row."""
        self._root.inherit()

    def find(self, segments: Sequence[str]) -> Routes[_Row] | None:
        """Return the rows of a path, given its segments; None for an unknown path."""
        node = self._root
        for segment in segments:
            following = node.fixed.get(segment)
            if following is None and (segment or node.may_be_empty):
                following = node.parameter
            if following is None:
                return None
            node = following
        return node.routes

    def _insert(self, path: str) -> tuple[_Node[_Row], list[int], int]:
        """Return the node of a path, and the positions of its parameters and of the rest."""
        node, positions, rest = self._root, list[int](), 0
        for position, segment in enumerate(path.split("/")):
            parameter = _PARAMETER.fullmatch(segment)
            if parameter is None:
                node = node.fixed.setdefault(segment, _Node())
                continue
            following = node.parameter or _Node()
            node.parameter = following
            node.may_be_empty = bool(parameter[2]) or parameter[1] in self._may_be_empty
            node = following
            if parameter[2]:
                # The rest of the path: any number of segments.
                node.parameter, node.may_be_empty, rest = node, True, position
            else:
                positions.append(position)
        return node, positions, rest
