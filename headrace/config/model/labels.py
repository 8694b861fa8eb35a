"""Labels of workers and of models, which decide which workers serve a model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from msgspec import Meta

LABEL_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,63}=[A-Za-z0-9_.-]{1,63}$"
#: What a worker has and what a model needs, in the same form: `gpu=a100`.
Label = Annotated[str, Meta(pattern=LABEL_PATTERN, examples=["gpu=a100"])]


def missing_labels(needed: Collection[str], labels: Collection[str]) -> list[str]:
    """Return which of a model's labels a worker does not have; it fits if none is missing."""
    return [label for label in needed if label not in labels]
