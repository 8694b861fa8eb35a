"""Chooses where `preprocess` runs: in one thread, or in several threads or processes.

The handler's example has run as the largest batch before. If `preprocess` took a noticeable part of
it, batches run with one thread and with several. That shows what the interpreter's lock allows,
next to this `inference`. What processes could reach is computed from the times. Only if that
is much better, they start, and batches run with them too; the load then waits for their imports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from headrace.errors import HandlerError
from headrace.generator import Generator
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.context import Input, overlaps
from workers.model_process.executor import BatchExecutor, clock
from workers.model_process.preprocess.pool import (
    LoadFailed,
    Prepare,
    PreprocessPool,
    PreprocessProcess,
    pool_of,
    why_not_in_process,
)

logger = logging.getLogger("headrace.model")

#: The value of `preprocess_threads` and `preprocess_processes` with which this module decides.
AUTO: Final = "auto"
ONE: Final = "1 thread"
#: The least part of a batch's time, and the least time, for which measuring pays.
_SHARE_MIN: Final = 0.1
_MS_MIN: Final = 0.5
#: How much faster more threads must be. Of processes more is asked: they take memory, and cores
#: that the worker and other programs need under load.
_GAIN_OF_THREADS: Final = 1.1
_GAIN_OF_PROCESSES: Final = 1.25
_WORKERS_MAX: Final = 4
#: Batches for each way to run; the fastest counts, as anything else on the machine only slows.
_ROUNDS: Final = 3
#: Runs of a batch that one thread and several take together, with one in which all verbs run alone.
_RUNS: Final = 2 * (_ROUNDS + 1) + 1
#: How long they may take; but as long as the warm-up has taken, if that is longer.
_BUDGET_MS: Final = 300.0
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Alone:
    """The milliseconds of a batch whose verbs ran in turn.

    Attributes:
        size: how many items it had.
        cpu: what all threads computed.
        transfer: what it takes to send the items from another process.
    """

    size: int
    preprocess: float
    inference: float
    cpu: float = 0.0
    transfer: float = 0.0

    @property
    def trivial(self) -> bool:
        """Whether no other place for `preprocess` could make a difference."""
        return self.preprocess < max(_MS_MIN, _SHARE_MIN * self.whole)

    @property
    def whole(self) -> float:
        """The time of both verbs."""
        return self.preprocess + self.inference

    def with_processes(self, count: int, cores: int) -> float:
        """Return the least time of a batch with so many processes."""
        shared = max(self.inference, self.preprocess / count, self.cpu / cores)
        return shared + self.transfer


@dataclass(slots=True)
class Ways:
    """The ways to run that were measured: the milliseconds of a batch in each, one thread first."""

    size: int
    ms: dict[str, float] = field(default_factory=dict)
    best: str = ONE
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, ms: float, gain: float) -> bool:
        """Add a way; return whether it is the best one now, which it must be by this factor."""
        better = not self.ms or ms * gain <= self.ms[self.best]
        self.ms[name] = ms
        if better:
            self.best = name
        return better

    @override
    def __str__(self) -> str:
        batch = "an input" if self.size == 1 else f"a batch of {self.size}"
        times = ", ".join(f"{ms:.1f} ms with {name}" for name, ms in self.ms.items())
        return "; ".join([f"{self.best}: {batch} takes {times}", *self.notes])


@dataclass(slots=True)
class Choice:
    """Measures the ways to run `preprocess` of one executor, and installs the best one.

    Attributes:
        spawn: starts a preprocess process.
        processes: those that were started and are used.
    """

    executor: BatchExecutor
    threads: int | str
    asked_processes: int | str
    spawn: Callable[[], PreprocessProcess]
    processes: list[PreprocessProcess] = field(default_factory=list)

    def make(self, batches: Sequence[SubBatch]) -> str:
        """Install the best way for the warm-up `batches`; return it and why, "" for a generator."""
        handler = self.executor.handler
        if isinstance(handler, Generator):
            return ""
        for count, noun in ((self.asked_processes, "process"), (self.threads, "thread")):
            if isinstance(count, int) and count:
                ending = "" if count == 1 else "es" if noun == "process" else "s"
                key = "preprocess_processes" if noun == "process" else "preprocess_threads"
                return f"{count} {noun}{ending}, set by {key}"
        if not overlaps(handler):
            return f"{ONE}, in turn with the other verbs: the handler does not set overlap = True"
        if not batches:
            return f"{ONE}: the handler has no example_input to measure with"
        largest = max(batches, key=lambda batch: len(batch.inputs))
        size = len(largest.inputs)
        seen = Alone(size, largest.times.preprocess, largest.times.inference)
        if seen.trivial:
            return self._trivial(seen)
        own = self.executor.preprocess
        spent = sum(batch.times.preprocess + batch.times.inference for batch in batches)
        try:
            return self._measured(largest.inputs, seen, max(_BUDGET_MS, spent))
        except Exception as error:
            # The warm-up has run these inputs, so it is the measurement that the handler resents.
            logger.warning("preprocess cannot be measured", exc_info=True)
            self.executor.preprocess = own
            return f"{ONE}: the measurement raised {type(error).__name__}: {error}"

    def _trivial(self, seen: Alone) -> str:
        return (
            f"{ONE}: preprocess takes {seen.preprocess:.1f} ms of a batch of {seen.size}, "
            f"inference {seen.inference:.1f} ms"
        )

    def _measured(self, full: list[Input], seen: Alone, budget_ms: float) -> str:
        executor, own = self.executor, self.executor.own_preprocess
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        per_item = bool(getattr(executor.handler, "preprocess_per_item", False))
        count = min(_WORKERS_MAX, cores, seen.size) if per_item else 1
        fitting = int(seen.size * budget_ms / (_RUNS * seen.whole))
        inputs = full[: max(1, fitting // count) * count]
        ways = Ways(len(inputs))
        alone = self._alone(inputs, ways)
        if alone.trivial:
            return self._trivial(alone)
        rounds = min(_ROUNDS, int((budget_ms - alone.whole) / (2 * alone.whole)) - 1)
        if rounds < 1:
            return (
                f"{ONE}: a batch of {alone.size} takes {alone.whole:,.0f} ms, too long to try "
                "other ways at each load; set preprocess_threads or preprocess_processes"
            )
        ways.add(ONE, self._period(inputs, own, rounds), 1.0)
        threads: PreprocessPool | None = None
        if count > 1:
            threads = PreprocessPool([own] * count, per_item=True)
            took = self._period(inputs, threads.prepare, rounds)
            ways.add(f"{count} threads", took, _GAIN_OF_THREADS)
        elif not per_item:
            ways.notes.append("no more threads: the handler does not set preprocess_per_item")
        else:
            why = "the process has one core" if cores < 2 else "batches have one input"
            ways.notes.append(f"no more threads: {why}")
        in_threads = ways.best != ONE
        if self._installed(inputs, ways, alone.with_processes(count, cores), count):
            in_threads = False
        elif threads is not None and in_threads:
            executor.preprocess = threads.prepare
        else:
            executor.preprocess = own
        if threads is not None and not in_threads:
            threads.close()
        return str(ways)

    def _installed(self, inputs: list[Input], ways: Ways, least_ms: float, count: int) -> bool:
        """Start so many processes if they can pay; return whether they do and are installed."""
        if self.asked_processes == 0:
            return False
        if why := why_not_in_process(self.executor.handler):
            ways.notes.append(f"no processes: {why}")
        elif least_ms == _NEVER:
            return False  # with its reason noted
        elif least_ms * _GAIN_OF_PROCESSES > ways.ms[ways.best]:
            ways.notes.append(f"processes would take {least_ms:.1f} ms at best")
        else:
            processes = [self.spawn() for _ in range(count)]
            name = f"{count} process{'' if count == 1 else 'es'}"
            try:
                pool = pool_of(self.executor, processes)
                took = self._period(inputs, pool.prepare, _ROUNDS)
                if ways.add(name, took, _GAIN_OF_PROCESSES):
                    self.executor.preprocess = pool.prepare
                    self.processes = processes
                    return True
                pool.close()
            except LoadFailed as error:
                logger.warning("a preprocess process cannot be loaded: %s", error)
                ways.notes.append("no processes: they cannot be loaded, and the log has why")
            for process in processes:
                process.stop()
        return False

    def _alone(self, inputs: list[Input], ways: Ways) -> Alone:
        batch, before = SubBatch(inputs, StageTimes()), time.process_time()
        self.executor.prepare(batch)
        items = batch.items
        self.executor.infer(batch)
        self.executor.finish(batch)
        cpu = (time.process_time() - before) * 1000
        try:
            transfer = min(_transfer_ms(items) for _ in range(2))
        except HandlerError as error:
            transfer = _NEVER
            ways.notes.append(f"no processes: {error.message}")
        return Alone(
            len(inputs), batch.times.preprocess, batch.times.inference, cpu, transfer=transfer
        )

    def _period(self, inputs: list[Input], prepare: Prepare, rounds: int) -> float:
        """Return the ms of a batch while the next one is prepared."""
        executor, times = self.executor, []
        executor.preprocess = prepare

        def prepared() -> SubBatch:
            batch = SubBatch(inputs, StageTimes())
            executor.prepare(batch)
            return batch

        with ThreadPoolExecutor(1, "preprocess") as ahead:
            batch = ahead.submit(prepared).result()
            for _ in range(rounds):
                started = clock()
                following = ahead.submit(prepared)
                executor.infer(batch)
                executor.finish(batch)
                batch = following.result()
                times.append((clock() - started) * 1000)
        return min(times)


def _transfer_ms(items: object) -> float:
    """Return the ms of the items into shared memory and back; raise HandlerError if one cannot."""
    # Imported here as it imports numpy, which most models need not wait for.
    from workers.model_process.preprocess.shared_memory import Packer, SharedBuffer, unpack

    started = clock()
    packer, buffer = Packer(), SharedBuffer.new()
    try:
        packed = packer.pack(items)
        buffer.fill(packer.arrays, packer.size)
        unpack(packed, buffer.fd, packer.size, lambda: None)
    finally:
        os.close(buffer.fd)
    return (clock() - started) * 1000
