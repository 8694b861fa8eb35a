"""Runs a batch through the handler's verbs, to one outcome per item. Runs in the model process.

When a verb raises, the batch is split in halves, which run again. An input that still makes the
verb raise when it runs alone fails with its own error; the other inputs succeed.

Items whose jobs are cancelled meanwhile are dropped where the handler's contract allows it: before
`preprocess`; before `inference` if the verbs overlap (a handler that runs its verbs in turn may
have kept something for each item); and before any verb if no item is left.
Independent of queues and sockets.
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
from workers.model_process.batch_state import (
    BatchState,
    Input,
    Outcome,
    SubBatch,
    padded,
    rows_of,
)
from workers.model_process.context import TRACES, SpanOf, no_span, overlaps, traces_of
from workers.model_process.device_errors import device_lost, out_of_memory
from workers.model_process.outcomes import failure, outcomes_of
from workers.model_process.progress import BatchProgress, ProgressReporter

clock = time.perf_counter
#: The outcome of an item that was dropped before its verbs. The worker knows of the cancellation.
CANCELLED: Final[Outcome] = failure(JobCancelled("the job was cancelled"))


@dataclass(slots=True)
class BatchExecutor:
    """Runs batches through one handler.

    Attributes:
        preprocess: the handler's own verb, or the pool that runs it in parts.
        reporter: takes the progress that the handler reports; None discards it.
        span: returns the context manager that a verb runs in.
    """

    handler: Handler
    context: Context
    preprocess: Callable[[list[Input]], Any] = field(init=False)
    reporter: ProgressReporter | None = None
    span: SpanOf = no_span

    def __post_init__(self) -> None:
        self.preprocess = self.own_preprocess

    def report_progress_to(self, send: Callable[[int, list[list[Any]]], None]) -> None:
        """Pass the handler's progress on: `send` takes a batch's number and rows."""
        self.reporter = ProgressReporter(send, shared=not overlaps(self.handler))
        self.context.reports_to(self.reporter.take)

    def own_preprocess(self, inputs: list[Input]) -> Any:
        """Run the handler's `preprocess` in this thread."""
        self._set_current(inputs)
        if self.reporter is not None:
            self.reporter.narrow(inputs)
        return self.handler.preprocess([value for _, value, _ in inputs])

    def run(
        self, items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Run a batch, one verb after the other. Its state has one outcome per item then."""
        state = self.read(items, dropped, seq)
        if state.readable:
            self.attempt(state, list(state.readable))
        state.times.starved = state.times.preprocess
        return self.close(state)

    @staticmethod
    def read(
        items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Decode the inputs. An item that cannot be decoded, or has expired, gets its outcome.

        Args:
            items: as in the frame: (id, input JSON), or (id, bytes, content type) of a payload. A
                job that may expire also has its deadline, in seconds of the monotonic clock, which
                all processes of a machine share.
            dropped: places of items whose jobs were cancelled; it may grow while the batch runs.
            seq: the batch's number, for progress reports.
        """
        gone = set() if dropped is None else dropped
        state = BatchState([[] for _ in items], {}, dropped=gone, progress=BatchProgress(seq))
        for place, (job_id, raw, *more) in enumerate(items):
            if place in state.dropped:
                state.outcomes[place] = CANCELLED
                continue
            if len(more) > 1 and time.monotonic() >= more[1]:
                state.outcomes[place] = failure(JobExpired(NOT_STARTED))
                continue
            try:
                decoded = decode_payload(raw, more[0]) if more and more[0] else decode_input(raw)
                state.readable[place] = (job_id, *decoded)
            except InvalidRequest as error:
                state.outcomes[place] = failure(InputError(error.message))
        return state

    def close(self, state: BatchState) -> BatchState:
        """Give an outcome to items that have none, and end the batch's progress reports."""
        if self.reporter is not None:
            self.reporter.close(state.progress)
        if not all(state.outcomes):
            missing = failure(HandlerError("the handler returned no result for this input"))
            state.outcomes = [outcome or missing for outcome in state.outcomes]
        return state

    def attempt(self, state: BatchState, places: list[int]) -> None:
        """Run these items together; if that raises, run them in halves."""
        if state.device_lost:
            return
        if state.dropped:
            places = self._wanted(state, places)
            if not places:
                return
        sub_batch = state.sub_batch(places)
        try:
            self.verbs(sub_batch)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, sys.exit too, becomes that job's error
            self.raised(state, places, error)
        else:
            self.settle(state, places, sub_batch)
            return
        # The error and its frames are freed here, and with them the memory that they held.
        del sub_batch
        self.split(state, places)

    @staticmethod
    def _wanted(state: BatchState, places: list[int]) -> list[int]:
        wanted = [place for place in places if place not in state.dropped]
        for place in set(places).difference(wanted):
            state.outcomes[place] = CANCELLED
        return wanted

    def split(self, state: BatchState, places: list[int]) -> None:
        """Run items that raised together in halves; a single item has its outcome already."""
        if state.device_lost:
            return
        if state.too_large and state.too_large[-1] == places:
            free_memory()
        if len(places) > 1:
            half = len(places) // 2
            self.attempt(state, places[:half])
            self.attempt(state, places[half:])

    @staticmethod
    def raised(state: BatchState, places: list[int], error: BaseException) -> None:
        """Record an error that these items raised together. It is the outcome of a single item."""
        if out_of_memory(error):
            state.too_large.append(places)
        state.device_lost = state.device_lost or device_lost(error)
        if len(places) == 1:
            state.outcomes[places[0]] = failure(error)

    @staticmethod
    def settle(state: BatchState, places: list[int], sub_batch: SubBatch) -> None:
        """Store the outcomes of items that went through all verbs together."""
        state.ran = max(state.ran, len(places))

        def raised(error: Exception) -> None:
            # A tensor on a device that an earlier kernel has lost may raise only here.
            state.device_lost = state.device_lost or device_lost(error)

        for place, outcome in zip(places, outcomes_of(sub_batch.results, raised), strict=True):
            state.outcomes[place] = outcome

    def verbs(self, sub_batch: SubBatch) -> None:
        """Run all verbs in turn.

        Raises:
            BaseException: whatever a verb raises.
        """
        self.prepare(sub_batch)
        self.infer(sub_batch)
        self.finish(sub_batch)

    def prepare(self, sub_batch: SubBatch) -> None:
        """Run `preprocess`."""
        self._enter(sub_batch)
        started = clock()
        try:
            with self.span("preprocess", len(sub_batch.inputs)):
                items = self.preprocess(sub_batch.inputs)
        finally:
            sub_batch.times.preprocess += (clock() - started) * 1000
            self._leave()
        results = sub_batch.results = _checked(items, len(sub_batch.inputs), "preprocess")
        sub_batch.good = [
            n for n, item in enumerate(results) if not isinstance(item, BaseException)
        ]
        # A handler may return a tensor. It is passed on whole unless an item is an error.
        whole = len(sub_batch.good) == len(results)
        sub_batch.items = items if whole else [results[n] for n in sub_batch.good]
        self._pad(sub_batch)

    def infer(self, sub_batch: SubBatch) -> None:
        """Run `inference`, unless every item is an error or dropped."""
        self._leave_out(sub_batch)
        if not sub_batch.good:
            return
        self._set_current(sub_batch.remaining)
        self._enter(sub_batch, sub_batch.good)
        started = clock()
        try:
            with self.span("inference", len(sub_batch.good)):
                sub_batch.outputs = self.handler.inference(sub_batch.items)
        finally:
            sub_batch.times.inference += (clock() - started) * 1000
            self._leave()
        sub_batch.items = None

    def finish(self, sub_batch: SubBatch) -> None:
        """Run `postprocess`, unless every item is an error or dropped."""
        if len(gone := sub_batch.gone()) == len(sub_batch.good):
            self._drop(sub_batch, gone)
        if not sub_batch.good:
            return
        self._set_current(sub_batch.remaining)
        self._enter(sub_batch, sub_batch.good)
        started = clock()
        try:
            size = len(sub_batch.good) + sub_batch.padding
            with self.span("postprocess", len(sub_batch.good)):
                final = _checked(self.handler.postprocess(sub_batch.outputs), size, "postprocess")
        finally:
            sub_batch.times.postprocess += (clock() - started) * 1000
            self._leave()
        for n, result in zip(sub_batch.good, final[: len(sub_batch.good)], strict=True):
            sub_batch.results[n] = result

    def _leave_out(self, sub_batch: SubBatch) -> None:
        """Remove items that were dropped since `preprocess`, if the handler's contract allows."""
        gone = sub_batch.gone()
        if not gone:
            return
        if len(gone) == len(sub_batch.good):
            self._drop(sub_batch, gone)
        elif overlaps(self.handler):
            rows = [row for row, n in enumerate(sub_batch.good) if n not in gone]
            kept = rows_of(sub_batch.items, rows)
            if kept is not None:
                self._drop(sub_batch, gone)
                sub_batch.items = kept
                self._pad(sub_batch)

    @staticmethod
    def _drop(sub_batch: SubBatch, gone: list[int]) -> None:
        for n in gone:
            sub_batch.results[n] = JobCancelled("the job was cancelled")
        sub_batch.good = [n for n in sub_batch.good if n not in gone]
        sub_batch.left_out = sub_batch.left_out.union(gone)

    def _pad(self, sub_batch: SubBatch) -> None:
        sub_batch.times.padding -= sub_batch.padding
        sub_batch.padding = self._padding(len(sub_batch.good))
        if sub_batch.padding:
            sub_batch.items = padded(sub_batch.items, len(sub_batch.good), sub_batch.padding)
            sub_batch.times.padding += sub_batch.padding

    def _padding(self, count: int) -> int:
        allowed = self.context.allowed_batch_sizes if count else ()
        return next((size for size in allowed if size >= count), count) - count

    def _enter(self, sub_batch: SubBatch, good: list[int] | None = None) -> None:
        if self.reporter is not None:
            self.reporter.enter(sub_batch.progress, sub_batch.inputs, good, sub_batch.padding)

    def _leave(self) -> None:
        if self.reporter is not None:
            self.reporter.leave()

    def _set_current(self, inputs: list[Input]) -> None:
        ids = self.context.request_ids = [job_id for job_id, _, _ in inputs]
        logs.RUNNING_JOBS.set(ids)
        self.context.content_types = [kind for _, _, kind in inputs]
        if TRACES.get() is not None or self.context.traceparents:
            self.context.traceparents = traces_of(ids)


def free_memory() -> None:
    """Free cached memory, so that a smaller batch has room."""
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
