"""Where `preprocess` runs, decided on numbers; the measurements are in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.handler import Context, Handler
from workers.model_process.context import ThreadContext
from workers.model_process.executor import BatchExecutor
from workers.model_process.preprocess.choice import AUTO, ONE, Alone, Choice, Ways
from workers.model_process.preprocess.pool import PreprocessProcess
from workers.model_process.startup import warm_up


class Overlapping(Handler):
    overlap = True
    preprocess_per_item = True
    example_input: Any = 1


class InTurn(Handler):
    example_input: Any = 1


class WithoutExample(Overlapping):
    example_input = None


def never() -> PreprocessProcess:
    raise AssertionError("a process was started")


def chosen(handler: Handler, threads: int | str = AUTO, processes: int | str = AUTO) -> str:
    context = ThreadContext("m", "1.0", "cpu", Path(), max_batch_size=4)
    handler.initialize(context)
    executor = BatchExecutor(handler, context)
    batches: list[Any] = []
    warm_up(executor, {}, batches)
    return Choice(executor, threads, processes, spawn=never).make(batches)


@pytest.mark.parametrize(
    ("preprocess_ms", "inference_ms", "trivial"),
    [(0.4, 0.1, True), (0.6, 5.0, False), (4.0, 50.0, True), (6.0, 50.0, False)],
)
def test_a_preprocess_is_trivial_by_its_time_and_by_its_share(
    preprocess_ms: float, inference_ms: float, trivial: bool
) -> None:
    assert Alone(8, preprocess_ms, inference_ms).trivial is trivial


@pytest.mark.parametrize(
    ("alone", "count", "cores", "ms"),
    [
        (Alone(8, 20, 5, cpu=20, transfer=1), 2, 4, 11),  # the processes limit
        (Alone(8, 20, 5, cpu=20, transfer=1), 4, 2, 11),  # the cores
        (Alone(8, 20, 15, cpu=20, transfer=1), 4, 4, 16),  # the device
    ],
)
def test_what_processes_can_reach(alone: Alone, count: int, cores: int, ms: float) -> None:
    assert alone.with_processes(count, cores) == ms


@pytest.mark.parametrize(
    ("threads_ms", "processes_ms", "best"),
    [(9.5, 8.5, ONE), (6.0, 5.0, "2 threads"), (9.5, 7.0, "2 processes")],
)
def test_another_way_must_be_faster_by_its_factor(
    threads_ms: float, processes_ms: float, best: str
) -> None:
    ways = Ways(8)
    ways.add(ONE, 10.0, 1.0)
    ways.add("2 threads", threads_ms, 1.1)
    ways.add("2 processes", processes_ms, 1.25)
    assert str(ways) == (
        f"{best}: a batch of 8 takes 10.0 ms with 1 thread, {threads_ms} ms with 2 threads, "
        f"{processes_ms} ms with 2 processes"
    )


@pytest.mark.parametrize(
    ("handler", "options", "says"),
    [
        (Overlapping(), (AUTO, AUTO), "1 thread: preprocess takes 0.0 ms of a batch of 4, "),
        (Overlapping(), (3, AUTO), "3 threads, set by preprocess_threads"),
        (Overlapping(), (AUTO, 1), "1 process, set by preprocess_processes"),
        (InTurn(), (AUTO, 0), "1 thread, in turn with the other verbs: "),
        (WithoutExample(), (AUTO, AUTO), "1 thread: the handler has no example_input"),
    ],
)
def test_what_needs_no_measurement(
    handler: Handler, options: tuple[int | str, int | str], says: str
) -> None:
    assert chosen(handler, *options).startswith(says)


def test_a_handler_that_raises_in_several_threads_keeps_one() -> None:
    class Resents(Overlapping):
        def initialize(self, context: Context) -> None:
            self.batches = 0

        def preprocess(self, inputs: list[Any]) -> list[Any]:
            self.batches += 1
            if self.batches > 2:
                raise RuntimeError("Already borrowed")
            return slow(inputs)

    handler = Resents()
    assert chosen(handler) == "1 thread: the measurement raised RuntimeError: Already borrowed"


def slow(inputs: list[Any]) -> list[Any]:
    """Compute for a time that no machine finds short."""
    sum(range(200_000))
    return inputs
