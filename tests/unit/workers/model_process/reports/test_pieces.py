"""What a streaming handler yields: which pieces leave the process, and what becomes the result."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.handler import Context, Handler
from tests.harness.handlers.generation.yielding import Returning, Yielding
from tests.harness.wait import wait_until
from workers.model_process.batch_state import BatchState
from workers.model_process.executor import BatchExecutor
from workers.model_process.reports import pieces as module
from workers.model_process.reports.pieces import PieceSender
from workers.protocol.frames import PieceRow


class Run:
    """One batch through a handler; the rows that it sends."""

    def __init__(self, handler: Handler, *inputs: Any, sizes: Sequence[int] = ()) -> None:
        context = Context("m", "1", "cpu", Path(), allowed_batch_sizes=list(sizes))
        handler.initialize(context)
        self.rows: list[PieceRow] = []
        self.executor = BatchExecutor(handler, context)
        self.executor.send_pieces_to(self.rows.extend)
        self.inputs = [(f"job{n}", json.dumps(value).encode()) for n, value in enumerate(inputs)]

    def state(self, dropped: set[int] | None = None) -> BatchState:
        return self.executor.run(self.inputs, dropped, 7)

    def pieces(self, job_id: str) -> list[Any]:
        """What a reader has of a job: None for a restart mark; the numbers have no gap."""
        found: list[Any] = []
        for _, owner, first, count, text, _ in self.rows:
            if owner == job_id:
                assert first == len(found) + 1
                found += json.loads(text) if text else [None]
                assert len(found) == first + count - 1
        return found


def results(state: BatchState) -> list[Any]:
    return [json.loads(one[1]) if one[0] else one[1:3] for one in state.outcomes]


def test_text_is_joined_and_values_are_listed() -> None:
    run = Run(Yielding(), {"pieces": ["a", "b", "c"]}, {"pieces": [1, None, {"x": 2}]})
    assert results(run.state()) == ["abc", [1, {"x": 2}]]
    assert run.pieces("job0") == ["a", "b", "c"]
    assert run.pieces("job1") == [1, {"x": 2}]


def test_an_item_without_pieces_has_an_empty_text() -> None:
    run = Run(Yielding(), {"pieces": []}, {"pieces": ["a"]})
    assert results(run.state()) == ["", "a"]
    assert run.pieces("job0") == []


def test_a_returned_value_takes_the_place_of_the_pieces() -> None:
    run = Run(Returning(), {"pieces": ["a", "b"]}, {"pieces": ["c"], "fails": 1})
    assert results(run.state()) == [2, ["input-error", "failed in the middle"]]


def test_an_error_as_a_piece_fails_its_item_alone() -> None:
    run = Run(Yielding(), {"pieces": ["a", "b", "c"]}, {"pieces": ["d", "e", "f"], "fails": 1})
    assert results(run.state()) == ["abc", ["input-error", "failed in the middle"]]
    assert run.pieces("job1") == ["d"]


@pytest.mark.parametrize(
    ("piece", "why"), [(b"bytes", "a piece must be text or JSON, not bytes"), ({1}, "")]
)
def test_a_piece_that_is_no_json_fails_its_item_alone(piece: Any, why: str) -> None:
    class Odd(Handler):
        def inference(self, items: Any) -> Any:
            yield ["a", "b"]
            yield ["c", piece if why else object()]

    run = Run(Odd(), 1, 2)
    one, other = run.state().outcomes
    assert json.loads(one[1]) == "ac"
    assert other[:2] == [False, "handler-error"]
    assert why in other[2]


def test_a_step_of_another_length_fails_the_batch() -> None:
    class Short(Handler):
        def inference(self, items: Any) -> Any:
            yield ["a"]

    run = Run(Short(), 1, 2)
    state = run.state()
    assert [outcome[0] for outcome in state.outcomes] == [True, True]  # alone, each has its length
    assert run.pieces("job0") == ["a"]

    class Wrong(Handler):
        def inference(self, items: Any) -> Any:
            yield ["a"] * 3

    (outcome, _) = Run(Wrong(), 1, 2).state().outcomes
    assert outcome[2] == "a step of inference returned 3 values for 1 inputs"


def test_inputs_that_run_again_begin_with_a_mark() -> None:
    run = Run(Yielding(), {"pieces": ["a", "b"]}, {"pieces": ["c", "d"], "raises": 1})
    assert results(run.state()) == ["ab", ["handler-error", "ValueError: raised in the middle"]]
    assert run.pieces("job0") == ["a", None, "a", "b"]
    assert run.pieces("job1") == ["c", None, "c"]


def test_added_items_send_nothing() -> None:
    run = Run(Yielding(), {"pieces": ["a", "b"]}, {"pieces": ["c"]}, {"pieces": ["d"]}, sizes=[4])
    assert results(run.state()) == ["ab", "c", "d"]
    assert {row[1] for row in run.rows} == {"job0", "job1", "job2"}


def test_a_batch_whose_jobs_are_all_cancelled_is_closed(tmp_path: Path) -> None:
    dropped: set[int] = set()

    class Dropped(Yielding):
        def piece(self, n: int, item: Any) -> Any:
            if n == 1:
                dropped.add(0)
            return super().piece(n, item)

    closed = tmp_path / "closed"
    run = Run(Dropped(), {"pieces": list("abcdef"), "closed": str(closed)})
    state = run.state(dropped)
    assert state.outcomes[0][1] == "cancelled"
    assert closed.exists()
    assert run.pieces("job0") == ["a", "b"]


def test_the_first_piece_leaves_at_once_and_the_next_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 3600.0)
    rows: list[PieceRow] = []
    sender = PieceSender(rows.extend)
    sender.begin(1, ["x", "y"])
    for n in range(4):
        sender.add([(1, "x", b"%d" % n, ()), *([(1, "y", b"9", ())] if n == 2 else [])])
    assert rows == [(1, "x", 1, 1, b"[0]", b""), (1, "y", 1, 1, b"[9]", b"")]
    sender.close(1, ["x", "y"])
    assert rows[2:] == [(1, "x", 2, 3, b"[1,2,3]", b"")]


def test_the_pieces_of_all_jobs_leave_together() -> None:
    frames: list[list[PieceRow]] = []
    sender = PieceSender(lambda rows: frames.append(list(rows)))
    sender.begin(1, ["x", "y"])
    # The first frame begins the time until the next one, and a first piece does not.
    sender.add([(1, "x", b"1", ())])
    sender.add([(1, "y", b"1", ())])
    with sender._changed:
        sender._due_at = time.monotonic() + 3600
        for name in ("x", "y", "x"):
            sender.add([(1, name, b"2", ())])
        assert len(frames) == 2
        sender._due_at = 0.0
        sender.add([(1, "y", b"3", ())])
    assert frames[2:] == [[(1, "x", 2, 2, b"[2,2]", b""), (1, "y", 2, 2, b"[2,3]", b"")]]


def test_pieces_do_not_wait_for_the_next_step() -> None:
    rows: list[PieceRow] = []
    sender = PieceSender(rows.extend)
    sender.begin(1, ["x"])
    sender.add([(1, "x", b"1", ())])
    sender.add([(1, "x", b"2", ())])
    wait_until(lambda: len(rows) == 2, "the second leaves by itself")
    assert rows[1] == (1, "x", 2, 1, b"[2]", b"")


def test_large_pieces_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry, which readers take whole, has at most one piece more than its size."""
    monkeypatch.setattr(module, "INTERVAL_S", 3600.0)
    monkeypatch.setattr(module, "ENTRY_BYTES", 1000)
    rows: list[PieceRow] = []
    sender = PieceSender(rows.extend)
    sender.begin(1, ["job"])
    for _ in range(32):
        sender.add([(1, "job", b'"%s"' % (b"x" * 298), [])])
    assert [row[3] for row in rows] == [1, *[4] * 7]
    sender.close(1, ["job"])
    assert sum(row[3] for row in rows) == 32
