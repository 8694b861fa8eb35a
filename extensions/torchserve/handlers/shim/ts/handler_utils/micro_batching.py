"""Runs a batch in small parts, so that the steps of a handler work at the same time."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final

#: The steps, in order.
HANDLER_METHODS: Final = ("preprocess", "inference", "postprocess")


@dataclass
class WorkerThread:
    """A thread of a step, whose event is set when it ends."""

    event: threading.Event
    thread: threading.Thread


class MicroBatching:
    """Takes the place of a handler's `handle`: `self.handle = MicroBatching(self)`.

    The steps of the handler run in threads of their own. An exception of a step is raised in
    `handle`, when all parts of the batch have ended.

    Args:
        micro_batch_size: how many requests go through the steps together.
        parallelism: the threads of each step; 1 where it has none.
    """

    def __init__(
        self,
        parent_handler: Any,
        micro_batch_size: int = 1,
        parallelism: dict[str, int] | None = None,
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self.thread_groups: dict[str, list[WorkerThread]] = {step: [] for step in HANDLER_METHODS}
        self._parallelism = dict(parallelism or {})
        self._place = threading.local()
        self._ended: queue.SimpleQueue[WorkerThread] = queue.SimpleQueue()
        #: Before each step: the number of a part, the part, and the future of its results.
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in HANDLER_METHODS]
        self._update_threads()

    @property
    def parallelism(self) -> dict[str, int]:
        """The threads of each step; setting it starts or ends threads."""
        return dict(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: dict[str, int]) -> None:
        unknown = parallelism.keys() - set(HANDLER_METHODS)
        if unknown or any(count < 1 for count in parallelism.values()):
            raise ValueError(
                f"parallelism: expected numbers from 1 for {', '.join(HANDLER_METHODS)}, "
                f"got {parallelism}"
            )
        self._parallelism.update(parallelism)
        self._update_threads()

    def shutdown(self) -> None:
        """End all threads, and wait for them."""
        for step in HANDLER_METHODS:
            self._end(step, len(self.thread_groups[step]))

    def get_micro_batch_idx(self) -> int:
        """Return the number of the part on which this thread works."""
        return int(getattr(self._place, "number", 0))

    def _update_threads(self) -> None:
        for step in HANDLER_METHODS:
            group, wanted = self.thread_groups[step], self._parallelism.get(step, 1)
            while len(group) < wanted:
                self._start(step)
            self._end(step, len(group) - wanted)

    def _start(self, step: str) -> None:
        event = threading.Event()
        one = WorkerThread(
            event, threading.Thread(target=lambda: self._work(step, one), daemon=True)
        )
        self.thread_groups[step].append(one)
        one.thread.start()

    def _end(self, step: str, count: int) -> None:
        """End so many threads of a step; each takes one of the signals, whichever is free."""
        for _ in range(count):
            self._queues[HANDLER_METHODS.index(step)].put(None)
        for _ in range(count):
            one = self._ended.get()
            one.thread.join()
            self.thread_groups[step].remove(one)

    def _work(self, step: str, own: WorkerThread) -> None:
        place = HANDLER_METHODS.index(step)
        own_queue, *following = self._queues[place:]
        while (work := own_queue.get()) is not None:
            number, value, result = work
            self._place.number = number
            try:
                value = getattr(self.handler, step)(value)
            except BaseException as error:  # noqa: BLE001 - raised again by `handle`
                result.set_exception(error)
                continue
            if following:
                following[0].put((number, value, result))
            else:
                result.set_result(value)
        own.event.set()
        self._ended.put(own)

    def handle(self, data: list[Any]) -> list[Any]:
        """Run a batch through the steps, and return the results in order."""
        size = max(1, self.micro_batch_size)
        results: list[Future[list[Any]]] = []
        for number, begin in enumerate(range(0, len(data), size)):
            results.append(Future())
            self._queues[0].put((number, data[begin : begin + size], results[-1]))
        wait(results)
        return [one for result in results for one in result.result()]

    def __call__(self, data: Any, context: Any) -> Any:
        """Run a batch, as `BaseHandler.handle` does."""
        started = time.perf_counter()
        handler = self.handler
        handler.context = context
        if os.environ.get("ENABLE_TORCH_PROFILER", ""):
            output, _ = handler._infer_with_profiler(data=data)
        elif handler._is_describe():
            output = [handler.describe_handle()]
        elif handler._is_explain():
            output = handler.explain_handle(handler.preprocess(data), data)
        else:
            output = self.handle(data)
        with contextlib.suppress(AttributeError):  # a context of tests has no metrics
            took_ms = round((time.perf_counter() - started) * 1000, 2)
            context.metrics.add_time("HandlerTime", took_ms, None, "ms")
        return output
