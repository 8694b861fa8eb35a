"""What a handler says of its progress: what is made of it, and what leaves the process when."""

from __future__ import annotations

import contextvars
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import InputError
from headrace.handler import Context, Handler
from headrace.jobs.job import State, job_from_record
from headrace.jobs.progress import MESSAGE_MAX_CHARS, Progress, progress_of, stages_progress
from tests.harness.wait import wait_until
from workers.model_process.context import ThreadContext
from workers.model_process.executor import BatchExecutor
from workers.model_process.preprocess.pool import PreprocessPool
from workers.model_process.reports.progress_reporter import INTERVAL_S

Frame = tuple[int, list[list[Any]]]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ((0.25, None, ""), Progress(0.25)),
        ((1, None, "done"), Progress(1.0, message="done")),
        ((30, 120, ""), Progress(0.25, 30, 120)),
        ((np.float32(0.5), None, None), Progress(0.5)),
        ((7, 5, ""), Progress(1.0, 7, 5)),
        ((-3, None, ""), Progress(0.0)),
        ((1 / 3, None, ""), Progress(0.3333)),
        ((None, None, "reading frames"), Progress(None, message="reading frames")),
    ],
)
def test_a_word_as_it_is_shown(given: tuple[Any, ...], shown: Progress) -> None:
    assert progress_of(*given) == shown


class Wordless:
    """An object of a handler's of which nothing can be had."""

    def __str__(self) -> str:
        raise LookupError

    __repr__ = __str__

    def __float__(self) -> float:
        raise LookupError


