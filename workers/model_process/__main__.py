"""One model process, seen from inside: it owns the device and the handler, and answers frames.

Started by `workers.replicas.replica` as `python -m workers.model_process FD FD`, with one end of a
socketpair and a file for the stacks of its threads. `workers.protocol.phases` lists
the phases of its life.
It never outlives its worker: the kernel kills it when the thread that started it dies (Linux), and
EOF on the socket ends it wherever that is seen.
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
from typing import Any, Final

from headrace.handler import Context
from headrace.observability import logs
from headrace.observability.tracing import tracing
from workers.model_process.context import ThreadContext, begin, overlaps
from workers.model_process.executor import BatchExecutor
from workers.model_process.overlap import YIELDED, Inbox, OverlappedExecutor, done_frame, leave
from workers.model_process.preprocess.pool import LoadFailed, PreprocessProcess, install
from workers.model_process.startup import context_of, die_with_parent, handler_of, why_not_loaded
from workers.model_process.warm_up import warm_up
from workers.protocol.frames import FrameSocket
from workers.protocol.phases import Phase, write_stacks_to
from workers.replicas.orphan_guard import MARK

logger = logging.getLogger("headrace.model")

#: More batches than the worker ever has in here at once.
BATCHES_MAX: Final = 8


def main() -> None:
    """Load the handler named in the first frame, warm it up, then run batches until stopped."""
    die_with_parent(int(os.environ.get(MARK, "0").partition(":")[0]))
    write_stacks_to(int(sys.argv[2]))
    # Ctrl-C reaches the whole foreground group; the worker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(frames, inbox), daemon=True).start()
    config = inbox.get()[1]
    shape, level, tag = config["logs"]
    told = {"model": config["model"]}
    logs.configure(shape, level, "model", environ=os.environ, theirs=True, fields=told)
    # Before the handler loads, which may be instrumented itself.
    spans = tracing("model", os.environ, for_all=True)
    started = time.monotonic()
    try:
        runner, helpers = _load(config)
        frames.send(["phase", Phase.WARMING])
        fits = warm_up(runner)
    except LoadFailed as error:
        frames.send(["failed", str(error)])
        return
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is shown in /ready
        frames.send(["failed", why_not_loaded(error)])
        return
    seconds = time.monotonic() - started
    device = runner.context.device
    overlap = overlaps(runner.handler)
    # From here on: of the handler's own example nobody wants to know.
    runner.tells(lambda seq, rows: frames.send(["progress", seq, rows]))
    ready = {
        "pid": os.getpid(), "device": device, "load_s": seconds, "fits": fits, "helpers": helpers,
        "overlap": overlap,
    }  # fmt: skip
    frames.send(["ready", ready])
    if spans is not None:
        from workers.model_process.spans import VerbSpans

        runner.span = VerbSpans(spans, config["model"])
    if overlap:
        OverlappedExecutor(runner, inbox, frames.send, tag).run()
    else:
        _serve(frames, inbox, runner, tag)
    if spans is not None:
        spans.close()


def _serve(frames: FrameSocket, inbox: Inbox, runner: BatchExecutor, tag: str) -> None:
    """Run batches in turn until told to stop, by when the worker has handed over its last."""
    while True:
        frame = inbox.get()
        if frame[0] == "stop":
            return
        _, seq, items, *traces, dropped = frame
        begin(tag, seq, traces)
        work = runner.run(items, dropped, seq)
        if work.device_lost:
            leave(frames.send, seq, work, alone=True)
        frames.send(done_frame(seq, work))


def _read(frames: FrameSocket, inbox: Inbox) -> None:
    """Pass frames on, and end the process when the worker is gone, whatever the handler does.

    With a batch goes a set that the places of its items are put into which are dropped meanwhile,
    and YIELDED where all of it is to be given back.
    """
    dropped: dict[int, set[int]] = {}
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            os._exit(0)
        for frame in received:
            if frame[0] == "drop":
                _, seq, places = frame
                dropped.get(seq, set()).update(places)
                continue
            if frame[0] == "yield":
                dropped.get(frame[1], set()).add(YIELDED)
                continue
            if frame[0] == "batch":
                frame.append(dropped.setdefault(frame[1], set()))
                if len(dropped) > BATCHES_MAX:
                    del dropped[next(iter(dropped))]
            inbox.put(frame)


def _load(config: dict[str, Any]) -> tuple[BatchExecutor, list[int]]:
    """The handler, ready to run, and the pids of its preprocess processes."""
    # Before the handler may initialise CUDA; they load while it does.
    count = config["preprocess_processes"]
    processes = [PreprocessProcess.spawn(config, int(sys.argv[2])) for _ in range(count)]
    handler = handler_of(config)
    # Several batches are at hand in a handler whose verbs overlap, one in each thread.
    context = context_of(config, ThreadContext if overlaps(handler) else Context)
    handler.initialize(context)
    runner = BatchExecutor(handler, context)
    install(runner, processes, config["preprocess_threads"])
    return runner, [process.process.pid for process in processes]


if __name__ == "__main__":
    main()
