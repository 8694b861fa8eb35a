"""A batch through the handler's verbs, to one outcome per item. Runs in the model process.

When a verb raises, nobody fails at first: the batch is split and its halves run again, until the
inputs that make it raise stand alone and fail with their own error. Knows no queue and no sockets.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import NOT_STARTED, HandlerError, InputError, InvalidRequest, JobExpired
from headrace.handler import Context, Handler
from headrace.messages import decode_input, decode_payload
from workers.outcomes import Outcome, failure, out_of_memory, outcome_of

#: A job's id, its input as the handler gets it, and its content type.
Input = tuple[str, Any, str]
clock = time.perf_counter


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
class Group:
    """Inputs that go through the verbs together.

    Attributes:
        results: one per input; an error that `preprocess` gave stands there from then on.
        good: the places of the inputs that are no errors.
        padding: how often the last of them stands in `items` once more.
    """

    inputs: list[Input]
    times: StageTimes
    results: list[Any] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    items: Any = None
    padding: int = 0
    outputs: Any = None


@dataclass(slots=True)
class Work:
    """One batch.

    Attributes:
        outcomes: one per item; empty until it is known.
        readable: the places of the items whose input could be read.
        ran: the largest group of them that went through all verbs.
        too_large: groups that ran out of memory, and those items that did so alone.
    """

    outcomes: list[Outcome]
    readable: dict[int, Input]
    times: StageTimes = field(default_factory=StageTimes)
    ran: int = 0
    too_large: list[list[int]] = field(default_factory=list)

    @property
    def fits(self) -> int:
        """How many items memory has room for, if the batch was too large for it; else 0.

        Where an input is too large by itself, the groups that it was in say nothing.
        """
        alone = {places[0] for places in self.too_large if len(places) == 1}
        if all(alone.intersection(places) for places in self.too_large):
            return 0
        return max(1, self.ran)


@dataclass(slots=True)
class Runner:
    """Runs batches through one handler.

    Attributes:
        preprocess: the handler's own verb on these inputs, or what stands for it.
    """

    handler: Handler
    context: Context
    preprocess: Callable[[list[Input]], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.preprocess = self.own_preprocess

    def own_preprocess(self, inputs: list[Input]) -> Any:
        """The handler's verb, in this thread."""
        self._at_hand(inputs)
        return self.handler.preprocess([value for _, value, _ in inputs])

    def run(self, items: Sequence[Sequence[Any]]) -> Work:
        """Run a batch, one verb after the other; one outcome per item."""
        work = self.read(items)
        if work.readable:
            self.attempt(work, list(work.readable))
        work.times.starved = work.times.preprocess
        return self.close(work)

    @staticmethod
    def read(items: Sequence[Sequence[Any]]) -> Work:
        """Read the inputs; what cannot be read has its outcome.

        Args:
            items: as in the frame: (id, input JSON), or (id, bytes, content type) of a payload;
                of what may expire before it is read also until when, in seconds since 1970.
        """
        work = Work([[] for _ in items], {})
        for place, (job_id, raw, *more) in enumerate(items):
            if len(more) > 1 and time.time() >= more[1]:
                work.outcomes[place] = failure(JobExpired(NOT_STARTED))
                continue
            try:
                decoded = decode_payload(raw, more[0]) if more and more[0] else decode_input(raw)
                work.readable[place] = (job_id, *decoded)
            except InvalidRequest as error:
                work.outcomes[place] = failure(InputError(error.message))
        return work

    @staticmethod
    def close(work: Work) -> Work:
        """Give an outcome to those items that got none."""
        missing = failure(HandlerError("the handler gave no result for this input"))
        work.outcomes = [outcome or missing for outcome in work.outcomes]
        return work

    def attempt(self, work: Work, places: list[int]) -> None:
        """Run these items together, and where that raises, run them in halves."""
        group = Group([work.readable[place] for place in places], work.times)
        try:
            self.verbs(group)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
            self.raised(work, places, error)
        else:
            self.settle(work, places, group)
            return
        # The error and its frames are gone by here, and with them what they held in memory.
        del group
        self.split(work, places)

    def split(self, work: Work, places: list[int]) -> None:
        """Run items that raised together in halves; one alone has its outcome."""
        if work.too_large and work.too_large[-1] == places:
            free_memory()
        if len(places) > 1:
            half = len(places) // 2
            self.attempt(work, places[:half])
            self.attempt(work, places[half:])

    @staticmethod
    def raised(work: Work, places: list[int], error: Exception) -> None:
        """Note what these items raised together; alone, it is the outcome."""
        if out_of_memory(error):
            work.too_large.append(places)
        if len(places) == 1:
            work.outcomes[places[0]] = failure(error)

    @staticmethod
    def settle(work: Work, places: list[int], group: Group) -> None:
        """Take over the results of items that went through all verbs together."""
        work.ran = max(work.ran, len(places))
        for place, result in zip(places, group.results, strict=True):
            work.outcomes[place] = outcome_of(result)

    def verbs(self, group: Group) -> None:
        """All verbs in turn.

        Raises:
            Exception: whatever a verb raises.
        """
        self.prepare(group)
        self.infer(group)
        self.finish(group)

    def prepare(self, group: Group) -> None:
        """`preprocess`."""
        started = clock()
        try:
            items = self.preprocess(group.inputs)
        finally:
            group.times.preprocess += (clock() - started) * 1000
        results = group.results = _checked(items, len(group.inputs), "preprocess")
        group.good = [n for n, item in enumerate(results) if not isinstance(item, BaseException)]
        # A handler may return a tensor; it is passed on whole unless an item dropped out.
        whole = len(group.good) == len(results)
        group.items = items if whole else [results[n] for n in group.good]
        group.padding = self._padding(len(group.good))
        if group.padding:
            group.items = _padded(group.items, len(group.good), group.padding)
            group.times.padding += group.padding

    def infer(self, group: Group) -> None:
        """`inference`, unless every item is an error."""
        if not group.good:
            return
        self._at_hand(group.inputs)
        started = clock()
        try:
            group.outputs = self.handler.inference(group.items)
        finally:
            group.times.inference += (clock() - started) * 1000
        group.items = None

    def finish(self, group: Group) -> None:
        """`postprocess`, unless every item is an error."""
        if not group.good:
            return
        self._at_hand(group.inputs)
        started = clock()
        try:
            size = len(group.good) + group.padding
            final = _checked(self.handler.postprocess(group.outputs), size, "postprocess")
        finally:
            group.times.postprocess += (clock() - started) * 1000
        for n, result in zip(group.good, final[: len(group.good)], strict=True):
            group.results[n] = result

    def _padding(self, count: int) -> int:
        allowed = self.context.allowed_batch_sizes if count else ()
        return next((size for size in allowed if size >= count), count) - count

    def _at_hand(self, inputs: list[Input]) -> None:
        self.context.request_ids = [job_id for job_id, _, _ in inputs]
        self.context.content_types = [kind for _, _, kind in inputs]


def free_memory() -> None:
    """Give back what is held for later, so that a smaller batch finds room."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _padded(items: Any, count: int, padding: int) -> Any:
    """The batch with its last item so many times more: of a shape that the model takes for sure."""
    if hasattr(items, "shape"):  # a tensor or an array; both take a list of rows
        return items[[*range(count), *[count - 1] * padding]]
    return [*items, *[items[-1]] * padding]


def _checked(values: Any, length: int, verb: str) -> list[Any]:
    try:
        listed = list(values)
    except TypeError:
        raise HandlerError(
            f"{verb} returned {type(values).__name__}, not a list of {length}"
        ) from None
    if len(listed) != length:
        raise HandlerError(f"{verb} returned {len(listed)} values for {length} inputs")
    return listed
