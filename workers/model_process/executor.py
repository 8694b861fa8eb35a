"""A batch through the handler's verbs, to one outcome per item. Runs in the model process.

When a verb raises, nobody fails at first: the batch is split and its halves run again, until the
inputs that make it raise stand alone and fail with their own error. Knows no queue and no sockets.

Items that are dropped meanwhile, as their jobs were cancelled, are left out where the handler's
contract allows: before `preprocess`; before `inference` where the verbs overlap, since a handler
that runs in turn may have kept something for each item; and before any verb where nobody is left.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import (
    NOT_STARTED,
    HandlerError,
    InputError,
    InvalidRequest,
    JobCancelled,
    JobExpired,
)
from headrace.handler import Context, Handler
from headrace.jobs.encoding import decode_input, decode_payload
from headrace.observability import logs
from workers.model_process.batch_state import BatchState, Input, SubBatch
from workers.model_process.context import TRACES, SpanOf, no_span, overlaps, traces_of
from workers.model_process.device_errors import device_lost
from workers.model_process.outcomes import Outcome, failure, out_of_memory, outcomes_of
from workers.model_process.progress import BatchProgress, ProgressReporter
from workers.model_process.rows import padded, rows_of

clock = time.perf_counter
#: The outcome of an item that was dropped before its verbs; the worker knows of the cancel.
CANCELLED: Final[Outcome] = failure(JobCancelled("the job was cancelled"))


@dataclass(slots=True)
class BatchExecutor:
    """Runs batches through one handler.

    Attributes:
        preprocess: the handler's own verb on these inputs, or what stands for it.
        teller: takes what the handler says of its progress; None where nobody listens.
        span: what a verb runs in, by its name and how many items it has.
    """

    handler: Handler
    context: Context
    preprocess: Callable[[list[Input]], Any] = field(init=False)
    teller: ProgressReporter | None = None
    span: SpanOf = no_span

    def __post_init__(self) -> None:
        self.preprocess = self.own_preprocess

    def tells(self, send: Callable[[int, list[list[Any]]], None]) -> None:
        """Pass on what the handler says of its progress: a batch's number, and rows."""
        self.teller = ProgressReporter(send, shared=not overlaps(self.handler))
        self.context.reports_to(self.teller.take)

    def own_preprocess(self, inputs: list[Input]) -> Any:
        """The handler's verb, in this thread."""
        self._at_hand(inputs)
        if self.teller is not None:
            self.teller.narrow(inputs)
        return self.handler.preprocess([value for _, value, _ in inputs])

    def run(
        self, items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Run a batch, one verb after the other; one outcome per item."""
        work = self.read(items, dropped, seq)
        if work.readable:
            self.attempt(work, list(work.readable))
        work.times.starved = work.times.preprocess
        return self.close(work)

    @staticmethod
    def read(
        items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Read the inputs; what cannot be read has its outcome.

        Args:
            items: as in the frame: (id, input JSON), or (id, bytes, content type) of a payload;
                of what may expire before it is read also until when, in seconds of the monotonic
                clock, which all processes of a machine share.
            dropped: the places of items that are not wanted any more, now and from now on.
            seq: the batch's number, for what is said of it.
        """
        gone = set() if dropped is None else dropped
        work = BatchState([[] for _ in items], {}, dropped=gone, news=BatchProgress(seq))
        for place, (job_id, raw, *more) in enumerate(items):
            if place in work.dropped:
                work.outcomes[place] = CANCELLED
                continue
            if len(more) > 1 and time.monotonic() >= more[1]:
                work.outcomes[place] = failure(JobExpired(NOT_STARTED))
                continue
            try:
                decoded = decode_payload(raw, more[0]) if more and more[0] else decode_input(raw)
                work.readable[place] = (job_id, *decoded)
            except InvalidRequest as error:
                work.outcomes[place] = failure(InputError(error.message))
        return work

    def close(self, work: BatchState) -> BatchState:
        """Give an outcome to those items that got none; of its progress nothing more is said."""
        if self.teller is not None:
            self.teller.close(work.news)
        missing = failure(HandlerError("the handler gave no result for this input"))
        work.outcomes = [outcome or missing for outcome in work.outcomes]
        return work

    def attempt(self, work: BatchState, places: list[int]) -> None:
        """Run these items together, and where that raises, run them in halves."""
        if work.device_lost:
            return
        if work.dropped:
            places = self._wanted(work, places)
            if not places:
                return
        group = work.group(places)
        try:
            self.verbs(group)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, sys.exit too, becomes that job's error
            self.raised(work, places, error)
        else:
            self.settle(work, places, group)
            return
        # The error and its frames are gone by here, and with them what they held in memory.
        del group
        self.split(work, places)

    @staticmethod
    def _wanted(work: BatchState, places: list[int]) -> list[int]:
        wanted = [place for place in places if place not in work.dropped]
        for place in set(places).difference(wanted):
            work.outcomes[place] = CANCELLED
        return wanted

    def split(self, work: BatchState, places: list[int]) -> None:
        """Run items that raised together in halves; one alone has its outcome."""
        if work.device_lost:
            return
        if work.too_large and work.too_large[-1] == places:
            free_memory()
        if len(places) > 1:
            half = len(places) // 2
            self.attempt(work, places[:half])
            self.attempt(work, places[half:])

    @staticmethod
    def raised(work: BatchState, places: list[int], error: BaseException) -> None:
        """Note what these items raised together; alone, it is the outcome."""
        if out_of_memory(error):
            work.too_large.append(places)
        work.device_lost = work.device_lost or device_lost(error)
        if len(places) == 1:
            work.outcomes[places[0]] = failure(error)

    @staticmethod
    def settle(work: BatchState, places: list[int], group: SubBatch) -> None:
        """Take over the results of items that went through all verbs together."""
        work.ran = max(work.ran, len(places))

        def raised(error: Exception) -> None:
            # A tensor on a device that an earlier kernel has taken along shows it here first.
            work.device_lost = work.device_lost or device_lost(error)

        for place, outcome in zip(places, outcomes_of(group.results, raised), strict=True):
            work.outcomes[place] = outcome

    def verbs(self, group: SubBatch) -> None:
        """All verbs in turn.

        Raises:
            BaseException: whatever a verb raises.
        """
        self.prepare(group)
        self.infer(group)
        self.finish(group)

    def prepare(self, group: SubBatch) -> None:
        """`preprocess`."""
        self._enter(group)
        started = clock()
        try:
            with self.span("preprocess", len(group.inputs)):
                items = self.preprocess(group.inputs)
        finally:
            group.times.preprocess += (clock() - started) * 1000
            self._leave()
        results = group.results = _checked(items, len(group.inputs), "preprocess")
        group.good = [n for n, item in enumerate(results) if not isinstance(item, BaseException)]
        # A handler may return a tensor; it is passed on whole unless an item dropped out.
        whole = len(group.good) == len(results)
        group.items = items if whole else [results[n] for n in group.good]
        self._pad(group)

    def infer(self, group: SubBatch) -> None:
        """`inference`, unless every item is an error or dropped."""
        self._leave_out(group)
        if not group.good:
            return
        self._at_hand(group.at_hand)
        self._enter(group, group.good)
        started = clock()
        try:
            with self.span("inference", len(group.good)):
                group.outputs = self.handler.inference(group.items)
        finally:
            group.times.inference += (clock() - started) * 1000
            self._leave()
        group.items = None

    def finish(self, group: SubBatch) -> None:
        """`postprocess`, unless every item is an error or dropped."""
        if len(gone := group.gone()) == len(group.good):
            self._drop(group, gone)
        if not group.good:
            return
        self._at_hand(group.at_hand)
        self._enter(group, group.good)
        started = clock()
        try:
            size = len(group.good) + group.padding
            with self.span("postprocess", len(group.good)):
                final = _checked(self.handler.postprocess(group.outputs), size, "postprocess")
        finally:
            group.times.postprocess += (clock() - started) * 1000
            self._leave()
        for n, result in zip(group.good, final[: len(group.good)], strict=True):
            group.results[n] = result

    def _leave_out(self, group: SubBatch) -> None:
        """Let those go that were dropped since `preprocess`, if the handler bears it."""
        gone = group.gone()
        if not gone:
            return
        if len(gone) == len(group.good):
            self._drop(group, gone)
        elif overlaps(self.handler):
            rows = [row for row, n in enumerate(group.good) if n not in gone]
            kept = rows_of(group.items, rows)
            if kept is not None:
                self._drop(group, gone)
                group.items = kept
                self._pad(group)

    @staticmethod
    def _drop(group: SubBatch, gone: list[int]) -> None:
        for n in gone:
            group.results[n] = JobCancelled("the job was cancelled")
        group.good = [n for n in group.good if n not in gone]
        group.left_out = group.left_out.union(gone)

    def _pad(self, group: SubBatch) -> None:
        group.times.padding -= group.padding
        group.padding = self._padding(len(group.good))
        if group.padding:
            group.items = padded(group.items, len(group.good), group.padding)
            group.times.padding += group.padding

    def _padding(self, count: int) -> int:
        allowed = self.context.allowed_batch_sizes if count else ()
        return next((size for size in allowed if size >= count), count) - count

    def _enter(self, group: SubBatch, good: list[int] | None = None) -> None:
        if self.teller is not None:
            self.teller.enter(group.news, group.inputs, good, group.padding)

    def _leave(self) -> None:
        if self.teller is not None:
            self.teller.leave()

    def _at_hand(self, inputs: list[Input]) -> None:
        ids = self.context.request_ids = [job_id for job_id, _, _ in inputs]
        logs.AT_HAND.set(ids)
        self.context.content_types = [kind for _, _, kind in inputs]
        if TRACES.get() is not None or self.context.traceparents:
            self.context.traceparents = traces_of(ids)


def free_memory() -> None:
    """Give back what is held for later, so that a smaller batch finds room."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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
