"""The verbs of several batches at once, each in a thread of its own. Runs in the model process.

While one batch is on the device the next is preprocessed and the last is postprocessed and sent.
That is for handlers that say `overlap = True`: a verb is then called while another one runs, but
never twice at the same time, and always in the same thread. `inference` has the main thread: the
allocator of glibc keeps what is large mapped for that one alone.

A batch that raises is split in the main thread, strictly in turn.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from workers.model_process.batch_state import BatchState, SubBatch
from workers.model_process.context import begin
from workers.model_process.executor import BatchExecutor, clock
from workers.threads import SOFTWARE_ERROR_STATUS

logger = logging.getLogger("headrace.model")

Send = Callable[[list[Any]], None]
#: Stands among the places of a batch that are dropped where another model is to have the device
#: first: the batch is given back if its `inference` has not begun.
YIELDED: Final = -1
Inbox = queue.SimpleQueue[list[Any]]


@dataclass(slots=True)
class InFlightBatch:
    """One batch on its way.

    Attributes:
        group: all of its readable items; None once they no longer go together.
        split: they raised together, and are to be run in halves.
        arrived_at: when its preprocessing began.
        begun: its inference has begun.
        traces: as of `thread_context.begin`.
    """

    seq: int
    work: BatchState
    group: SubBatch | None = None
    split: bool = False
    arrived_at: float = field(default_factory=clock)
    begun: bool = False
    traces: list[Any] = field(default_factory=list)

    @property
    def yields(self) -> bool:
        """Whether it is to be given back: it may run later, and is asked for in time."""
        return not self.begun and not self.split and YIELDED in self.work.dropped

    @property
    def places(self) -> list[int]:
        """The items that can run."""
        return list(self.work.readable)

    def raised(self, error: BaseException) -> None:
        """A verb raised on all of them."""
        BatchExecutor.raised(self.work, self.places, error)
        self.group, self.split = None, True


class OverlappedExecutor:
    """Takes batches from an inbox and sends what became of them, until told to stop.

    Args:
        runner: the handler and its verbs.
        inbox: frames from the worker.
        send: sends a frame to it; called by one thread at a time.
        tag: how the names of its batches begin.
    """

    def __init__(self, runner: BatchExecutor, inbox: Inbox, send: Send, tag: str = "") -> None:
        self._tag = tag
        self._runner = runner
        self._inbox = inbox
        self._send = send
        self._lock = threading.Lock()
        self._inside = 0
        self._prepared: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()
        self._inferred: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until `stop`, by when the worker has nothing in here any more."""
        threads = [
            threading.Thread(target=_whole, args=(body,), name=name, daemon=True)
            for body, name in ((self._prepare, "preprocess"), (self._finish, "postprocess"))
        ]
        for thread in threads:
            thread.start()
        _whole(self._infer)
        for thread in threads:
            thread.join()

    def _prepare(self) -> None:
        while (frame := self._inbox.get())[0] != "stop":
            _, seq, items, *traces, dropped = frame
            with self._lock:
                self._inside += 1
                if self._inside > 1:
                    # The worker may take it back uncharged for as long as this is not said.
                    self._send(["began", seq])
            begin(self._tag, seq, traces)
            passage = InFlightBatch(seq, self._runner.read(items, dropped, seq), traces=traces)
            if passage.work.readable and not passage.yields:
                passage.group = passage.work.group(passage.places)
                try:
                    self._runner.prepare(passage.group)
                except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
                    passage.raised(error)
            self._prepared.put(passage)
        self._prepared.put(None)

    def _infer(self) -> None:
        while True:
            idle_since = clock()
            passage = self._prepared.get()
            if passage is None:
                self._inferred.put(None)
                return
            if passage.yields:
                with self._lock:
                    self._inside -= 1
                    self._send(["yielded", passage.seq])
                continue
            begin(self._tag, passage.seq, passage.traces)
            passage.begun = True
            if not passage.split:
                waited_s = clock() - max(idle_since, passage.arrived_at)
                passage.work.times.starved += max(0.0, waited_s * 1000)
            self._on_device(passage)
            self._inferred.put(passage)

    def _on_device(self, passage: InFlightBatch) -> None:
        if passage.group is not None:
            try:
                self._runner.infer(passage.group)
            except BaseException as error:  # noqa: BLE001 - as above
                passage.raised(error)
        if passage.split:
            self._runner.split(passage.work, passage.places)

    def _finish(self) -> None:
        while (passage := self._inferred.get()) is not None:
            begin(self._tag, passage.seq, passage.traces)
            if passage.group is not None:
                try:
                    self._runner.finish(passage.group)
                except BaseException as error:  # noqa: BLE001 - as above
                    passage.raised(error)
                    # Back to the thread that owns the device.
                    self._prepared.put(passage)
                    continue
                self._runner.settle(passage.work, passage.places, passage.group)
            work = self._runner.close(passage.work)
            with self._lock:
                if work.device_lost:
                    # Kernels run behind the verbs' backs: it may have been the other batch's.
                    leave(self._send, passage.seq, work, alone=self._inside == 1)
                self._inside -= 1
                self._send(done_frame(passage.seq, work))


def done_frame(seq: int, work: BatchState) -> list[Any]:
    """What the worker is told of a batch that has ended."""
    told = work.outcomes, work.times.as_list(), work.times.padding, work.fits, work.device_lost
    return ["done", seq, *told]


def leave(send: Send, seq: int, work: BatchState, *, alone: bool) -> NoReturn:
    """End the process, whose device was lost with a batch.

    Args:
        send: sends a frame to the worker.
        seq: the batch's number.
        work: the batch.
        alone: nothing else was in here. If it has one item too, then that is the one to blame, and
            it ends with its error; of all others the worker lets each run alone next.
    """
    logger.critical("the device was lost with a batch of %d; the process ends", len(work.outcomes))
    if alone and len(work.readable) == 1:
        with contextlib.suppress(OSError):  # the worker is gone
            send(done_frame(seq, work))
    os._exit(SOFTWARE_ERROR_STATUS)


def _whole(body: Callable[[], None]) -> None:
    """Run a thread's body; without it the process could only hang, so it ends with it."""
    try:
        body()
    except BaseException:
        logger.critical("a thread of the model process ended by an error", exc_info=True)
        os._exit(SOFTWARE_ERROR_STATUS)
