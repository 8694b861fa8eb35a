"""How many items a model's memory has room for together, as its batches have shown.

A batch that is too large is halved in the model process, at the price of the attempts that failed.
So the size that fits is remembered for the batches to come, and tried to be passed again slowly:
what took the memory may be gone. Knows no clock and no queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: So many full batches must run before a larger one is tried; twice as many after each failure.
PATIENCE_MIN: Final = 16
PATIENCE_MAX: Final = 4096


@dataclass(slots=True)
class MemoryLimit:
    """The size of batch that one model has memory for.

    Attributes:
        max_size: the size that the models file allows.
        allowed: the only sizes that run, in order; empty if all do.
        limit: the size that fits, as far as is known.
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
        """Learn from a batch.

        Args:
            size: how many items it had.
            fits: how many of them memory had room for; 0 if it had room for all.

        Returns:
            Whether `limit` has changed.
        """
        before = self.limit
        if fits:
            # A size that ran before is known to fit, unless this very batch shows that no more.
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
