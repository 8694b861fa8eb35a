"""One model process seen from its worker: start it, hand it a batch, see it end, kill it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from workers.frames import FrameSocket

if TYPE_CHECKING:
    from workers.items import Batch

logger = logging.getLogger(__name__)

RESTART_MIN_S: Final = 0.5
RESTART_MAX_S: Final = 60.0
#: A process that served this long starts again without delay.
STABLE_S: Final = 30.0
STOP_S: Final = 5.0
#: How long a process may leave a frame unread, in whole seconds.
SEND_S: Final = 2


class ReplicaState(StrEnum):
    """Where a model process stands in its life."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(slots=True)
class Replica:
    """One model process of one model.

    Args:
        init: the first frame: what the process needs to load the handler.
        environ: its environment.
    """

    init: dict[str, Any]
    environ: dict[str, str]
    state: ReplicaState = ReplicaState.RESTARTING
    error: str = ""
    since: float = field(default_factory=time.time)
    frames: FrameSocket | None = None
    process: subprocess.Popen[bytes] | None = None
    batch: Batch | None = None
    restart_at: float = 0.0
    _failures: int = 0
    _started_at: float = 0.0

    @property
    def idle(self) -> bool:
        """Ready and without a batch."""
        return self.state is ReplicaState.READY and self.batch is None

    def start(self, now: float) -> FrameSocket:
        """Spawn the process, from a thread that lives as long as the worker.

        The kernel kills the process when the thread that started it ends.
        """
        ours, theirs = socket.socketpair()
        # A process that reads nothing (stopped, say) must not stop the worker with it; the
        # batch's timeout then ends the process.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.model_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**self.environ, "HEADRACE_MODEL_PARENT": str(os.getpid())},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.frames = FrameSocket(ours)
        self._set(ReplicaState.LOADING)
        self._started_at = now
        with contextlib.suppress(OSError):  # died at once: EOF on the socket tells
            self.frames.send(["init", self.init])
        return self.frames

    def run(self, batch: Batch) -> None:
        """Hand over a batch; a process that is gone is seen as EOF, with the batch on its name."""
        self.batch = batch
        if self.frames is None:
            raise RuntimeError("a batch was given to a model process that was not started")
        with contextlib.suppress(OSError):
            self.frames.send(["batch", batch.seq, [(item.id, item.input) for item in batch.items]])

    def ready(self) -> None:
        """The process said that its handler is loaded."""
        self._set(ReplicaState.READY)
        self.error = ""

    def load_failed(self, traceback: str) -> None:
        """The process said that its handler cannot be loaded; it ends by itself."""
        self.error = traceback

    def ended(self, now: float) -> None:
        """The process is gone: clean up, and say when to start it again (`restart_at`)."""
        self.kill()
        if now - self._started_at > STABLE_S and self.state is ReplicaState.READY:
            self._failures = 0
        delay = 0.0 if not self._failures and not self.error else RESTART_MIN_S * 2**self._failures
        self._failures = min(self._failures + 1, 10)
        self.restart_at = now + min(delay, RESTART_MAX_S)
        self._set(ReplicaState.FAILED if self.error else ReplicaState.RESTARTING)

    def kill(self) -> None:
        """End the process and all that it started, now."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        if self.frames is not None:
            self.frames.close()
            self.frames = None

    def stop(self) -> None:
        """End the process in order: it finishes nothing more, frees the device and exits."""
        if self.process is not None and self.frames is not None:
            with contextlib.suppress(OSError):
                self.frames.send(["stop"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()
        self._set(ReplicaState.STOPPED)

    def _set(self, state: ReplicaState) -> None:
        if state is not self.state:
            self.state = state
            self.since = time.time()
