"""A batch as it goes through the verbs: its inputs, what has come of each, and what it took."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.model_process.outcomes import Outcome
from workers.model_process.progress import BatchProgress

#: A job's id, its input as the handler gets it, and its content type.
Input = tuple[str, Any, str]


@dataclass(slots=True)
class StageTimes:
    """What a batch took, summed over all its attempts.

    Attributes:
        preprocess: milliseconds in that verb, as in the two that follow.
        starved: milliseconds that the device stood idle because the batch was not yet prepared.
        padding: inputs that were added to reach an allowed size.
    """

    preprocess: float = 0.0
    inference: float = 0.0
    postprocess: float = 0.0
    starved: float = 0.0
    padding: int = 0

    def as_list(self) -> list[float]:
        """The form in which they cross to the worker."""
        return [self.preprocess, self.inference, self.postprocess, self.starved]


@dataclass(slots=True)
class SubBatch:
    """Inputs that go through the verbs together.

    Attributes:
        results: one per input; an error that `preprocess` gave stands there from then on.
        good: the places of the inputs that are no errors.
        padding: how often the last of them stands in `items` once more.
        places: their places in the batch.
        dropped: the places that are not wanted any more.
        left_out: which of the inputs took no further verb for that.
        news: what the handler says of their batch; None where nobody listens.
    """

    inputs: list[Input]
    times: StageTimes
    places: Sequence[int] = ()
    dropped: Collection[int] = ()
    left_out: frozenset[int] = frozenset()
    results: list[Any] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    items: Any = None
    padding: int = 0
    outputs: Any = None
    news: BatchProgress | None = None

    @property
    def at_hand(self) -> list[Input]:
        """The inputs without those that were left out."""
        if not self.left_out:
            return self.inputs
        return [one for n, one in enumerate(self.inputs) if n not in self.left_out]

    def gone(self) -> list[int]:
        """Which of the good ones were dropped."""
        return [n for n in self.good if self.places[n] in self.dropped] if self.dropped else []


@dataclass(slots=True)
class BatchState:
    """One batch.

    Attributes:
        outcomes: one per item; empty until it is known.
        readable: the places of the items whose input could be read.
        ran: the largest group of them that went through all verbs.
        too_large: groups that ran out of memory, and those items that did so alone.
        dropped: the places of items that are not wanted any more; another thread adds to them.
        device_lost: they took the device with them: nothing more can run in this process.
        news: what the handler says of them.
    """

    outcomes: list[Outcome]
    readable: dict[int, Input]
    times: StageTimes = field(default_factory=StageTimes)
    ran: int = 0
    too_large: list[list[int]] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    device_lost: bool = False
    news: BatchProgress = field(default_factory=BatchProgress)

    def group(self, places: list[int]) -> SubBatch:
        """These items, to go through the verbs together."""
        inputs = [self.readable[place] for place in places]
        return SubBatch(inputs, self.times, places, self.dropped, news=self.news)

    @property
    def fits(self) -> int:
        """How many items memory has room for, if the batch was too large for it; else 0.

        Where an input is too large by itself, the groups that it was in say nothing.
        """
        alone = {places[0] for places in self.too_large if len(places) == 1}
        if all(alone.intersection(places) for places in self.too_large):
            return 0
        return max(1, self.ran)
