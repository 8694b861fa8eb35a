"""A fixed window instead of the policy, for the benchmarks of the policy.

A free device takes the first waiting item, then waits for a full batch, at most for
`max_batch_delay`, as TorchServe does.
"""

from __future__ import annotations

from typing_extensions import override

from workers.batching.batcher import Batcher, Hold, ItemT, Leave, Reason


class FixedWindow(Batcher[ItemT]):
    """Holds every batch that is not full for the whole window.

    Attributes:
        opened_at: when the free device began to collect.
    """

    opened_at: float | None = None

    @override
    def _consider(
        self, key: str | None, now: float, draining: bool, behind: int | None
    ) -> Leave[ItemT] | Hold:
        group = self._groups[key]
        waiting = group.waiting
        size, bound = self._fitting(waiting, len(waiting))
        reason: Reason = bound or ("drain" if draining else "deadline")
        if reason == "deadline":
            if self.opened_at is None:
                self.opened_at = now
            until = self.opened_at + self.policy.max_batch_delay_s
            if now < until:
                return Hold(until)
        self.opened_at = None
        return self._leave(group, size, reason)
