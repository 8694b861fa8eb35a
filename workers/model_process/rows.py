"""Rows of a batch that `preprocess` gave: a list, an array or a tensor."""

from __future__ import annotations

from typing import Any


def rows_of(items: Any, rows: list[int]) -> Any:
    """These rows of a batch; None where it is of a kind that cannot be taken apart."""
    if hasattr(items, "shape"):
        return items[rows]
    return [items[row] for row in rows] if isinstance(items, (list, tuple)) else None


def padded(items: Any, count: int, padding: int) -> Any:
    """The batch with its last item so many times more: of a shape that the model takes for sure."""
    if hasattr(items, "shape"):  # a tensor or an array; both take a list of rows
        return items[[*range(count), *[count - 1] * padding]]
    return [*items, *[items[-1]] * padding]
