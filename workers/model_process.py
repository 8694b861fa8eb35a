"""One model process, seen from inside: it owns the device and the handler, and answers frames.

Started by `workers.replica` as `python -m workers.model_process FD FD`, with one end of a
socketpair and a file for the stacks of its threads. `workers.life` lists the phases of its life.
It never outlives its worker: the kernel kills it when the thread that started it dies (Linux), and
EOF on the socket ends it wherever that is seen.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from handlers import loading
from handlers.loading import load_handler
from headrace.errors import ConfigError
from headrace.handler import Context, Handler
from workers.frames import FrameSocket
from workers.guard import MARK
from workers.life import Phase, write_stacks_to
from workers.runner import Runner, Work
from workers.warm_up import warm_up

logger = logging.getLogger("headrace.model")

PR_SET_PDEATHSIG: Final = 1

Inbox = queue.SimpleQueue[list[Any]]


def main() -> None:
    """Load the handler named in the first frame, warm it up, then run batches until stopped."""
    _die_with_parent()
    write_stacks_to(int(sys.argv[2]))
    # Ctrl-C reaches the whole foreground group; the worker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(frames, inbox), daemon=True).start()
    config = inbox.get()[1]
    started = time.monotonic()
    try:
        runner = _load(config)
        frames.send(["phase", Phase.WARMING])
        fits = warm_up(runner)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown in /ready
        frames.send(["failed", why_not_loaded(error)])
        return
    seconds = time.monotonic() - started
    device = runner.context.device
    ready = {"pid": os.getpid(), "device": device, "load_s": seconds, "fits": fits, "helpers": []}
    frames.send(["ready", ready])
    _serve(frames, inbox, runner)


def _serve(frames: FrameSocket, inbox: Inbox, runner: Runner) -> None:
    """Run batches in turn until told to stop, by when the worker has handed over its last."""
    while True:
        frame = inbox.get()
        if frame[0] == "stop":
            return
        _, seq, items = frame
        work = runner.run(items)
        frames.send(done_frame(seq, work))


def done_frame(seq: int, work: Work) -> list[Any]:
    """What the worker is told of a batch that has ended."""
    return ["done", seq, work.outcomes, work.times.as_list(), work.times.padding, work.fits]


def _read(frames: FrameSocket, inbox: Inbox) -> None:
    """Pass frames on, and end the process when the worker is gone, whatever the handler does."""
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            os._exit(0)
        for frame in received:
            inbox.put(frame)


def _load(config: dict[str, Any]) -> Runner:
    context = Context(
        model_name=config["model"],
        version=config["version"],
        device=config["device"],
        model_dir=Path(config["model_dir"]),
        weights=Path(config["weights"]) if config["weights"] else None,
        options=config["options"],
        channels_last=config["channels_last"],
        max_batch_size=config["max_batch_size"],
        allowed_batch_sizes=config["allowed_batch_sizes"],
    )
    loaded = load_handler(config["handler"], context.model_dir)
    handler: Handler = loaded() if isinstance(loaded, type) else loaded
    handler.initialize(context)
    return Runner(handler, context)


def why_not_loaded(error: Exception) -> str:
    """A failed load in words for the handler's author.

    The frames are those of the author's own code: how Headrace and the import machinery came there
    is of no help. An error of ours ends with its message and what to do.
    """
    own = (error.__cause__ if isinstance(error, ConfigError) else None) or error
    frames = _their_frames(own.__traceback__)
    lines: list[str] = []
    if frames is not None or own is not error:
        lines.append("".join(traceback.format_exception(own.with_traceback(frames))))
    if isinstance(error, ConfigError):
        lines.append("; ".join(filter(None, (error.message, error.hint))) + "\n")
    return "\n".join(lines)


def _their_frames(frames: TracebackType | None) -> TracebackType | None:
    ours = str(Path(__file__).parent), str(Path(loading.__file__)), "<frozen importlib"
    importlib_folder = str(Path(importlib.__file__).parent)
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith((*ours, importlib_folder)):
            return frames
        frames = frames.tb_next
    return None


def _die_with_parent() -> None:
    parent = int(os.environ.get(MARK, "0").partition(":")[0])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The worker may have died before the line above.
    if parent and os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
