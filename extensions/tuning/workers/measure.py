"""Measures the variants of one model: `python -m extensions.tuning.workers.measure FRAME`.

The file FRAME has an init frame, with `variants`, `sizes`, `rounds`, `inputs` (a folder, or "") and
`load_limit_s` (None for no limit). It prints JSON lines for
`extensions.tuning.optimize.report.read_lines`, one for each variant that is loaded, and one for
each variant and batch size. Each variant has a process of its own, so that its memory and its load
are its own; the processes run their batches in turns.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from extensions.tuning.machine import cpu_name, load_facts
from extensions.tuning.optimize.report import BatchTime, Comparison, Variant
from handlers.optimize.check import median_interval
from handlers.optimize.variants import cause
from headrace.config.model.optimize import Optimize
from headrace.errors import ConfigError, HeadraceError
from headrace.handler import Context
from headrace.text import duration
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.context import Input
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import context_of, die_with_parent, handler_of, initialize
from workers.model_process.variant import has_module, inputs_of, install_variant, refusal

MIB: Final = 1024 * 1024
#: Seconds of rounds after which a batch size is measured well enough, if three rounds were run.
SIZE_S: Final = 30.0
#: The rounds of a variant with eager as soon as it is loaded, and the fewest of a batch size.
FIRST_ROUNDS: Final = 3
_END_S: Final = 10

#: Milliseconds of preprocess, inference and postprocess.
Times = tuple[float, float, float]


def main() -> None:
    """Measure what the file in the first argument names; print each line as soon as it is known."""
    frame = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    # What a handler prints is not part of the document.
    document = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with document:
        try:
            for line in measure(frame):
                document.write(msgspec.json.encode(line) + b"\n")
                document.flush()
        except ConfigError as error:
            sys.exit(f"headrace: {error.message}")


def measure(frame: dict[str, Any]) -> Iterator[Comparison | Variant]:
    """Yield the comparison without variants, then each variant whenever more of it is known.

    Eager is first. It is the only one if the handler offers no module. Each other one runs some
    rounds with eager as soon as it is loaded, so that a measurement which ends early has figures.
    Then all run in turns. Nothing is yielded of a variant that is not loaded within the limit.

    Raises:
        ConfigError: eager does not load, or has no inputs.
    """
    wanted = [Optimize(), *(msgspec.convert(one, Optimize) for one in frame["variants"])]
    limit_s = frame["load_limit_s"]
    until = math.inf if limit_s is None else time.monotonic() + limit_s
    running: list[Measured] = []
    try:
        for optimize in dict.fromkeys(wanted):
            if running and (running[0].without_module or time.monotonic() > until):
                break
            _print(f"loads {optimize.name}")
            one = Measured(frame, optimize, until if running else math.inf)
            running.append(one)
            if one.late:
                break
            if one is running[0]:
                yield _comparison(frame, one)
            pair = list(dict.fromkeys([running[0], one]))
            for size in frame["sizes"] if one.alive else ():
                _rounds(pair, size, min(FIRST_ROUNDS, frame["rounds"]))
                yield from (each.variant() for each in pair)
            yield one.variant()
        if running[0].without_module and len(wanted) > 1:
            _print(
                f"the handler of {frame['model']} has no module to optimize, so eager alone is "
                "measured; to offer one, give the handler `exportable()` (docs/optimize.md)"
            )
        for size in frame["sizes"] if frame["rounds"] > FIRST_ROUNDS else ():
            alive = [one for one in running if one.alive]
            _print(f"measures batches of {size}: {', '.join(one.name for one in alive)}")
            _rounds(alive, size, frame["rounds"])
            yield from (one.variant() for one in alive)
    finally:
        for one in running:
            one.close()


def _print(text: str) -> None:
    sys.stderr.write(f"headrace: {text}\n")
    sys.stderr.flush()


def _comparison(frame: dict[str, Any], eager: Measured) -> Comparison:
    if eager.refused:
        raise ConfigError(f"the model does not load: {eager.refused}")
    return Comparison(
        model=frame["model"],
        device=frame["device"],
        variants=[],
        threads=eager.facts["threads"],
        inputs=eager.facts["inputs"],
        left_out=eager.facts["left_out"],
        without_module=eager.without_module,
        environment={**environment(), **eager.facts["environment"]},
    )


def _rounds(running: Sequence[Measured], size: int, rounds: int) -> None:
    """Run batches of one size in turns, and judge by them how fast each variant is."""
    for one in running:  # its first batch has one-time work
        one.run(size)
        one.times[size], one.pairs[size] = [], []
    until = time.monotonic() + SIZE_S
    for n in range(rounds):
        if n >= FIRST_ROUNDS and time.monotonic() > until:
            break
        eager: Times | None = None
        for one in running:
            if (times := one.run(size)) is None:
                continue
            one.times[size].append(times)
            if one is running[0]:
                eager = times
            elif eager is not None:
                one.pairs[size].append((eager[1], times[1]))
    for one in running[1:]:
        one.judge()


class Measured:
    """The process of one variant, seen from the one that measures.

    Args:
        until: when the variant must be loaded, of `time.monotonic`.

    Attributes:
        times: of each batch size, the times of its batches.
        pairs: of each batch size, the milliseconds of `inference` of eager and of this variant in
            each round.
        late: it was not loaded in time.
    """

    def __init__(self, frame: dict[str, Any], wanted: Optimize, until: float) -> None:
        self._wanted = wanted
        self._until = until
        self._step = ""
        self.late = False
        self.times: dict[int, list[Times]] = {}
        self.pairs: dict[int, list[tuple[float, float]]] = {}
        self.facts = self._start(frame)
        self._build_s = self.facts.get("build_s", 0.0)
        if self._build_s:
            # The time of a load, and the memory, without the build.
            self.close()
            self.facts = self._start({**frame, "again": False})

    def _start(self, frame: dict[str, Any]) -> dict[str, Any]:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        config = {**frame, "optimize": {**msgspec.to_builtins(self._wanted)}}
        config["optimize"]["calibrate"] = self._wanted.calibrate or frame["inputs"] or None
        self._process = spawn.Process(target=_serve, args=(theirs, config, os.getpid()))
        self._process.start()
        theirs.close()
        found: dict[str, Any] = {"step": "its start"}
        while "step" in found:
            self._step = found["step"]
            left_s = None if self._until == math.inf else max(0.0, self._until - time.monotonic())
            if not self._connection.poll(left_s):
                self.late = True
                self._process.kill()
                return {}
            found = self._answer()
        return found

    def _answer(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(timeout=_END_S)
            return {"refused": ended(self._process.exitcode, self._step)}
        return found

    @property
    def name(self) -> str:
        """The name of the variant."""
        return self._wanted.name

    @property
    def without_module(self) -> bool:
        """Whether the handler offers no module, by what its process has sent."""
        return not self.facts.get("module", True)

    @property
    def refused(self) -> str:
        """Why the variant is not used; "" if it is."""
        return str(self.facts.get("refused", ""))

    @property
    def alive(self) -> bool:
        """Whether it loaded, also if it is refused."""
        return "load_s" in self.facts

    def run(self, size: int) -> Times | None:
        """Run one batch; None if that fails, which refuses the variant."""
        self._step = f"a batch of {size}"
        found = self._asked(size)
        if found is None:
            return None
        self.facts["memory_mb"] = max(self.facts["memory_mb"], found["memory_mb"])
        times: Times = found["times"]
        return times

    def judge(self) -> None:
        """Let the process keep the verdict on the speed of these rounds."""
        self._step = "the verdict on its speed"
        found = self._asked({size: rows for size, rows in self.pairs.items() if rows})
        if found is not None:
            self.facts["refused"] = found["verdict"]

    def _asked(self, question: int | dict[int, list[tuple[float, float]]]) -> dict[str, Any] | None:
        """Return the answer of the process; without one None, and the variant is refused."""
        if not self.alive:
            return None
        with suppress(OSError):  # then there is no answer either
            self._connection.send(question)
        found = self._answer()
        if "refused" in found:
            self.facts = found
            return None
        return found

    def variant(self) -> Variant:
        """Return the measurements."""
        facts = self.facts
        return Variant(
            optimize=self._wanted,
            load_s=round(facts.get("load_s", 0.0), 3),
            build_s=round(self._build_s, 3),
            memory_mb=round(facts.get("memory_mb", 0.0), 1),
            times=[_batch_time(size, rows) for size, rows in sorted(self.times.items()) if rows],
            error=facts.get("error", 0.0),
            agreement=facts.get("agreement"),
            refused=self.refused,
            kept_s=0.0 if self._build_s else facts.get("kept_s", 0.0),
        )

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def ended(exit_code: int | None, step: str) -> str:
    """Return how a process has ended that measures a variant."""
    if exit_code is None or exit_code >= 0:
        return f"its process ended in {step}; the lines above have the reason"
    name = signal.Signals(-exit_code).name
    remedy = "its native code has crashed, so use another backend"
    if -exit_code == signal.SIGKILL:
        remedy = "the host may have too little memory: see the log of the kernel"
    return f"{name} ended its process in {step}; {remedy}"


def _batch_time(size: int, rows: Sequence[Times]) -> BatchTime:
    before, inference, after = zip(*rows, strict=True)
    ordered = sorted(inference)
    low_ms, high_ms = median_interval(ordered)
    return BatchTime(
        size=size,
        inference_ms=round(statistics.median(ordered), 3),
        low_ms=round(low_ms, 3),
        high_ms=round(high_ms, 3),
        preprocess_ms=round(statistics.median(before), 3),
        postprocess_ms=round(statistics.median(after), 3),
    )


def _serve(connection: Connection, config: dict[str, Any], parent: int) -> None:
    """Load one variant, then run batches of the sizes that arrive, until the other end closes."""
    die_with_parent(parent)
    # The table shows why a variant is refused.
    logging.getLogger("headrace.model").setLevel(logging.ERROR)
    if msgspec.convert(config["optimize"], Optimize).name != Optimize().name:
        # The process of eager has logged the warnings of the handler.
        logging.getLogger().setLevel(logging.ERROR)
    with closing(connection):
        try:
            connection.send({"step": "the load of the handler"})
            started = time.monotonic()
            executor, keep, facts = _load(config, connection)
            load_s = time.monotonic() - started - facts["build_s"]
            inputs, facts["left_out"] = _usable(executor, config)
            connection.send({"step": "its first batch"})
            started = time.monotonic()
            _run(executor, inputs, 1)
            facts["load_s"] = load_s + time.monotonic() - started
            facts["inputs"] = config["optimize"]["calibrate"] or "example_input"
            facts["memory_mb"] = _memory_mb(executor)
            connection.send(facts)
            while True:
                question = connection.recv()
                if isinstance(question, int):
                    times = _run(executor, inputs, question)
                    connection.send({"times": times, "memory_mb": _memory_mb(executor)})
                else:
                    connection.send({"verdict": keep(question)})
        except EOFError:
            return
        except BaseException as error:  # noqa: BLE001 - any error is shown in the table
            _send_failure(connection, error)


def _send_failure(connection: Connection, error: BaseException) -> None:
    """Send what failed in words; the traceback of an unexpected error goes to standard error."""
    text = cause(error)
    if not isinstance(error, HeadraceError):
        traceback.print_exception(error)
        text += "; its traceback is above, on standard error: mend the cause or leave the form out"
    with suppress(OSError):  # the other end has closed
        connection.send({"refused": text})


#: Keeps a verdict on the speed of rounds, by batch size; returns why the variant is refused.
Keep = Callable[[dict[int, list[tuple[float, float]]]], str]


def _load(
    config: dict[str, Any], connection: Connection
) -> tuple[BatchExecutor, Keep, dict[str, Any]]:
    handler, context = handler_of(config), context_of(config, Context)
    initialize(handler.initialize, context)
    executor = BatchExecutor(handler, context)
    connection.send({"step": "its build, comparison or load"})
    found = install_variant(executor, config, refused_too=True)
    torch = sys.modules.get("torch")
    facts: dict[str, Any] = {
        "threads": torch.get_num_threads() if torch else 0,
        "build_s": 0.0,
        "module": has_module(executor),
        "environment": {},
    }
    if torch is not None:
        # Read here, as the process that measures would need two seconds to import torch.
        facts["environment"] = {
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "torch": str(torch.__version__),
        }
    if found is None:
        return executor, lambda _: "", facts
    verdict, keep = found.verdict, found.keep
    kept_s = 0.0 if found.build_s else max(0.0, time.time() - verdict.judged_at)
    if found.problem:
        when = (
            f"; found in an earlier run, {duration(kept_s)} ago"
            if kept_s and verdict.broken
            else ""
        )
        raise ConfigError(f"{found.problem}{when}")
    facts |= {
        "build_s": found.build_s,
        "error": verdict.error,
        "agreement": verdict.agreement,
        "refused": verdict.refused,
        "kept_s": kept_s,
    }

    def judged(pairs: dict[int, list[tuple[float, float]]]) -> str:
        found = verdict.timed(pairs)
        keep(found)
        return found.refused

    return executor, judged, facts


def _usable(executor: BatchExecutor, config: dict[str, Any]) -> tuple[list[Input], str]:
    """Return inputs that `preprocess` accepts, and in words what is left out."""
    inputs, undecoded = inputs_of(executor, config)
    most = max(config["sizes"])
    usable: list[Input] = []
    refused: list[object] = []
    for one in inputs:
        if (error := refusal(executor, one)) is None:
            usable.append(one)
        else:
            refused.append(error)
        if len(usable) == most:
            break
    if not usable:
        raise ConfigError(
            f"the handler accepts none of the {len(inputs)} inputs: {refused[-1]}",
            hint="give inputs that a client would send",
        )
    left_out = [undecoded] if undecoded else []
    if refused:
        tried = len(usable) + len(refused)
        left_out.append(
            f"leaves out {len(refused)} of {tried} inputs that the handler refuses: {refused[-1]}"
        )
    return usable, "; ".join(left_out)


def _run(executor: BatchExecutor, inputs: Sequence[Input], size: int) -> Times:
    """Run a batch through the verbs; return the milliseconds of each."""
    chosen = [inputs[n % len(inputs)] for n in range(size)]
    batch = SubBatch(chosen, StageTimes(), range(size))
    executor.prepare(batch)
    started = time.perf_counter()
    executor.infer(batch)
    _wait(executor.context.device)
    inference = (time.perf_counter() - started) * 1000
    executor.finish(batch)
    return batch.times.preprocess, inference, batch.times.postprocess


def _wait(device: str) -> None:
    """Wait for the device, which may work longer than `inference` takes."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def _memory_mb(executor: BatchExecutor) -> float:
    device = executor.context.device
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_reserved(device) / MIB
    return float(psutil.Process().memory_info().rss / MIB)


def environment() -> dict[str, Any]:
    """Return what the figures depend on, without what the process of a variant sends."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        **load_facts(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
