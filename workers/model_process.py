"""One model process, seen from inside: it owns the device and the handler, and answers frames.

Started by `workers.replica` as `python -m workers.model_process FD`, with one end of a socketpair.
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
from workers.runner import Runner

logger = logging.getLogger("headrace.model")

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Load the handler named in the first frame, then run batches until stopped."""
    _die_with_parent()
    # Ctrl-C reaches the whole foreground group; the worker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    inbox: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(frames, inbox), daemon=True).start()
    runner = _load(frames, inbox.get()[1])
    if runner is None:
        return
    while True:
        frame = inbox.get()
        if frame[0] == "stop":
            return
        _, seq, items = frame
        outcomes, times = runner.run(items)
        frames.send(["done", seq, outcomes, times.as_list(), times.padding])


def _read(frames: FrameSocket, inbox: queue.SimpleQueue[list[Any]]) -> None:
    """Pass frames on, and end the process when the worker is gone, whatever the handler does."""
    while True:
        try:
            received = frames.receive()
        except (EOFError, OSError):
            os._exit(0)
        for frame in received:
            inbox.put(frame)


def _load(frames: FrameSocket, config: dict[str, Any]) -> Runner | None:
    started = time.monotonic()
    context = Context(
        model_name=config["model"],
        version=config["version"],
        device=config["device"],
        model_dir=Path(config["model_dir"]),
        weights=Path(config["weights"]) if config["weights"] else None,
        options=config["options"],
        max_batch_size=config["max_batch_size"],
        allowed_batch_sizes=config["allowed_batch_sizes"],
    )
    try:
        loaded = load_handler(config["handler"], context.model_dir)
        handler: Handler = loaded() if isinstance(loaded, type) else loaded
        handler.initialize(context)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown in /ready
        frames.send(["failed", why_not_loaded(error)])
        return None
    seconds = time.monotonic() - started
    frames.send(["ready", {"pid": os.getpid(), "device": context.device, "load_s": seconds}])
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
    parent = int(os.environ.get("HEADRACE_MODEL_PARENT", "0"))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The worker may have died before the line above.
    if parent and os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
