"""A batch in the model process: as it arrives, while it runs, and the frame of its outcomes."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

from workers.model_process.context import Input
from workers.model_process.outcomes import Outcome
from workers.model_process.reports.progress_reporter import BatchProgress
from workers.protocol.frames import (
    Done,
    FromModel,
    Init,
    RunBatch,
    Stop,
)
from workers.threads import SOFTWARE_ERROR_STATUS

logger = logging.getLogger("headrace.model")

Send = Callable[[FromModel], None]
#: In a batch's dropped places: another model needs the device first, so the batch is returned to
#: the worker if its `inference` has not begun.
PREEMPTED: Final = -1


class ReceivedBatch(NamedTuple):
    """A batch of the worker.

    Attributes:
        dropped: places of items whose jobs were cancelled, and PREEMPTED; another thread adds them.
    """

    frame: RunBatch
    dropped: set[int]


#: What the worker has sent, without what concerns batches that came before.
Inbox = queue.SimpleQueue[Init | ReceivedBatch | Stop]


@dataclass(slots=True)
class StageTimes:
    """The times of a batch, summed over all its attempts.

    Attributes:
        preprocess, inference, postprocess: milliseconds in that verb.
        starved: milliseconds for which the device was idle because the batch was not prepared yet.
        padding: inputs that were added to reach an allowed size.
    """

    preprocess: float = 0.0
    inference: float = 0.0
    postprocess: float = 0.0
    starved: float = 0.0
    padding: int = 0

    def as_list(self) -> list[float]:
        """Return the milliseconds as the worker receives them."""
        return [self.preprocess, self.inference, self.postprocess, self.starved]


@dataclass(slots=True)
class SubBatch:
    """Inputs that go through the verbs together.

    Attributes:
        results: of each input; an error that `preprocess` returned stays there.
        good: indexes of the inputs that are no errors.
        items: what `preprocess` returned for the good inputs, and then the padding.
        padding: how many copies of the last item `items` ends with.
        dropped: places in the batch whose jobs were cancelled.
        left_out: indexes of the inputs that skip the remaining verbs because they were dropped.
        progress: takes what the handler reports for their batch; None discards it.
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
    progress: BatchProgress | None = None

    @property
    def good_inputs(self) -> list[Input]:
        """The inputs of the items that are not errors and were not left out, in order."""
        if len(self.good) == len(self.inputs):
            return self.inputs
        return [self.inputs[n] for n in self.good]

    @property
    def seq(self) -> int:
        """The number of the batch; 0 for a warm-up."""
        return self.progress.seq if self.progress is not None else 0

    def gone(self) -> list[int]:
        """Return the indexes of good inputs that were dropped."""
        return [n for n in self.good if self.places[n] in self.dropped] if self.dropped else []


@dataclass(slots=True)
class BatchState:
    """A batch.

    Attributes:
        outcomes: of each item; empty until it is known.
        readable: the inputs that could be decoded, by their places.
        ran: the size of the largest sub-batch that went through all verbs.
        too_large: the places of each sub-batch that ran out of memory.
        dropped: places of items whose jobs were cancelled; another thread adds to it.
        device_lost: the device failed under the batch, and nothing more can run in this process.
    """

    outcomes: list[Outcome]
    readable: dict[int, Input]
    times: StageTimes = field(default_factory=StageTimes)
    ran: int = 0
    too_large: list[list[int]] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    device_lost: bool = False
    progress: BatchProgress = field(default_factory=BatchProgress)

    def sub_batch(self, places: list[int]) -> SubBatch:
        """Return the items at these places, to go through the verbs together."""
        inputs = [self.readable[place] for place in places]
        return SubBatch(inputs, self.times, places, self.dropped, progress=self.progress)

    @property
    def fits(self) -> int:
        """How many items fit into memory, if the batch did not; else 0.

        A sub-batch with an input that is too large by itself does not count.
        """
        alone = {places[0] for places in self.too_large if len(places) == 1}
        if all(alone.intersection(places) for places in self.too_large):
            return 0
        return max(1, self.ran)


def rows_of(items: Any, rows: list[int]) -> Any:
    """Return these rows of what `preprocess` returned; None if its type has no rows."""
    if hasattr(items, "shape"):
        return items[rows]
    return [items[row] for row in rows] if isinstance(items, (list, tuple)) else None


def done_frame(seq: int, state: BatchState) -> Done:
    """Return the frame that reports a batch's outcomes to the worker."""
    times = state.times
    return Done(seq, state.outcomes, times.as_list(), times.padding, state.fits, state.device_lost)


def leave(send: Send, seq: int, state: BatchState, *, alone: bool) -> NoReturn:
    """End the process because a batch lost the device.

    Args:
        seq: the batch's number.
        alone: no other batch was in the process. If the batch also has a single item, that item is
            the cause and ends with its error. All other items run alone next.
    """
    logger.critical("device lost with a batch of %d; the process ends", len(state.outcomes))
    if alone and len(state.readable) == 1:
        with contextlib.suppress(OSError):  # the worker is gone
            send(done_frame(seq, state))
    os._exit(SOFTWARE_ERROR_STATUS)
