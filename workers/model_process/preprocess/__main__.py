"""One preprocess process, seen from inside: it runs the handler's `preprocess` and nothing else.

Started by `workers.model_process.preprocess.pool` as `python -m workers.model_process.preprocess FD
FD FD PARENT`, with a socket for frames, one for the files of shared memory, and the file for its
threads' stacks. It never sees a GPU. It is in the process group of its model process, and the
kernel kills it when that one is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

from headrace.errors import ConfigError
from headrace.handler import Context, Handler
from headrace.observability import logs
from workers.model_process.batch_state import Input
from workers.model_process.context import TRACES, Traces
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import failure
from workers.model_process.preprocess.shared_memory import Packer, SharedBuffer
from workers.model_process.progress import BatchProgress
from workers.model_process.startup import context_of, die_with_parent, handler_of, why_not_loaded
from workers.protocol.frames import FrameSocket
from workers.protocol.phases import write_stacks_to


def main() -> None:
    """Initialise the handler for `preprocess`, then serve until EOF."""
    die_with_parent(int(sys.argv[4]))
    write_stacks_to(int(sys.argv[3]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    files = socket.socket(fileno=int(sys.argv[2]))
    received: list[list[Any]] = []
    while not received:
        received = frames.receive()
    config = received[0][1]
    shape, level, _ = config["logs"]
    told = {"model": config["model"]}
    logs.configure(shape, level, "preprocess", environ=os.environ, theirs=True, fields=told)
    try:
        runner = _load(config, frames)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is shown in /ready
        frames.send(["failed", why_not_loaded(error)])
        return
    frames.send(["ready"])
    slabs: list[SharedBuffer] = []
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            return
        for _, number, rows, concern, traces in received:
            logs.CONCERN.set(concern)
            TRACES.set(Traces(*traces) if traces else None)
            frames.send(_serve(files, slabs, number, runner, rows))


def _load(config: dict[str, Any], frames: FrameSocket) -> BatchExecutor:
    context: Context = context_of({**config, "device": "cpu"}, Context)
    handler = handler_of(config)
    initialize = getattr(handler, "initialize_preprocess", None)
    own = getattr(type(handler), "initialize_preprocess", None) is not Handler.initialize_preprocess
    plain = getattr(type(handler), "initialize", None) is Handler.initialize
    if initialize is None or not (own or plain):
        raise ConfigError(
            f"model {context.model_name}: preprocess_processes is set, and its handler has an "
            "`initialize` of its own, but no `initialize_preprocess`",
            hint="write initialize_preprocess(context): what preprocess needs, without the model",
        )
    initialize(context)
    runner = BatchExecutor(handler, context)
    runner.tells(lambda _, rows: frames.send(["progress", rows]))
    return runner


def _serve(
    files: socket.socket,
    slabs: list[SharedBuffer],
    number: int,
    runner: BatchExecutor,
    rows: list[list[Any]],
) -> list[Any]:
    """Run `preprocess`, and put its arrays into the slab of that number; the answer."""
    inputs: list[Input] = [(job_id, value, kind) for job_id, value, kind in rows]
    packer = Packer()
    try:
        packed = packer.pack(_prepared(runner, inputs))
        if number == len(slabs):
            slabs.append(SharedBuffer.new())
            # It is there before the frame that speaks of it.
            socket.send_fds(files, [b"\0"], [slabs[number].fd])
        slabs[number].fill(packer.arrays, packer.size)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
        return ["raised", failure(error), len(slabs)]
    return ["prepared", packer.size, packed]


def _prepared(runner: BatchExecutor, inputs: list[Input]) -> Any:
    teller, news = runner.teller, BatchProgress()
    if teller is None:
        return runner.own_preprocess(inputs)
    teller.enter(news, inputs)
    try:
        return runner.own_preprocess(inputs)
    finally:
        teller.leave()
        teller.close(news)


if __name__ == "__main__":
    main()
