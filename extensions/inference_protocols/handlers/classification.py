"""The best classes of an output, in place of its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import HandlerError


def _in_rows(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Not -1, which numpy refuses where there are no rows.
    return scores.reshape(len(scores), math.prod(scores.shape[1:]))


def classified(
    name: str, scores: np.ndarray[Any, Any], count: int, labels: Sequence[str]
) -> np.ndarray[Any, Any]:
    """Return `value:index[:label]` of the best classes of each row, as bytes.

    The first dimension is the rows, and the last one the classes; one dimension is one row.

    Raises:
        HandlerError: the output has no numbers.
    """
    if scores.dtype.kind not in "iuf" and scores.dtype.name != "bfloat16":
        raise HandlerError(f"the output {name} has no scores, so it has no best classes")
    rows = scores.reshape(1, -1) if scores.ndim < 2 else _in_rows(scores)
    count = min(count, rows.shape[1])
    # A stable order: of equal scores the first class comes first.
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    found = np.empty((len(rows), count), object)
    for at, row in enumerate(best):
        for place, index in enumerate(row):
            label = f":{labels[index]}" if index < len(labels) else ""
            score = rows[at, index]
            text = str(score) if rows.dtype.kind in "iu" else f"{float(score):f}"
            found[at, place] = f"{text}:{index}{label}".encode()
    return found[0] if scores.ndim < 2 else found
