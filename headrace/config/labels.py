"""Labels of workers and of models, which decide which workers serve a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

from msgspec import Meta

from headrace.config.suggestions import listing

LABEL_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,63}=[A-Za-z0-9_.-]{1,63}$"
#: What a worker has and what a model needs, in the same form: `gpu=a100`.
Label = Annotated[str, Meta(pattern=LABEL_PATTERN, examples=["gpu=a100"])]


def missing_labels(needed: Collection[str], labels: Collection[str]) -> list[str]:
    """Return which of a model's labels a worker does not have; it fits if none is missing."""
    return [label for label in needed if label not in labels]


def why_no_worker(needed: Collection[str], workers: Mapping[str, Collection[str]]) -> str:
    """Return in words why no worker takes a model; "" if one fits.

    Args:
        needed: the labels of the model.
        workers: the labels of each live worker, by its node name.
    """
    if not workers:
        return "no worker runs"
    missing = {node: missing_labels(needed, labels) for node, labels in workers.items()}
    if not all(missing.values()):
        return ""
    each = [f"{node} lacks {listing(lacks)}" for node, lacks in sorted(missing.items())]
    return f"no worker has the labels {listing(needed)}: {listing(each)}"
