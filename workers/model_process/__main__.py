"""The model process: owns the device and the handler, and answers the worker's frames.

`workers.replicas.replica` starts it as `python -m workers.model_process FD FD`, with an end of a
socketpair and a file for the stacks of its threads. `workers.protocol.frames` lists its phases. It
never runs longer than its worker. On Linux the kernel kills it when the thread that started it
ends. On any system EOF on the socket ends it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, Final

from headrace.generator import Generator
from headrace.handler import Context
from headrace.jobs.values.value_check import check_of
from headrace.observability import logs
from headrace.observability.tracing import Tracing, tracing
from workers.model_process.batch_state import (
    PREEMPTED,
    Inbox,
    ReceivedBatch,
    SubBatch,
    done_frame,
    leave,
)
from workers.model_process.context import ThreadContext, begin, overlaps
from workers.model_process.executor import BatchExecutor
from workers.model_process.generation.continuous import BATCHES_MAX, ContinuousExecutor
from workers.model_process.overlap import OverlappedExecutor
from workers.model_process.preprocess.choice import AUTO, Choice
from workers.model_process.preprocess.pool import LoadFailed, PreprocessProcess, install_pool
from workers.model_process.reports.profile import Profiler
from workers.model_process.startup import (
    context_of,
    die_with_parent,
    handler_of,
    initialize,
    pin_to_cores,
    warm_up,
    why_not_loaded,
)
from workers.model_process.tensors import tensors_of
from workers.model_process.variant import describe, install_variant
from workers.protocol.frames import (
    PARENT_VARIABLE,
    TO_MODEL,
    Drop,
    FrameSocket,
    FromModel,
    Init,
    ItemProgress,
    Loaded,
    Metrics,
    NotLoaded,
    Pieces,
    RunBatch,
    StartProfile,
    ToModel,
    Warming,
    YieldBatch,
    write_stacks_to,
)

logger = logging.getLogger("headrace.model")

Frames = FrameSocket[FromModel, ToModel]

#: How long a thread may keep the interpreter's lock that another waits for. With Python's 5 ms,
#: `preprocess` waits for an `inference` that holds the lock, once for each hand-over: up to 25 %
#: fewer images a second (`python -m benchmarks.models.device_wait --holds lock`).
SWITCH_S: Final = 0.0005


def main() -> None:
    """Load the handler that the first frame names, warm it up, then run batches until stopped."""
    die_with_parent(int(os.environ.get(PARENT_VARIABLE, "0").partition(":")[0]))
    sys.setswitchinterval(SWITCH_S)
    # Before any thread starts.
    not_pinned = pin_to_cores(os.environ)
    write_stacks_to(int(sys.argv[2]))
    # Ctrl-C signals the whole foreground group; the worker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = Frames(socket.socket(fileno=int(sys.argv[1])), TO_MODEL)
    frames.close_in_children()
    inbox: Inbox = queue.SimpleQueue()
    profiler = Profiler(frames.send)
    threading.Thread(target=_read, args=(frames, inbox, profiler), daemon=True).start()
    first = inbox.get()
    if not isinstance(first, Init):
        raise TypeError(f"the first frame is {type(first).__name__}, not Init")
    config = first.config
    shape, level, tag = config["logs"]
    fields = {"model": config["model"]}
    logs.configure(shape, level, "model", environ=os.environ, user_code=True, fields=fields)
    if not_pinned:
        logger.warning("%s", not_pinned)
    # Before the handler loads, as it may be instrumented itself.
    spans = tracing("model", os.environ, for_all=True)
    executor = _become_ready(config, frames, profiler, spans)
    if executor is None:
        return
    if isinstance(executor.handler, Generator):
        ContinuousExecutor(executor, executor.handler, inbox, frames.send, tag).run()
    elif overlaps(executor.handler):
        OverlappedExecutor(executor, inbox, frames.send, tag).run()
    else:
        _serve(frames, inbox, executor, tag)
    if spans is not None:
        spans.close()


def _become_ready(
    config: dict[str, Any], frames: Frames, profiler: Profiler, spans: Tracing | None
) -> BatchExecutor | None:
    """Load and warm up the handler, send `ready`, return its executor; or send `failed`: None."""
    started = time.monotonic()
    try:
        executor, processes, variant = _load(config, frames)
        frames.send(Warming())
        batches: list[SubBatch] = []
        fits = warm_up(executor, config["example_parameters"], batches)
        choice = Choice(executor, *_preprocess(config), spawn=partial(_spawn, config))
        preprocess = choice.make(batches)
        processes += choice.processes
    except LoadFailed as error:
        frames.send(NotLoaded(str(error)))
        return None
    except BaseException as error:  # noqa: BLE001 - any error is shown in /ready
        frames.send(NotLoaded(why_not_loaded(error)))
        return None
    load_s = time.monotonic() - started
    continuous = isinstance(executor.handler, Generator)
    # After the warm-up, as progress on the handler's example belongs to no job.
    executor.report_progress_to(lambda seq, rows: frames.send(ItemProgress(seq, rows)))
    executor.send_pieces_to(lambda rows: frames.send(Pieces(rows)))
    if spans is not None and not continuous:
        from workers.model_process.reports.spans import VerbSpans

        executor.span = VerbSpans(spans, config["model"])
    profiler.executor, profiler.processes = executor, processes
    if config["profile"]:
        profiler.every(config["profile"]["every"], config["profile"]["batches"])
    helpers = [process.process.pid for process in processes]
    overlap = overlaps(executor.handler) and not continuous
    yields = continuous or executor.yields
    frames.send(Loaded(load_s, fits, helpers, overlap, continuous, variant, preprocess, yields))
    return executor


def _serve(frames: Frames, inbox: Inbox, executor: BatchExecutor, tag: str) -> None:
    """Run batches in turn until `stop`, which the worker sends after its last batch."""
    while isinstance(received := inbox.get(), ReceivedBatch):
        batch, dropped = received
        begin(tag, batch.seq, batch.traces)
        state = executor.run(batch.rows, dropped, batch.seq)
        if state.device_lost:
            leave(frames.send, batch.seq, state, alone=True)
        frames.send(done_frame(batch.seq, state))


def _read(frames: Frames, inbox: Inbox, profiler: Profiler) -> None:
    """Pass frames on, and end the process when the worker is gone, whatever the handler does."""
    dropped: dict[int, set[int]] = {}
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            os._exit(0)
        for frame in received:
            match frame:
                case Drop():
                    dropped.get(frame.seq, set()).add(frame.place)
                case YieldBatch():
                    dropped.get(frame.seq, set()).add(PREEMPTED)
                case RunBatch():
                    inbox.put(ReceivedBatch(frame, dropped.setdefault(frame.seq, set())))
                    if len(dropped) > BATCHES_MAX:
                        del dropped[next(iter(dropped))]
                case StartProfile():
                    profiler.start(frame)
                case _:
                    inbox.put(frame)


def _load(
    config: dict[str, Any], frames: Frames
) -> tuple[BatchExecutor, list[PreprocessProcess], str]:
    """Return the handler's executor, its preprocess processes, and the variant in words."""
    # Before the handler may initialise CUDA. The processes load while the handler does.
    threads, count = (0 if number == AUTO else int(number) for number in _preprocess(config))
    processes = [_spawn(config) for _ in range(count)]
    handler = handler_of(config)
    if (send_metrics_to := getattr(handler, "send_metrics_to", None)) is not None:
        send_metrics_to(lambda rows: frames.send(Metrics(rows)))
    # Verbs that overlap work on several batches at once, one in each thread.
    context = context_of(config, ThreadContext if overlaps(handler) else Context)
    initialize(handler.initialize, context)
    executor = BatchExecutor(
        handler,
        context,
        input_check=check_of(config["input_check"]),
        output_check=check_of(config["output_check"]),
        tensors=tensors_of(config["declared_tensors"]),
    )
    variant = install_variant(executor, config)
    install_pool(executor, processes, threads)
    return executor, processes, "" if variant is None else describe(variant)


def _preprocess(config: dict[str, Any]) -> tuple[int | str, int | str]:
    return config["preprocess_threads"], config["preprocess_processes"]


def _spawn(config: dict[str, Any]) -> PreprocessProcess:
    return PreprocessProcess.spawn(config, int(sys.argv[2]))


if __name__ == "__main__":
    main()
