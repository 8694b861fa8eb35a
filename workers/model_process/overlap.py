"""Runs the verbs of several batches at once, each verb in its own thread, in the model process.

While a batch is on the device, the next is preprocessed and the previous is postprocessed and
sent. A handler allows it by `overlap = True`. A verb may then run while another verb runs, but
never twice at the same time, and always in the same thread. `inference` runs in the main thread,
because glibc's allocator keeps large blocks mapped for that thread only.

A batch that raises is split in the main thread, one verb after the other.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Final

from workers.model_process.batch_state import (
    PREEMPTED,
    BatchState,
    Inbox,
    ReceivedBatch,
    Send,
    SubBatch,
    done_frame,
    leave,
)
from workers.model_process.context import begin
from workers.model_process.executor import BatchExecutor, clock
from workers.protocol.frames import Began, Traces, Yielded
from workers.threads import run_critical

_WHAT: Final = "the model process'"


@dataclass(slots=True)
class InFlightBatch:
    """One batch between its verbs.

    Attributes:
        sub_batch: all of its readable items; None once they no longer run together.
        split: the items raised together and must run in halves.
        arrived_at: when its preprocessing began.
        begun: its inference has begun.
        traces: as for `context.begin`.
    """

    seq: int
    state: BatchState
    sub_batch: SubBatch | None = None
    split: bool = False
    arrived_at: float = field(default_factory=clock)
    begun: bool = False
    traces: Traces | None = None

    @property
    def yields(self) -> bool:
        """Whether to return it to the worker: the request came before its inference."""
        return not self.begun and not self.split and PREEMPTED in self.state.dropped

    @property
    def places(self) -> list[int]:
        """The places of the items that can run."""
        return list(self.state.readable)

    def raised(self, error: BaseException) -> None:
        """Record that a verb raised on all of its items."""
        BatchExecutor.raised(self.state, self.places, error)
        self.sub_batch, self.split = None, True


class OverlappedExecutor:
    """Takes batches from an inbox and sends their outcomes, until a `stop` frame.

    `send` is called by one thread at a time; `tag` is the prefix of the batch names.
    """

    def __init__(self, executor: BatchExecutor, inbox: Inbox, send: Send, tag: str = "") -> None:
        self._tag = tag
        self._executor = executor
        self._inbox = inbox
        self._send = send
        self._lock = threading.Lock()
        self._inside = 0
        self._prepared: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()
        self._inferred: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until `stop`, which the worker sends after its last batch has ended."""
        threads = [
            threading.Thread(target=run_critical, args=(body, _WHAT), name=name, daemon=True)
            for body, name in ((self._prepare, "preprocess"), (self._finish, "postprocess"))
        ]
        for thread in threads:
            thread.start()
        run_critical(self._infer, _WHAT)
        for thread in threads:
            thread.join()

    def _prepare(self) -> None:
        while isinstance(received := self._inbox.get(), ReceivedBatch):
            frame, dropped = received
            seq, traces = frame.seq, frame.traces
            with self._lock:
                self._inside += 1
                if self._inside > 1:
                    # Until this frame the worker may take the batch back without charging it.
                    self._send(Began(seq))
            begin(self._tag, seq, traces)
            batch = InFlightBatch(seq, self._executor.read(frame.rows, dropped, seq), traces=traces)
            if batch.state.readable and not batch.yields:
                batch.sub_batch = batch.state.sub_batch(batch.places)
                try:
                    self._executor.prepare(batch.sub_batch)
                except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
                    batch.raised(error)
            self._prepared.put(batch)
        self._prepared.put(None)

    def _infer(self) -> None:
        while True:
            idle_since = clock()
            batch = self._prepared.get()
            if batch is None:
                self._inferred.put(None)
                return
            if batch.yields:
                with self._lock:
                    self._inside -= 1
                    self._send(Yielded(batch.seq))
                continue
            begin(self._tag, batch.seq, batch.traces)
            batch.begun = True
            if not batch.split:
                waited_s = clock() - max(idle_since, batch.arrived_at)
                batch.state.times.starved += max(0.0, waited_s * 1000)
            self._run_on_device(batch)
            self._inferred.put(batch)

    def _run_on_device(self, batch: InFlightBatch) -> None:
        if batch.sub_batch is not None:
            try:
                self._executor.infer(batch.sub_batch)
            except BaseException as error:  # noqa: BLE001 - as above
                batch.raised(error)
        if batch.split:
            self._executor.split(batch.state, batch.places)

    def _finish(self) -> None:
        while (batch := self._inferred.get()) is not None:
            begin(self._tag, batch.seq, batch.traces)
            if batch.sub_batch is not None:
                try:
                    self._executor.finish(batch.sub_batch)
                except BaseException as error:  # noqa: BLE001 - as above
                    batch.raised(error)
                    # The thread that owns the device splits it.
                    self._prepared.put(batch)
                    continue
                self._executor.settle(batch.state, batch.places, batch.sub_batch)
            state = self._executor.close(batch.state)
            with self._lock:
                if state.device_lost:
                    # Kernels are asynchronous: another batch's kernel may have caused it.
                    leave(self._send, batch.seq, state, alone=self._inside == 1)
                self._inside -= 1
                self._send(done_frame(batch.seq, state))
