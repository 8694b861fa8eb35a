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
    """One segment in the tree of all paths.

    Attributes:
        parameter: the next segment if it may be any text.
        may_be_empty: this text may be empty.
        routes: the operations whose path ends here; None for none.
    """

    __slots__ = ("literals", "may_be_empty", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[_Row]] = {}
        self.parameter: _Node[_Row] | None = None
        self.may_be_empty = False
        self.routes: Routes[_Row] | None = None

    def inherit(self) -> None:
        """Let every literal segment also be a value of the parameter at its level."""
        for child in self.literals.values():
            if self.parameter is not None:
                child.add(self.parameter)
            child.inherit()
        if self.parameter is not None and self.parameter is not self:
            self.parameter.inherit()

    def add(self, other: _Node[_Row]) -> None:
        """Add the routes below another node; the routes of this node take precedence."""
        if other.routes is not None:
            own = self.routes or other.routes
            self.routes = Routes(own.label, {**other.routes.by_method, **own.by_method})
        for text, child in other.literals.items():
            if text in self.literals:
                self.literals[text].add(child)
            else:
                self.literals[text] = child
        if self.parameter is None:
            self.parameter, self.may_be_empty = other.parameter, other.may_be_empty


class Paths(Generic[_Row]):
    """The rows of a table, by path and method.

    Args:
        may_be_empty: the names of the parameters whose text may be empty.
    """

    def __init__(self, may_be_empty: Collection[str]) -> None:
        self._may_be_empty = may_be_empty
        self._root: _Node[_Row] = _Node()

    def add(self, method: str, path: str, row: _Row, label: str = "") -> None:
        """Add a row.

        Args:
            path: a template; `{name}` is one segment, and `{name:path}` is the rest.
            label: in place of the template.
        """
        node, positions, rest = self._insert(path)
        route = Route(row, label or path, tuple(positions), rest)
        if node.routes is None:
            node.routes = Routes(route.label, {})
        node.routes.by_method[method] = route

    def reserve(self, path: str) -> None:
        """Let a path without rows be unknown, although the parameter of another one fits it."""
        self._insert(path)

    def inherit(self) -> None:
        """Let every literal segment also be a value of the parameter at its level."""
        self._root.inherit()

    def find(self, segments: Sequence[str]) -> Routes[_Row] | None:
        """Return the rows of a path, given its segments; None for an unknown path."""
        node = self._root
        for segment in segments:
            following = node.literals.get(segment)
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
                node = node.literals.setdefault(segment, _Node())
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
