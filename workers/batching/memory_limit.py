"""How many items fit into a model's memory together, learnt from its batches.

A batch that is too large is halved in the model process, which costs the failed attempts. So later
batches are limited to the size that fits. The limit is raised again slowly, because what used the
memory may be gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: How many full batches must run before a larger one is tried; doubled after each failure.
PATIENCE_MIN: Final = 16
PATIENCE_MAX: Final = 4096


@dataclass(slots=True)
class MemoryLimit:
    """The batch size that fits into one model's memory.

    Attributes:
        max_size: the size that the models file allows.
        allowed: the allowed batch sizes in order; empty if all are.
        limit: the largest size that is known to fit.
    """

    max_size: int
    allowed: tuple[int, ...] = ()
    limit: int = field(init=False)
    _good: int = 0
    _full: int = 0
    _patience: int = PATIENCE_MIN

    def __post_init__(self) -> None:
        self.limit = self.max_size

    def observe(self, size: int, fits: int) -> bool:
        """Learn from a batch that has run.

        Args:
            size: how many items it had.
            fits: how many of them fit together; 0 if all did.

        Returns:
            Whether `limit` has changed.
        """
        before = self.limit
        if fits:
            # A size that ran before fits, unless this batch has just failed with it.
            known = max(fits, self._good if self._good < size else 0)
            self.limit = max((step for step in self.allowed if step <= known), default=known)
            self._good, self._full = self.limit, 0
            self._patience = min(self._patience * 2, PATIENCE_MAX)
            return self.limit != before
        self._good = max(self._good, size)
        if size >= self.limit < self.max_size:
            self._full += 1
            if self._full >= self._patience:
                self._full = 0
                larger = min(self.max_size, self.limit + max(1, self.limit // 4))
                self.limit = min((n for n in self.allowed if n > self.limit), default=larger)
        return self.limit != before
