from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace.handler import Context, Handler
from tests.harness.wait import wait_until
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.executor import BatchExecutor
from workers.model_process.reports import stacks


class Gated(Handler):
    """Waits in `preprocess` until a test opens the gate."""

    def __init__(self) -> None:
        self.inside, self.gate = threading.Event(), threading.Event()

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        self.wait_inside()
        return inputs

    def wait_inside(self) -> None:
        self.inside.set()
        self.gate.wait()

    def inference(self, items: Any) -> Any:
        return items


def test_a_thread_in_a_verb_counts_also_while_it_waits(tmp_path: Path) -> None:
    handler = Gated()
    executor = BatchExecutor(handler, Context("m", "1", "cpu", tmp_path))
    batch = SubBatch([("a", 1, "", None)], StageTimes())
    thread = threading.Thread(target=executor.verbs, args=(batch,))
    thread.start()
    try:
        assert handler.inside.wait(60)
        found = stacks.sample(0.1)
        path = tmp_path / "stacks"
        stacks.sample_to(path, 0.1)
        wait_until(path.exists, "the stacks are written")
    finally:
        handler.gate.set()
        thread.join()
    for one in (found, stacks.read(path)):
        verbs = [stack for stack in one if stack[0] == "preprocess"]
        assert len(verbs) == 1
        assert any(
            part.startswith("Gated.wait_inside (reports/test_stacks.py:") for part in verbs[0]
        )
        assert not any("own_preprocess" in part for part in verbs[0])
    assert list(tmp_path.iterdir()) == [path]


def test_idle_threads_do_not_count() -> None:
    enough = threading.Event()
    thread = threading.Thread(target=enough.wait, name="waits")
    thread.start()
    try:
        found = stacks.sample(0.1)
    finally:
        enough.set()
        thread.join()
    assert not [stack for stack in found if stack[0] == "thread waits"]


def test_the_collector_rests_while_frames_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 would wait for itself for ever."""
    enabled: list[bool] = []
    frames = sys._current_frames

    def noted() -> dict[int, FrameType]:
        enabled.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", noted)
    stacks.sample(0.01)
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()


def test_the_table_has_own_and_total_shares() -> None:
    found = Counter({
        ("preprocess", "a (x.py:1)", "b (x.py:9)"): 3,
        ("preprocess", "a (x.py:1)"): 1,
        ("inference", "c (y.py:1)"): 4,
        ("thread noise", "d (z.py:1)"): 9,
    })  # fmt: skip
    lines = stacks.functions_table([found, Counter()]).splitlines()
    assert lines[0] == "preprocess: 4 of 17 samples"
    assert lines[3].split() == ["75.0%", "75.0%", "b", "(x.py:9)"]
    assert lines[4].split() == ["25.0%", "100.0%", "a", "(x.py:1)"]
    assert [line for line in lines if "samples" in line][-1].startswith("thread noise")


def test_the_folded_form_has_a_line_for_each_stack() -> None:
    stack: stacks.Stack = ("inference", "c (y.py:1)")
    found = {"model process": Counter({stack: 4})}
    assert stacks.folded(found) == "model process;inference;c (y.py:1) 4\n"
