"""A preprocess process: runs the handler's `preprocess` and nothing else.

`workers.model_process.preprocess.pool` starts it as `python -m workers.model_process.preprocess FD
FD FD PARENT`. The three FD are a socket for frames, a socket for the files of shared memory, and
the file for its threads' stacks. No GPU is visible to it. It is in the process group of its model
process, and the kernel kills it when the model process ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.handler import Context
from headrace.observability import logs
from workers.model_process.context import TRACES, Input, ItemDetails
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import failure
from workers.model_process.preprocess.pool import why_not_in_process
from workers.model_process.preprocess.shared_memory import Packer, SharedBuffer
from workers.model_process.reports.progress_reporter import BatchProgress
from workers.model_process.reports.stacks import sample_to
from workers.model_process.startup import (
    context_of,
    die_with_parent,
    handler_of,
    initialize,
    why_not_loaded,
)
from workers.protocol.frames import (
    TO_PREPROCESS,
    FrameSocket,
    FromPreprocess,
    Init,
    ItemProgress,
    NotLoaded,
    Prepared,
    PrepareInputs,
    Raised,
    Ready,
    SampleStacks,
    ToPreprocess,
    write_stacks_to,
)

Frames = FrameSocket[FromPreprocess, ToPreprocess]


def main() -> None:
    """Initialise the handler for `preprocess`, then serve until EOF."""
    die_with_parent(int(sys.argv[4]))
    write_stacks_to(int(sys.argv[3]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = Frames(socket.socket(fileno=int(sys.argv[1])), TO_PREPROCESS)
    frames.close_in_children()
    files = socket.socket(fileno=int(sys.argv[2]))
    received: list[ToPreprocess] = []
    while not received:
        received = frames.receive()
    first = received[0]
    if not isinstance(first, Init):
        raise TypeError(f"the first frame is {type(first).__name__}, not Init")
    config = first.config
    shape, level, _ = config["logs"]
    fields = {"model": config["model"]}
    logs.configure(shape, level, "preprocess", environ=os.environ, user_code=True, fields=fields)
    try:
        executor = _load(config, frames)
    except BaseException as error:  # noqa: BLE001 - any error is shown in /ready
        frames.send(NotLoaded(why_not_loaded(error)))
        return
    frames.send(Ready())
    buffers: list[SharedBuffer] = []
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            return
        for frame in received:
            match frame:
                case SampleStacks():
                    sample_to(Path(frame.path), frame.seconds)
                case PrepareInputs():
                    logs.LINE_FIELDS.set(frame.line_fields)
                    TRACES.set(frame.traces)
                    frames.send(_serve(files, buffers, frame, executor))


def _load(config: dict[str, Any], frames: Frames) -> BatchExecutor:
    context: Context = context_of({**config, "device": "cpu"}, Context)
    handler = handler_of(config)
    if why := why_not_in_process(handler):
        raise ConfigError(
            f"model {context.model_name}: preprocess_processes is set, but {why}",
            hint="define initialize_preprocess(context): set up what preprocess needs, without "
            "loading the model",
        )
    initialize(handler.initialize_preprocess, context)
    executor = BatchExecutor(handler, context)
    executor.report_progress_to(lambda seq, rows: frames.send(ItemProgress(seq, rows)))
    return executor


def _serve(
    files: socket.socket, buffers: list[SharedBuffer], frame: PrepareInputs, executor: BatchExecutor
) -> Prepared | Raised:
    """Run `preprocess`, copy its arrays into the frame's buffer, and return the answer's frame."""
    number = frame.buffer
    inputs: list[Input] = [
        (job_id, value, kind, None if beside is None else ItemDetails(*beside))
        for job_id, value, kind, beside in frame.inputs
    ]
    packer = Packer()
    try:
        packed = packer.pack(_prepared(executor, inputs))
        if number == len(buffers):
            buffers.append(SharedBuffer.new())
            # The descriptor is sent before the frame that refers to it.
            socket.send_fds(files, [b"\0"], [buffers[number].fd])
        buffers[number].fill(packer.arrays, packer.size)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
        return Raised(failure(error), len(buffers))
    return Prepared(packer.size, packed)


def _prepared(executor: BatchExecutor, inputs: list[Input]) -> Any:
    reporter, progress = executor.reporter, BatchProgress()
    if reporter is None:
        return executor.own_preprocess(inputs)
    reporter.enter(progress, inputs)
    try:
        return executor.own_preprocess(inputs)
    finally:
        reporter.leave()
        reporter.close(progress)


if __name__ == "__main__":
    main()
