"""Profiles the running model process on request: PyTorch traces of batches, or samples of stacks.

The thread that reads frames passes a request on. A thread of its own then starts PyTorch's
profiler, which records all threads, and marks the verbs by the executor's `span`. A process that
is not being profiled runs none of this code.
"""

from __future__ import annotations

import fcntl
import gzip
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headrace.generator import Generator
from headrace.jobs.trace_context import Trace
from headrace.observability import logs
from workers.model_process.context import TRACES, SpanOf
from workers.model_process.executor import BatchExecutor
from workers.model_process.preprocess.pool import PreprocessProcess
from workers.model_process.reports import stacks
from workers.protocol.frames import Profiled, SampleStacks, StartProfile

logger = logging.getLogger("headrace.model")

#: The most bytes that a profile may have, compressed.
FILES_MAX_BYTES: Final = 8 * 1024 * 1024
#: How much longer than the model process a preprocess process may sample, if it is busy.
_LATE_S: Final = 5.0
_LOOK_S: Final = 0.02
_OPERATORS: Final = 40
#: More batches than a process works on at once.
_IN_FLIGHT: Final = 16
#: How many ids of the jobs' traces a mark has at most.
_TRACE_IDS: Final = 8
#: How long an automatic profile waits for its batches.
_AUTOMATIC_S: Final = 600.0
_FOLDER: Final = "headrace-profile-"


class ProfileFailed(Exception):
    """A profile could not be made; the text has the reason, and what to do."""


class Profiler:
    """Takes the requests of a model process. At the start it removes what killed processes left.

    Attributes:
        executor: runs the batches; set when the handler is loaded.
    """

    def __init__(self, send: Callable[[Profiled], None]) -> None:
        self.executor: BatchExecutor | None = None
        self.processes: Sequence[PreprocessProcess] = ()
        self._send = send
        self._busy = threading.Lock()
        _remove_left_folders()

    def start(self, request: StartProfile) -> None:
        """Start a profile in a thread. It waits for an automatic profile, and none waits for it."""
        if request.id or not self._busy.locked():
            threading.Thread(target=self._run, args=(request,), name="profile", daemon=True).start()

    def every(self, batches: int, profiled: int) -> None:
        """Profile some of each `batches` batches from now on."""
        if self.executor is None:
            raise RuntimeError("the handler is not loaded")
        request = StartProfile("", "trace", profiled, _AUTOMATIC_S)
        inner = self.executor.span

        def due(count: int) -> None:
            if count % batches == 0:
                self.start(request)

        self.executor.span = _Counting(inner, due)

    def _run(self, request: StartProfile) -> None:
        if not self._busy.acquire(timeout=request.seconds if request.id else 0):
            if request.id:
                self._answer(request, error="the model process is being profiled already")
            return
        try:
            files = self._trace(request) if request.kind == "trace" else self._stacks(request)
        except ProfileFailed as error:
            self._answer(request, error=str(error))
        except Exception as error:
            logger.exception("the profile failed")
            self._answer(request, error=f"the profile failed: {type(error).__name__}: {error}")
        else:
            self._answer(request, files)
        finally:
            self._busy.release()

    def _answer(
        self, request: StartProfile, files: dict[str, bytes] | None = None, error: str = ""
    ) -> None:
        if error and not request.id:
            logger.warning("the automatic profile was not made: %s", error)
            return
        try:
            self._send(Profiled(request.id, files or {}, error))
        except OSError:  # the worker is gone, and this process ends
            logger.warning("the worker did not take the profile")

    def _trace(self, request: StartProfile) -> dict[str, bytes]:
        if self.executor is None or "torch" not in sys.modules:
            raise ProfileFailed(
                "the handler does not use torch, so there is no trace; use `headrace profile "
                "--stack`"
            )
        from torch.profiler import record_function

        profile = _torch_profiler()
        enough = threading.Event()

        def count(batches: int) -> None:
            if batches >= request.batches:
                enough.set()

        unit, units = "batch", "batches"
        if isinstance(self.executor.handler, Generator):
            unit, units = "step", "steps"
        inner = self.executor.span
        counting = _Counting(_marked(inner, record_function), count)

        def until_enough(verb: str, size: int) -> AbstractContextManager[Any]:
            # The next batch begins before the profiler stops, and has no marks.
            return (inner if enough.is_set() else counting)(verb, size)

        # The first start takes a second; batches count from then on.
        profile.start()
        try:
            self.executor.span = until_enough
            enough.wait(request.seconds)
            enough.set()
            ended, open_steps = counting.ended, counting.open_steps
        finally:
            self.executor.span = inner
            profile.stop()
        if not ended:
            raise ProfileFailed(
                f"no {unit} ended within {request.seconds:g} s; send jobs while it runs, or give "
                "it more time with --seconds"
            )
        what = f"{ended} {units if ended > 1 else unit}"
        # Its mark is in the table too.
        return _files_of(profile, f"{what} and a step that had not ended" if open_steps else what)

    def _stacks(self, request: StartProfile) -> dict[str, bytes]:
        with _own_folder() as folder:
            paths = [folder / str(n) for n in range(len(self.processes))]
            for process, path in zip(self.processes, paths, strict=True):
                process.frames.send(SampleStacks(str(path), request.seconds))
            sampled = {"model process": stacks.sample(request.seconds)}
            until = time.monotonic() + _LATE_S
            for n, path in enumerate(paths):
                while not path.exists() and time.monotonic() < until:
                    time.sleep(_LOOK_S)
                if path.exists():
                    sampled[f"preprocess process {n + 1}"] = stacks.read(path)
                else:
                    logger.warning("a preprocess process was too busy to be sampled")
        if not any(sampled.values()):
            raise ProfileFailed(
                f"no verb ran within {request.seconds:g} s; send jobs while it runs, or give it "
                "more time with --seconds"
            )
        text = stacks.functions_table(sampled.values())
        return _bounded(
            {"functions.txt": text.encode(), "stacks.folded": stacks.folded(sampled).encode()}
        )


