"""Policies that know when the next items come: the best of them is what a policy could reach.

Each of them holds a batch by one rule. Which of them is the best is chosen afterwards, for each
case. So the best one knows more than any policy can.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from benchmarks.batching.simulation import Item, KnowsFuture
from workers.batching.batcher import Batcher, Hold, Leave


class _Worthwhile(KnowsFuture):
    """Holds a batch for the k-th next item while the wait costs less than what k items save.

    The wait of each waiting item counts, or that of a whole batch (`whole`).
    """

    factor = 1.0
    whole = False

    @override
    def _consider(
        self, key: str | None, now: float, draining: bool, behind: int | None
    ) -> Leave[Item] | Hold:
        group = self._groups[key]
        size, bound = self._fitting(group.waiting, group.urgent or len(group.waiting))
        if bound is None:
            for count, at in enumerate(self.simulation.upcoming()[: self.room[-2]], 1):
                if self._pays(size, count, at - now):
                    return Hold(at)
            size = self._filled(group.waiting, size) if group.urgent else size
        return self._leave(group, size, bound or "idle")

    def _pays(self, size: int, count: int, wait_s: float) -> bool:
        items = self.policy.max_batch_size if self.whole else size
        return items * wait_s < self.factor * count * self.simulation.device.fixed_s


class _Threshold(_Worthwhile):
    """Holds a batch until it has `least` items, if they come in less than two batches' time."""

    least = 1

    @override
    def _pays(self, size: int, count: int, wait_s: float) -> bool:
        return size + count >= self.least and wait_s < 2 * self.simulation.device.fixed_s


FACTORS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def policies(size: int) -> list[type[Batcher[Item]]]:
    """Return the policies for batches of at most `size` items."""
    made: list[type[Batcher[Item]]] = [
        type("Worthwhile", (_Worthwhile,), {"factor": factor, "whole": whole})
        for factor in FACTORS
        for whole in (False, True)
    ]
    step = max(1, size // 8)
    made += [
        type("Threshold", (_Threshold,), {"least": least})
        for least in {*range(1 + step, size, step), size}
    ]
    return made
