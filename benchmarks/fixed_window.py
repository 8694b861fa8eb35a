"""The worker's Celery app with a fixed window in place of its policy; for benchmarks.policy alone.

Everything else is the worker's own: a free device takes the first item that waits, then waits for
`max_batch_delay` or for a full batch, whichever comes first, as TorchServe's batching does.
"""

from __future__ import annotations

from typing_extensions import override

import workers.lane
from workers.batcher import Batcher, Hold, Leave, Reason
from workers.celery_app import deployed
from workers.items import Item


class FixedWindow(Batcher[Item]):
    """Holds every batch that is not full for the whole window.

    Attributes:
        opened_at: since when the free device collects.
    """

    opened_at: float | None = None

    @override
    def _consider(self, key: str | None, now: float, draining: bool) -> Leave[Item] | Hold:
        waiting = self._groups[key].waiting
        size, bound = self._fitting(waiting, len(waiting))
        reason: Reason = bound or ("drain" if draining else "deadline")
        if reason == "deadline":
            if self.opened_at is None:
                self.opened_at = now
            until = self.opened_at + self.policy.max_batch_delay_s
            if now < until:
                return Hold(until)
        self.opened_at = None
        return self._leave(waiting, size, reason)


workers.lane.Batcher = FixedWindow  # type: ignore[assignment, attr-defined] # the policy to compare with
app = deployed()