class _Counting:
    """A span that counts the batches that ended, of those whose inference it has seen.

    Where verbs overlap, a batch may end whose inference was before the trace. Of a generator it
    counts the steps.
    """

    def __init__(self, inner: SpanOf, ended: Callable[[int], None]) -> None:
        self._inner = inner
        self._on_end = ended
        self.ended = 0
        self.open_steps = 0
        # A batch whose inference fails is never taken out, so it is pushed out.
        self._begun = deque[str](maxlen=_IN_FLIGHT)

    @contextmanager
    def __call__(self, verb: str, size: int) -> Iterator[None]:
        batch = _batch()
        if verb == "inference":
            self._begun.append(batch)
        self.open_steps += verb == "step"
        try:
            with self._inner(verb, size):
                yield
        finally:
            self.open_steps -= verb == "step"
        if verb == "step" or (verb == "postprocess" and batch in self._begun):
            if verb != "step":
                self._begun.remove(batch)
            self.ended += 1
            self._on_end(self.ended)


def _batch() -> str:
    return str((logs.LINE_FIELDS.get() or {}).get("batch", ""))


def _marked(inner: SpanOf, record_function: Callable[[str], Any]) -> SpanOf:
    """Return a span that also marks the verb and its batch in the trace."""

    @contextmanager
    def span(verb: str, size: int) -> Iterator[None]:
        if verb == "step":
            # The batch and the traces of this thread are those of the newest job.
            with record_function(f"step: {size} requests"), inner(verb, size):
                yield
            return
        name, traces = f"{verb}: {size} items, batch {_batch()}", TRACES.get()
        if traces is not None:
            ids = dict.fromkeys(Trace(parent).trace_id for parent in traces.jobs.values())
            name += f", trace {' '.join(list(ids)[:_TRACE_IDS])}"
        with record_function(name), inner(verb, size):
            yield

    return span


def _torch_profiler() -> Any:
    from torch._C._profiler import _ExperimentalConfig
    from torch.cuda import is_available
    from torch.profiler import ProfilerActivity, profile

    try:
        # The verbs run in several threads, and the profiler is started in another.
        config = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        raise ProfileFailed(
            "this torch cannot record all threads; install torch 2.7 or later"
        ) from None
    activities = [ProfilerActivity.CPU]
    if is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, record_shapes=True, experimental_config=config)


def _files_of(profile: Any, what: str) -> dict[str, bytes]:
    with _own_folder() as folder:
        path = folder / "trace.json"
        profile.export_chrome_trace(str(path))
        trace = gzip.compress(path.read_bytes(), 6)
    averages = profile.key_averages()
    devices = any(getattr(event, "self_device_time_total", 0) for event in averages)
    order = "self_device_time_total" if devices else "self_cpu_time_total"
    table = averages.table(sort_by=order, row_limit=_OPERATORS, max_name_column_width=60)
    text = f"The operators of {what}, the dearest first.\n{table}\n"
    return _bounded({"operators.txt": text.encode(), "trace.json.gz": trace})


def _bounded(files: dict[str, bytes]) -> dict[str, bytes]:
    size = sum(map(len, files.values()))
    if size > FILES_MAX_BYTES:
        raise ProfileFailed(
            f"the profile has {size / 2**20:.0f} MiB, and {FILES_MAX_BYTES / 2**20:.0f} MiB are "
            "allowed; profile fewer batches, or fewer seconds"
        )
    return files


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Make a folder for files that torch or another process writes; remove it at the end.

    It is locked meanwhile, so that other processes leave it alone.
    """
    lock: int | None = None
    # A process that starts now may lock and remove it before it is locked here.
    while lock is None:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        try:
            lock = _locked(folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ProfileFailed(
                f"{folder} cannot be locked: {error.strerror}; set TMPDIR to a local folder"
            ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Return the locked descriptor of a folder; None if it is gone, or another process has it."""
    with ExitStack() as stack, suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            stack.pop_all()
            return descriptor
    return None


def _remove_left_folders() -> None:
    """Remove the folders of processes that were killed while they were profiled."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with suppress(OSError):  # that of another user
            if (lock := _locked(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