@pytest.mark.parametrize(
    ("done", "total"),
    [
        (Wordless(), None),
        (1, Wordless()),
        (math.nan, None),
        (math.inf, None),
        (3, 0),
        (3, -1),
        (3, math.nan),
        ("a", None),
        ([], 3),
    ],
)
def test_what_cannot_be_shown_fails_nobody(
    done: Any, total: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert progress_of(done, total, "") is None
    assert progress_of(done, total, "still words") == Progress(None, message="still words")
    assert "is ignored" in caplog.text


def test_a_mistake_in_an_inner_loop_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = Context(model_name="m", version="1", device="cpu", model_dir=tmp_path)
    reports: list[Progress] = []
    context.reports_to(lambda _, given: reports.append(given))
    for _ in range(3):
        context.progress("half")  # type: ignore[arg-type]
        context.progress(0.5, message=Wordless())  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert reports == [Progress(0.5, message="a Wordless without text")] * 3


def test_a_message_is_one_short_line() -> None:
    given = progress_of(0.5, None, "a\nb\x1b[31m" + "x" * 1_000_000)
    assert given is not None
    assert given.message.startswith("a b\ufffd[31mxxx")
    assert len(given.message) == MESSAGE_MAX_CHARS


def test_a_pipeline_is_as_far_as_its_stages() -> None:
    stages = [
        {"name": "cut", "status": "succeeded", "jobs": 1, "done": 1},
        {"name": "weigh", "status": "running", "jobs": 4, "done": 1},
        {"name": "sum", "status": "waiting", "jobs": 0, "done": 0},
    ]
    found = stages_progress(json.dumps(stages))
    assert found == Progress(0.4167, message="stage weigh (2 of 3)")
    assert stages_progress("[]") is stages_progress("no JSON") is None


def test_a_record_shows_what_was_said_under_its_token_alone() -> None:
    record = {"s": "r", "t": "7", "st": "1", "pg": '7 3 {"fraction":0.5}'}
    job = job_from_record("a", record)
    assert (job.progress, job.progress_mark) == (Progress(0.5), "3")
    for other in ({"t": "8"}, {"st": "0"}, {"s": "q"}, {"s": "s"}, {"pg": "7 3 {"}, {"pg": "7"}):
        assert job_from_record("a", {**record, **other}).progress is None
    assert job_from_record("a", {"s": "r", "t": "7", "st": "1"}).state is State.RUNNING


class Reports:
    """Frames as they leave, and a runner over a handler whose words they are."""

    def __init__(self, handler: Handler, kind: type[Context] = Context) -> None:
        self.frames: list[Frame] = []
        self.executor = BatchExecutor(handler, kind("m", "1", "cpu", Path(), max_batch_size=8))
        handler.initialize(self.executor.context)
        self.executor.report_progress_to(lambda seq, rows: self.frames.append((seq, rows)))

    def run(self, *inputs: Any, seq: int = 1) -> list[Any]:
        rows = [(f"id{n}", json.dumps(value).encode()) for n, value in enumerate(inputs)]
        return self.executor.run(rows, seq=seq).outcomes

    def newest(self, job_id: str) -> list[Any] | None:
        rows = [row for _, frame in list(self.frames) for row in frame if row[0] == job_id]
        return rows[-1][1:] if rows else None

    def wait_for(self, job_id: str, fraction: float) -> None:
        wait_until(lambda: (self.newest(job_id) or [None])[0] == fraction, f"{job_id} is reported")


class Speaks(Handler):
    """Calls `verb` in its verbs, with its name and what that was given."""

    def __init__(self, verb: Any) -> None:
        self.verb = verb

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return self.verb(self, "preprocess", inputs) or inputs

    def inference(self, items: Any) -> Any:
        return self.verb(self, "inference", items) or items

    def postprocess(self, outputs: Any) -> list[Any]:
        return self.verb(self, "postprocess", outputs) or list(outputs)


def test_an_item_is_named_by_its_place_in_what_the_verb_was_given() -> None:
    def verb(handler: Speaks, name: str, items: list[Any]) -> list[Any] | None:
        if name == "preprocess":
            return [InputError("no") if item == 0 else item for item in items]
        if name == "inference":
            assert items == [1, 2, 3, 3]  # padded
            for n, fraction in enumerate((0.1, 0.2, 0.3, 0.9)):
                handler.context.progress(fraction, item=n)
            handler.context.progress(0.5, item=4)  # there is none
            handler.context.progress(0.5, item="a")  # type: ignore[arg-type] # a mistake, say
            for job_id, fraction in (("id0", 0.1), ("id2", 0.2), ("id3", 0.3)):
                reports.wait_for(job_id, fraction)
        return None

    reports = Reports(Speaks(verb))
    reports.executor.context.allowed_batch_sizes = [4]
    assert [outcome[0] for outcome in reports.run(1, 0, 2, 3)] == [True, False, True, True]
    assert {(seq, row[1]) for seq, rows in reports.frames for row in rows} == {
        (1, 0.1), (1, 0.2), (1, 0.3),
    }  # fmt: skip


def test_the_newest_word_is_sent_a_few_times_a_second_and_the_last_one_always() -> None:
    began: list[float] = []

    def verb(handler: Speaks, name: str, _: Any) -> None:
        if name == "inference":
            began.append(time.monotonic())
            for n in range(50_000):
                handler.context.progress(n + 1, 50_000, f"step {n}")
            reports.wait_for("id0", 1.0)
            began.append(time.monotonic())

    reports = Reports(Speaks(verb))
    reports.run("a", "b")
    assert reports.newest("id1") == [1.0, 50_000, 50_000, "step 49999"]
    assert len(reports.frames) <= 2 + (began[1] - began[0]) / INTERVAL_S


def test_nothing_is_said_of_a_batch_after_its_end_or_outside_of_one() -> None:
    late = threading.Event()
    spoken = threading.Event()

    def speak(handler: Speaks) -> None:
        late.wait(30)
        handler.context.progress(0.7)
        spoken.set()

    def verb(handler: Speaks, name: str, _: Any) -> None:
        if name == "preprocess":
            handler.context.progress(0.5)
            threads.append(threading.Thread(target=speak, args=(handler,), daemon=True))
            threads[0].start()

    threads: list[threading.Thread] = []
    reports = Reports(Speaks(verb))
    reports.run(1)
    count = len(reports.frames)  # the first one may have left at once, or was dropped at the end
    late.set()
    assert spoken.wait(30)
    threads[0].join()
    reports.executor.context.progress(0.9)
    marker = Reports(Speaks(lambda handler, *_: handler.context.progress(0.1)))
    while not marker.frames:  # as long as it takes until a frame would have left
        marker.run(1)
    assert len(reports.frames) == count


def test_halves_of_a_batch_that_was_split_speak_for_themselves() -> None:
    def verb(handler: Speaks, name: str, items: list[Any]) -> None:
        if name == "inference":
            handler.context.progress(1 / len(items))
            if len(items) > 1:
                reports.wait_for("id1", 1 / len(items))
                raise ValueError("not together")
            reports.wait_for(f"id{items[0]}", 1.0)

    reports = Reports(Speaks(verb))
    assert all(outcome[0] for outcome in reports.run(0, 1))
    assert [row[:2] for _, rows in reports.frames for row in rows] == [
        ["id0", 0.5], ["id1", 0.5], ["id0", 1.0], ["id1", 1.0],
    ]  # fmt: skip


def test_threads_of_a_handler_speak_of_the_batch_at_hand() -> None:
    def elsewhere(handler: Speaks, name: str, _: Any) -> None:
        if name == "inference":
            thread = threading.Thread(target=handler.context.progress, args=(0.5,))
            thread.start()
            thread.join()
            reports.wait_for("id0", 0.5)

    reports = Reports(Speaks(elsewhere))
    reports.run(1)
    assert reports.newest("id0") == [0.5, None, None, ""]


class Overlaps(Speaks):
    overlap = True
    preprocess_per_item = True


def test_with_overlap_a_thread_speaks_in_the_context_of_its_verb() -> None:
    def verb(handler: Speaks, name: str, _: Any) -> None:
        if name == "inference":
            speak = handler.context.progress
            for run in (speak, contextvars.copy_context().run):
                arguments = (0.25,) if run is speak else (speak, 0.5)
                thread = threading.Thread(target=run, args=arguments)
                thread.start()
                thread.join()
            reports.wait_for("id0", 0.5)

    reports = Reports(Overlaps(verb), ThreadContext)
    reports.run(1)
    assert [rows for _, rows in reports.frames] == [[["id0", 0.5, None, None, ""]]]


def test_threads_that_share_a_preprocess_name_their_own_items() -> None:
    def verb(handler: Speaks, name: str, items: list[Any]) -> None:
        if name == "preprocess":
            for n, item in enumerate(items):
                handler.context.progress(item, 10, item=n)
        elif name == "inference":
            for n in range(4):
                reports.wait_for(f"id{n}", n / 10)

    reports = Reports(Overlaps(verb), ThreadContext)
    pool = PreprocessPool([reports.executor.own_preprocess] * 2, per_item=True)
    reports.executor.preprocess = pool.prepare
    assert all(outcome[0] for outcome in reports.run(0, 1, 2, 3))


def test_a_handler_in_a_test_of_its_own_speaks_to_nobody() -> None:
    context = Context("m", "1", "cpu", Path())
    context.progress(0.5, message="nobody listens", item=3)
    assert "report" not in repr(context)
