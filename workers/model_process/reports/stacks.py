"""Samples the stacks of this process' threads, to show where the handler's verbs spend their time.

A sample is counted for each thread that runs a verb, whether it computes or waits. Other threads
are counted only if they used the CPU since the last sample.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import selectors
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import thread
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from workers.model_process.executor import BatchExecutor
from workers.model_process.generation.continuous import ContinuousExecutor

#: A stack: the verb, or the thread outside of verbs, and then its functions, outermost first.
Stack = tuple[str, ...]

#: Seconds between two samples. It is no divisor of a second, so that it follows no timer.
INTERVAL_S: Final = 0.0047
#: More functions than a handler's stack has.
_DEPTH_MAX: Final = 120
_ROWS: Final = 25
_VERB_OF: Final[Mapping[CodeType, str]] = {
    BatchExecutor.own_preprocess.__code__: "preprocess",
    BatchExecutor.infer.__code__: "inference",
    BatchExecutor.finish.__code__: "postprocess",
    ContinuousExecutor._admit.__code__: "add",
    ContinuousExecutor._pieces_of_step.__code__: "step",
    ContinuousExecutor._result.__code__: "postprocess",
}
#: They wait for the threads or processes that run `preprocess`, which are sampled themselves.
_WAITING: Final = BatchExecutor.prepare.__code__
#: Threads of ours that wait have these at the end or in the middle of their stacks.
_OURS: Final = str(Path(__file__).parents[2]) + os.sep
_IDLE: Final = (threading.__file__, queue.__file__, selectors.__file__, thread.__file__)


def sample(seconds: float) -> Counter[Stack]:
    """Sample the other threads of this process for some seconds."""
    counts: Counter[Stack] = Counter()
    cpu_s: dict[int, float] = {}
    own, until = threading.get_ident(), time.monotonic() + seconds
    while time.monotonic() < until:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in frames_of_threads().items():
            if ident != own and (stack := _stack(frame, ident, names.get(ident), cpu_s)):
                counts[stack] += 1
        time.sleep(INTERVAL_S)
    return counts


def frames_of_threads() -> dict[int, FrameType]:
    """Return the frame of each thread.

    The garbage collector rests meanwhile: in CPython before 3.12 it can run inside the call, which
    holds a lock that the end of an object may need too (python/cpython#106883).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()


def _stack(
    frame: FrameType | None, ident: int, name: str | None, cpu_s: dict[int, float]
) -> Stack | None:
    """Return the stack of a thread; None if it does nothing."""
    functions: list[str] = []
    idle = frame is not None and frame.f_code.co_filename in _IDLE
    while frame is not None and len(functions) < _DEPTH_MAX:
        if (verb := _VERB_OF.get(frame.f_code)) is not None:
            return (verb, *reversed(functions))
        if frame.f_code is _WAITING:
            return None
        idle = idle or frame.f_code.co_filename.startswith(_OURS)
        functions.append(_function(frame.f_code))
        frame = frame.f_back
    if idle or name is None or not _has_computed(ident, cpu_s):
        return None
    return (f"thread {name}", *reversed(functions))


def _has_computed(ident: int, cpu_s: dict[int, float]) -> bool:
    try:
        now = time.clock_gettime(time.pthread_getcpuclockid(ident))
    except (OSError, AttributeError):  # it has ended, or the system has no such clock
        return False
    before, cpu_s[ident] = cpu_s.get(ident, now), now
    return now > before


def _function(code: CodeType) -> str:
    parts = Path(code.co_filename).parts
    # The folded form separates by semicolons.
    name = getattr(code, "co_qualname", code.co_name)
    return f"{name} ({'/'.join(parts[-2:])}:{code.co_firstlineno})".replace(";", ",")


def sample_to(path: Path, seconds: float) -> None:
    """Sample in a thread of its own; then write the stacks to a file, which appears complete."""

    def run() -> None:
        stacks = [[*stack, count] for stack, count in sample(seconds).items()]
        part = path.with_suffix(".part")
        part.write_text(json.dumps(stacks))
        os.replace(part, path)

    threading.Thread(target=run, name="profile", daemon=True).start()


def read(path: Path) -> Counter[Stack]:
    """Return the stacks that `sample_to` has written."""
    counts: Counter[Stack] = Counter()
    for *stack, count in json.loads(path.read_text()):
        counts[tuple(stack)] = count
    return counts


def folded(stacks: Mapping[str, Mapping[Stack, int]]) -> str:
    """Return the stacks of processes, by their names, in the folded form of flame graphs."""
    return "".join(
        f"{';'.join((process, *stack))} {count}\n"
        for process, counts in stacks.items()
        for stack, count in sorted(counts.items())
    )


def functions_table(stacks: Iterable[Mapping[Stack, int]]) -> str:
    """Return a table of the functions in which each verb spends its time."""
    samples: defaultdict[str, int] = defaultdict(int)
    own: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for counts in stacks:
        for (part, *functions), count in counts.items():
            samples[part] += count
            for function in set(functions):
                total[part][function] += count
            own[part][functions[-1] if functions else "(the verb itself)"] += count
    every = sum(samples.values())
    lines = []
    for part in sorted(samples, key=lambda name: (name.startswith("thread "), -samples[name])):
        count = samples[part]
        lines += [f"{part}: {count} of {every} samples", "", "    self    total  function"]
        ranked = sorted({*own[part], *total[part]}, key=lambda f: (-own[part][f], -total[part][f]))
        lines += [
            f"{own[part][f] / count:8.1%} {total[part][f] / count:8.1%}  {f}"
            for f in ranked[:_ROWS]
        ]
        lines.append("")
    return "\n".join(lines)
