"""Runs `preprocess` in several threads or processes; this is the model process' side.

Processes are spawned, never forked, before the handler is initialised. When any of them dies, the
model process ends too, and its worker runs each item of the batch alone next, as after any crash.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from headrace.config.environment import launch_command, with_server_path
from headrace.errors import ConfigError, InputError
from headrace.handler import Handler
from headrace.observability import logs
from workers.model_process.context import TRACES, Input
from workers.model_process.executor import BatchExecutor, checked_list
from workers.model_process.outcomes import RaisedError
from workers.model_process.reports.progress_reporter import Row
from workers.protocol.frames import (
    FROM_PREPROCESS,
    FrameSocket,
    FromPreprocess,
    Init,
    ItemProgress,
    NotLoaded,
    Prepared,
    PrepareInputs,
    Raised,
    Ready,
    ToPreprocess,
)
from workers.threads import SOFTWARE_ERROR_STATUS

logger = logging.getLogger("headrace.model")

Prepare = Callable[[list[Input]], Any]
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LoadFailed(Exception):
    """A preprocess process failed to load; the text is its traceback."""


class PreprocessDied(Exception):
    """A preprocess process has ended."""


@dataclass(slots=True)
class PreprocessProcess:
    """One preprocess process.

    Attributes:
        buffers: descriptors of its shared memory, by number.
        free: the numbers of the buffers that are not in use.
        forward: takes rows of the progress that the handler reports there.
    """

    process: subprocess.Popen[bytes]
    frames: FrameSocket[ToPreprocess, FromPreprocess]
    files: socket.socket
    buffers: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    forward: Callable[[Sequence[Row]], None] | None = None
    _received: list[FromPreprocess] = field(default_factory=list)

    @classmethod
    def spawn(cls, config: dict[str, Any], stacks: int) -> PreprocessProcess:
        """Start a process, which loads in the background.

        It writes its threads' stacks to `stacks`.

        Call it in the main thread: the kernel kills the process when its starter's thread ends.
        """
        ours, theirs = socket.socketpair()
        files, their_files = socket.socketpair()
        with theirs, their_files:
            passed = (theirs.fileno(), their_files.fileno(), stacks)
            arguments = [*map(str, passed), str(os.getpid())]
            process = subprocess.Popen(
                launch_command("workers.model_process.preprocess", *arguments),
                pass_fds=passed,
                # One thread for arithmetic, as the user sets the number of processes.
                env={
                    **with_server_path(os.environ),
                    "CUDA_VISIBLE_DEVICES": "",
                    **dict.fromkeys(_THREADS, "1"),
                },
                stdin=subprocess.DEVNULL,
            )
        frames: FrameSocket[ToPreprocess, FromPreprocess] = FrameSocket(ours, FROM_PREPROCESS)
        with contextlib.suppress(OSError):  # it died at once, and EOF follows
            frames.send(Init(config))
        return cls(process, frames, files)

    def ready(self) -> None:
        """Wait until it is loaded; raise LoadFailed if it cannot be loaded."""
        # Imported here as it imports numpy, which a model without such processes need not wait for.
        from workers.model_process.preprocess import shared_memory  # noqa: F401

        try:
            answer = self._receive()
        except PreprocessDied as error:
            raise LoadFailed(f"{error} while it was loading") from None
        if isinstance(answer, NotLoaded):
            raise LoadFailed(answer.error)

    def prepare(self, inputs: list[Input]) -> Any:
        """Run the handler's `preprocess` in that process.

        Raises:
            InputError: an input cannot be sent to it.
            RaisedError: the verb raised; the outcome is its error.
            PreprocessDied: the process has ended.
        """
        from workers.model_process.preprocess.shared_memory import unpack

        number = self.free.pop() if self.free else len(self.buffers)
        try:
            self.frames.send(
                PrepareInputs(number, inputs, dict(logs.LINE_FIELDS.get() or {}), TRACES.get())
            )
        except OverflowError as error:
            self._release(number)
            raise InputError(f"a number in the input has more than 64 bits: {error}") from None
        except UnicodeEncodeError as error:
            self._release(number)
            raise InputError(f"text in the input is not valid Unicode: {error}") from None
        except OSError:  # it has ended, and EOF follows
            logger.warning("preprocess process does not read its frames")
        answer = self._receive()
        if isinstance(answer, Raised):
            if number < answer.buffers:
                self._receive_buffer(number)
            self._release(number)
            raise RaisedError(answer.outcome)
        if not isinstance(answer, Prepared):
            raise TypeError(f"the answer is {type(answer).__name__}, not Prepared")
        self._receive_buffer(number)
        buffer = self.buffers[number]
        return unpack(answer.packed, buffer, answer.size, lambda: self._release(number))

    def stop(self) -> None:
        """End the process, which reads EOF."""
        self.frames.close()
        self.files.close()
        for descriptor in self.buffers:
            os.close(descriptor)
        self.process.wait()

    def _release(self, number: int) -> None:
        if number < len(self.buffers):
            self.free.append(number)

    def _receive_buffer(self, number: int) -> None:
        if number == len(self.buffers):
            # A file descriptor is sent with a byte.
            _, received, _, _ = socket.recv_fds(self.files, 1, 1)
            self.buffers.append(received[0])

    def _receive(self) -> Prepared | Raised | Ready | NotLoaded:
        while True:
            while self._received:
                frame = self._received.pop(0)
                if not isinstance(frame, ItemProgress):
                    return frame
                if self.forward is not None:
                    self.forward(frame.rows)
            try:
                self._received = self.frames.receive()
            except (EOFError, OSError):
                status = self.process.wait()
                raise PreprocessDied(f"a preprocess process ended with {status}") from None


class PreprocessPool:
    """Runs `preprocess` in several workers, each on a share; a whole batch unless `per_item`."""

    def __init__(self, workers: Sequence[Prepare], *, per_item: bool) -> None:
        self._workers = workers
        self._per_item = per_item
        self._turn = 0
        self._executors = [ThreadPoolExecutor(1, f"preprocess-{n}") for n in range(len(workers))]

    def prepare(self, inputs: list[Input]) -> Any:
        """Return what `preprocess` returns for all inputs; raise a share's error when all ended."""
        shares = self._shares(inputs)
        futures = []
        for share in shares:
            number = self._turn = (self._turn + 1) % len(self._workers)
            # The handler's log lines and progress there belong to this thread's batch.
            run = copy_context().run
            futures.append(self._executors[number].submit(run, self._workers[number], share))
        errors = [future.exception() for future in futures]
        for error in errors:
            if isinstance(error, PreprocessDied):
                # As if this process had crashed. The worker then finds the input that caused it.
                logger.critical("%s; the model process ends with it", error)
                os._exit(SOFTWARE_ERROR_STATUS)
            if error is not None:
                raise error
        return _joined([future.result() for future in futures], shares)

    def close(self) -> None:
        """End its threads."""
        for executor in self._executors:
            executor.shutdown()

    def _shares(self, inputs: list[Input]) -> list[list[Input]]:
        count = min(len(self._workers), len(inputs)) if self._per_item else 1
        bounds = [len(inputs) * n // count for n in range(count + 1)]
        return [inputs[low:high] for low, high in pairwise(bounds)]


def _joined(parts: list[Any], shares: list[list[Input]]) -> Any:
    if len(parts) == 1:
        return parts[0]
    whole = _one_array(parts)
    if whole is not None:
        return whole
    joined: list[Any] = []
    for part, share in zip(parts, shares, strict=True):
        joined += checked_list(part, len(share), "preprocess")
    return joined


def _one_array(parts: list[Any]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and all(isinstance(part, numpy.ndarray) for part in parts):
        return numpy.concatenate(parts)
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(part, torch.Tensor) for part in parts):
        return torch.cat(parts)
    return None


def why_not_in_process(handler: Handler) -> str:
    """Return why a process cannot load what the handler's `preprocess` needs; "" if it can."""
    load = getattr(handler, "initialize_preprocess", None)
    own = getattr(type(handler), "initialize_preprocess", None) is not Handler.initialize_preprocess
    plain = getattr(type(handler), "initialize", None) is Handler.initialize
    if load is None or not (own or plain):
        return "the handler defines `initialize` without `initialize_preprocess`"
    return ""


def pool_of(executor: BatchExecutor, processes: list[PreprocessProcess]) -> PreprocessPool:
    """Return the pool of these processes, once they are loaded; raise LoadFailed if one is not."""
    for process in processes:
        process.forward = lambda rows: (
            executor.reporter.forward(rows) if executor.reporter else None
        )
        process.ready()
    per_item = bool(getattr(executor.handler, "preprocess_per_item", False))
    return PreprocessPool([process.prepare for process in processes], per_item=per_item)


def install_pool(executor: BatchExecutor, processes: list[PreprocessProcess], threads: int) -> None:
    """Run the executor's `preprocess` in these processes, or in `threads` threads.

    Raises:
        ConfigError: the handler does not allow it.
        LoadFailed: a process cannot be loaded.
    """
    handler, workers = executor.handler, len(processes) or threads
    if workers < 2 and not processes:
        return
    if not getattr(handler, "overlap", False):
        key = "preprocess_processes" if processes else "preprocess_threads"
        raise ConfigError(
            f"{key} is {workers}, but the handler {type(handler).__name__} runs its verbs in turn",
            hint="set overlap = True if the handler keeps nothing on itself between its verbs",
        )
    per_item = bool(getattr(handler, "preprocess_per_item", False))
    pool = (
        pool_of(executor, processes)
        if processes
        else PreprocessPool([executor.own_preprocess] * threads, per_item=per_item)
    )
    executor.preprocess = pool.prepare
