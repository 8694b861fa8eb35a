"""Runs a batch through the handler's verbs, to an outcome per item. Runs in the model process.

When a verb raises, the batch is split in halves, which run again. An input that still makes the
verb raise when it runs alone fails with its own error; the other inputs succeed.

Items whose jobs are cancelled meanwhile are dropped where the handler's contract allows it. It does
so before `preprocess`, and before any verb if no item is left. They are dropped before `inference`
only if the verbs overlap: a handler that runs its verbs in turn may have kept something for each
item. Independent of queues and sockets.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from headrace.jobs.options import GivenDetails, read_details
from headrace.jobs.values.encoding import (
    decode_input,
    decode_nested,
    decode_payload,
    undecoded_form,
    undecoded_input,
)
from headrace.jobs.values.plain_values import decode_celery_types
from headrace.jobs.values.value_check import ValueCheck, summary
from headrace.observability import logs
from workers.model_process.batch_state import BatchState, SubBatch, rows_of
from workers.model_process.context import (
    TRACES,
    Input,
    ItemDetails,
    SpanOf,
    no_span,
    overlaps,
    set_items,
    traces_of,
)
from workers.model_process.outcomes import (
    Outcome,
    checked,
    device_lost,
    failure,
    out_of_memory,
    outcomes_of,
)
from workers.model_process.reports.pieces import ItemPieces, PieceSender, SendsPieces
from workers.model_process.reports.progress_reporter import BatchProgress, ProgressReporter
from workers.model_process.tensors import ModelTensors

clock = time.perf_counter
#: The outcome of an item that was dropped before its verbs. The worker knows of the cancellation.
CANCELLED: Final[Outcome] = failure(JobCancelled("the job was cancelled"))


@dataclass(slots=True)
class BatchExecutor:
    """Runs batches through a handler.

    Attributes:
        preprocess: the handler's own verb, or the pool that runs it in parts.
        reporter: takes the progress that the handler reports; None discards it.
        pieces: takes the pieces that a streaming handler yields; None discards them.
        span: returns the context manager that a verb runs in.
        input_check: the check by the model's `inputs`; an input that does not fit never reaches a
            verb. The API has checked most inputs; this check is for others, such as those in
            Celery's messages.
        output_check: the check by the model's `outputs`, if they are enforced.
        tensors: reads and writes the tensors that the model declares.
    """

    handler: Handler
    context: Context
    preprocess: Callable[[list[Input]], Any] = field(init=False)
    reporter: ProgressReporter | None = None
    pieces: PieceSender | None = None
    span: SpanOf = no_span
    input_check: ValueCheck | None = None
    output_check: ValueCheck | None = None
    tensors: ModelTensors | None = None

    _nested: bool = field(init=False)
    _raw: bool = field(init=False)
    _streams: bool = field(init=False)
    _sends_pieces: bool = field(init=False)

    def __post_init__(self) -> None:
        self.preprocess = self.own_preprocess
        self._nested = bool(getattr(self.handler, "accepts_nested_bytes", False))
        self._raw = bool(getattr(self.handler, "raw_inputs", False))
        self._streams = inspect.isgeneratorfunction(self.handler.inference)
        self._sends_pieces = isinstance(self.handler, SendsPieces)

    @property
    def yields(self) -> bool:
        """Whether the handler can send pieces of a result."""
        return self._streams or self._sends_pieces

    def report_progress_to(self, send: Callable[[int, list[list[Any]]], None]) -> None:
        """Pass the handler's progress on: `send` takes a batch's number and rows."""
        self.reporter = ProgressReporter(send, shared=not overlaps(self.handler))
        self.context.reports_to(self.reporter.report)

    def send_pieces_to(self, send: Callable[[list[Any]], None]) -> None:
        """Pass pieces of results on: `send` takes rows of `PieceSender`."""
        if self._streams or self._sends_pieces:
            self.pieces = PieceSender(send)

    def own_preprocess(self, inputs: list[Input]) -> Any:
        """Run the handler's `preprocess` in this thread."""
        self._set_current(inputs)
        if self.reporter is not None:
            self.reporter.narrow(inputs)
        return self.handler.preprocess([value for _, value, *_ in inputs])

    def run(
        self, items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Run a batch, one verb after the other. Its state then has an outcome for each item."""
        state = self.read(items, dropped, seq)
        if state.readable:
            self.attempt(state, list(state.readable))
        state.times.starved = state.times.preprocess
        return self.close(state)

    def read(
        self, items: Sequence[Sequence[Any]], dropped: set[int] | None = None, seq: int = 0
    ) -> BatchState:
        """Decode the inputs. An item that cannot be decoded, or has expired, gets its outcome.

        Args:
            items: as in the frame: (id, input JSON), or (id, bytes, content type) of a payload. A
                job that may expire also has its deadline, in seconds of the monotonic clock, which
                all processes of a machine share. The last part is the `InputDetails` as text.
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
                kind = more[0] if more else ""
                if self._nested or len(more) > 2:
                    details = more[2] if len(more) > 2 else b""
                    state.readable[place] = self.decode(job_id, raw, kind, details)
                else:
                    state.readable[place] = (job_id, *self._decoded(raw, kind), None)
            except InvalidRequest as error:
                state.outcomes[place] = failure(InputError(error.message))
        return state

    def _decoded(self, raw: bytes, content_type: str) -> tuple[Any, str]:
        value, kind = self._as_sent(raw, content_type)
        if self.tensors is not None and not self._raw:
            value = self.tensors.read(value, kind)
        return value, kind

    def _as_sent(self, raw: bytes, content_type: str) -> tuple[Any, str]:
        if self.input_check is not None:
            value, kind, mistakes = self.input_check.read(raw, content_type)
            if mistakes:
                raise InvalidRequest(f"the input does not fit the model: {summary(mistakes)}")
            if not self._raw:
                return value, kind
        if self._raw:
            return undecoded_input(raw, content_type)
        return decode_payload(raw, content_type) if content_type else decode_input(raw)

    def decode(
        self, job_id: str, raw: bytes, content_type: str = "", details: bytes = b""
    ) -> Input:
        """Return an input as the handler gets it, with what comes with it.

        Args:
            raw: the input's JSON text, or its bytes with a content type.
            content_type: see `raw`; "" for JSON text.
            details: see `headrace.jobs.options`; b"" for nothing.

        Raises:
            InvalidRequest: it cannot be decoded.
        """
        value, kind = self._decoded(raw, content_type)
        if not details and not self._nested:
            return job_id, value, kind, None
        given = read_details(details) if details else GivenDetails()
        types: dict[str, str] = {}
        if self._raw and given.nested:
            value, types = undecoded_form(raw) or (value, types)
        elif (self._nested or given.nested) and isinstance(value, (dict, list)):
            value, types = decode_nested(value)
        if given.typed and not self._raw:
            value = decode_celery_types(value)
        beside = ItemDetails(given.parameters, given.headers, given.metadata, types)
        return job_id, value, kind, beside

    def close(self, state: BatchState) -> BatchState:
        """Give an outcome to items that have none, and end the batch's progress reports."""
        if self.reporter is not None:
            self.reporter.close(state.progress)
        if self.pieces is not None:
            ids = [job_id for job_id, *_ in state.readable.values()]
            self.pieces.close(state.progress.seq, ids)
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

    def settle(self, state: BatchState, places: list[int], sub_batch: SubBatch) -> None:
        """Store the outcomes of items that went through all verbs together."""
        state.ran = max(state.ran, len(places))

        def raised(error: Exception) -> None:
            # A tensor on a device that an earlier kernel has lost may raise only here.
            state.device_lost = state.device_lost or device_lost(error)

        results = sub_batch.results
        if (tensors := self.tensors) is not None:
            given = (value for _, value, *_ in sub_batch.inputs)
            results = [tensors.written(*pair) for pair in zip(results, given, strict=True)]
        outcomes = outcomes_of(results, raised)
        if self.output_check is not None:
            outcomes = [checked(outcome, self.output_check) for outcome in outcomes]
        for place, outcome in zip(places, outcomes, strict=True):
            state.outcomes[place] = outcome

    def verbs(self, sub_batch: SubBatch) -> None:
        """Run all verbs in turn; raise what they raise."""
        self.prepare(sub_batch)
        self.infer(sub_batch)
        self.finish(sub_batch)

    def prepare(self, sub_batch: SubBatch) -> None:
        """Run `preprocess`."""
        inputs = sub_batch.inputs
        items = self._timed(sub_batch, "preprocess", self.preprocess, inputs, len(inputs))
        results = sub_batch.results = checked_list(items, len(inputs), "preprocess")
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
        self._set_current(sub_batch.good_inputs)
        call, items, good = self.handler.inference, sub_batch.items, sub_batch.good
        if self._streams:
            call = partial(self._stream, sub_batch)
        elif self._sends_pieces and self.pieces is not None:
            call = partial(self._with_pieces, sub_batch, self.pieces)
        outputs = self._timed(sub_batch, "inference", call, items, len(good), good)
        if inspect.isawaitable(outputs):
            raise HandlerError(f"inference returned a {type(outputs).__name__}; define it with def")
        sub_batch.outputs = outputs
        sub_batch.items = None

    def _stream(self, sub_batch: SubBatch, items: Any) -> Any:
        """Run a streaming `inference`; return the outputs of the items that are still good.

        The outputs are what the generator returns, or the pieces of each item, joined.
        """
        size = len(sub_batch.good) + sub_batch.padding
        stream = ItemPieces(sub_batch)
        if self.pieces is not None:
            self.pieces.begin(stream.seq, stream.ids)
        steps: Generator[Any, None, Any] = self.handler.inference(items)
        try:
            while len(sub_batch.gone()) < len(sub_batch.good):
                try:
                    step = next(steps)
                except StopIteration as end:
                    return stream.outputs(end.value)
                pieces = stream.add_step(checked_list(step, size, "a step of inference"))
                if self.pieces is not None:
                    self.pieces.add(pieces)
        finally:
            steps.close()
        self._drop(sub_batch, sub_batch.gone())
        return None

    def _with_pieces(self, sub_batch: SubBatch, sender: PieceSender, items: Any) -> Any:
        """Run an `inference` that sends the pieces of its results itself."""
        handler: Any = self.handler
        sender.begin(sub_batch.seq, [job_id for job_id, *_ in sub_batch.good_inputs])
        handler.send_pieces_to(partial(sender.send, sub_batch.seq))
        try:
            return handler.inference(items)
        finally:
            handler.send_pieces_to(None)

    def finish(self, sub_batch: SubBatch) -> None:
        """Run `postprocess`, unless every item is an error or dropped."""
        if len(gone := sub_batch.gone()) == len(sub_batch.good):
            self._drop(sub_batch, gone)
        if not sub_batch.good:
            return
        self._set_current(sub_batch.good_inputs)
        good = sub_batch.good
        size = len(good) + sub_batch.padding

        def call(outputs: Any) -> list[Any]:
            return checked_list(self.handler.postprocess(outputs), size, self._last_verb)

        final = self._timed(sub_batch, "postprocess", call, sub_batch.outputs, len(good), good)
        for n, result in zip(good, final[: len(good)], strict=True):
            sub_batch.results[n] = result

    def _timed(
        self,
        sub_batch: SubBatch,
        verb: str,
        call: Callable[[Any], Any],
        argument: Any,
        size: int,
        good: list[int] | None = None,
    ) -> Any:
        """Run a verb in its span, and add its time also if it raises."""
        reporter, times = self.reporter, sub_batch.times
        if reporter is not None:
            reporter.enter(sub_batch.progress, sub_batch.inputs, good, sub_batch.padding)
        started = clock()
        try:
            with self.span(verb, size):
                return call(argument)
        finally:
            setattr(times, verb, getattr(times, verb) + (clock() - started) * 1000)
            if reporter is not None:
                reporter.leave()

    @property
    def _last_verb(self) -> str:
        """The handler's own verb whose result `postprocess` returns."""
        inherited = getattr(self.handler.postprocess, "__func__", None) is Handler.postprocess
        return "inference" if inherited else "postprocess"

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
        count = len(sub_batch.good)
        allowed = self.context.allowed_batch_sizes if count else ()
        padding = next((size for size in allowed if size >= count), count) - count
        if padding:
            sub_batch.items = padded(sub_batch.items, count, padding)
        sub_batch.times.padding += padding - sub_batch.padding
        sub_batch.padding = padding

    def _set_current(self, inputs: list[Input]) -> None:
        ids = set_items(self.context, inputs)
        logs.RUNNING_JOBS.set(ids)
        if TRACES.get() is not None or self.context.traceparents:
            self.context.traceparents = traces_of(ids)


def free_memory() -> None:
    """Free cached memory, so that a smaller batch has room."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def checked_list(values: Any, length: int, verb: str) -> list[Any]:
    """Return what a verb returned as a list; raise HandlerError for others, or of other length."""
    try:
        listed = list(values) if _is_list(values) else None
    except TypeError:  # an array without dimensions
        listed = None
    if listed is None:
        raise HandlerError(
            f"{verb} returned {type(values).__name__}, not a list of {length}; "
            "return a list with one value for each input"
        )
    if len(listed) != length:
        raise HandlerError(f"{verb} returned {len(listed)} values for {length} inputs")
    return listed


def _is_list(values: Any) -> bool:
    """Return whether a value has a row for each item. Of a mapping or text, a loop gives no rows.

    The fields of a named tuple are no rows either.
    """
    kind = type(values)
    if issubclass(kind, tuple):
        return not hasattr(kind, "_fields") and not hasattr(kind, "n_fields")
    if issubclass(kind, Sequence):
        return not issubclass(kind, (str, bytes, bytearray, memoryview))
    return hasattr(kind, "shape") and hasattr(kind, "dtype")


def padded(items: Any, count: int, padding: int) -> Any:
    """Return `count` items, then `padding` copies of the last: its shape suits the model."""
    if hasattr(items, "shape"):  # tensors and arrays both take a list of rows
        return items[[*range(count), *[count - 1] * padding]]
    return [*items, *[items[-1]] * padding]
