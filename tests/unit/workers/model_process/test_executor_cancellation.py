"""Items that are dropped while their batch is on its way: what the verbs then see."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.handler import Context, Handler
from workers.model_process.batch_state import BatchState
from workers.model_process.executor import BatchExecutor


class Dropping(Handler):
    """Notes what each verb is given; items of the batch are dropped as it begins."""

    overlap = True

    def __init__(self, **drops: set[int]) -> None:
        self.drops = drops
        self.dropped: set[int] = set()
        self.given: list[tuple[str, list[int], list[str]]] = []

    def preprocess(self, inputs: list[Any]) -> Any:
        return self.at("preprocess", inputs)

    def inference(self, items: Any) -> Any:
        return self.at("inference", items)

    def postprocess(self, outputs: Any) -> list[Any]:
        return [int(one) for one in self.at("postprocess", outputs)]

    def at(self, verb: str, items: Any) -> Any:
        self.given.append((verb, [int(item) for item in items], self.context.request_ids))
        self.dropped |= self.drops.get(verb, set())
        return items


class InTurn(Dropping):
    overlap = False


class AsArray(Dropping):
    def preprocess(self, inputs: list[Any]) -> Any:
        return np.array(super().preprocess(inputs))


class AsTensor(Dropping):
    def preprocess(self, inputs: list[Any]) -> Any:
        return torch.tensor(super().preprocess(inputs))


class AsItself(Dropping):
    """Its items are of a kind that nobody else can take apart."""

    def preprocess(self, inputs: list[Any]) -> Any:
        return deque(super().preprocess(inputs))


def run_dropping(handler: Dropping, count: int, *allowed: int) -> tuple[BatchState, list[str]]:
    """Run 0, 1, 2, …; the work, and each verb with what it was given."""
    context = Context("m", "1.0", "cpu", Path(), allowed_batch_sizes=list(allowed))
    handler.initialize(context)
    rows = [(f"id{n}", json.dumps(n).encode()) for n in range(count)]
    state = BatchExecutor(handler, context).run(rows, handler.dropped)
    for outcome in state.outcomes:
        assert outcome[0] or outcome[1] == "cancelled"
    return state, [f"{verb} {','.join(map(str, items))}" for verb, items, _ in handler.given]


def wanted(state: BatchState) -> list[int]:
    return [place for place, outcome in enumerate(state.outcomes) if outcome[0]]


@pytest.mark.parametrize("kind", [Dropping, AsArray, AsTensor])
def test_what_is_dropped_leaves_before_inference(kind: type[Dropping]) -> None:
    handler = kind(preprocess={1, 3})
    state, given = run_dropping(handler, 5)
    assert given == ["preprocess 0,1,2,3,4", "inference 0,2,4", "postprocess 0,2,4"]
    assert wanted(state) == [0, 2, 4]
    assert [json.loads(state.outcomes[place][1]) for place in wanted(state)] == [0, 2, 4]
    assert handler.given[-1][2] == ["id0", "id2", "id4"]


def test_what_is_dropped_before_all_verbs_takes_none() -> None:
    handler = InTurn()
    handler.dropped.add(0)
    _, given = run_dropping(handler, 2)
    assert given == ["preprocess 1", "inference 1", "postprocess 1"]
    handler.given.clear()
    handler.dropped.add(1)
    assert run_dropping(handler, 2)[1] == []


@pytest.mark.parametrize("kind", [InTurn, AsItself])
def test_where_an_item_cannot_be_taken_away_all_run(kind: type[Dropping]) -> None:
    handler = kind(preprocess={1})
    state, given = run_dropping(handler, 3)
    assert given == ["preprocess 0,1,2", "inference 0,1,2", "postprocess 0,1,2"]
    assert state.outcomes[0][0]
    assert state.outcomes[2][0]


@pytest.mark.parametrize("kind", [InTurn, Dropping])
@pytest.mark.parametrize("verb", ["preprocess", "inference"])
def test_of_whom_nobody_is_left_nothing_more_is_run(kind: type[Dropping], verb: str) -> None:
    state, given = run_dropping(kind(**{verb: {0, 1}}), 2)
    assert given[-1] == f"{verb} 0,1"
    assert wanted(state) == []


def test_between_inference_and_postprocess_nobody_is_taken_away() -> None:
    state, given = run_dropping(Dropping(inference={1}), 2)
    assert given[-1] == "postprocess 0,1"
    assert wanted(state) == [0, 1], "the worker discards it"


@pytest.mark.parametrize("kind", [Dropping, AsArray, AsTensor])
def test_the_padding_follows_what_is_left(kind: type[Dropping]) -> None:
    state, given = run_dropping(kind(preprocess={1, 2, 3}), 5, 2, 4, 8)
    assert given[1:] == ["inference 0,4", "postprocess 0,4"]
    assert state.times.padding == 0
    state, given = run_dropping(kind(preprocess={1}), 4, 4)
    assert given[1] == "inference 0,2,3,3"
    assert state.times.padding == 1


def test_a_batch_that_raises_is_split_without_those_that_were_dropped() -> None:
    class Bad(Dropping):
        def inference(self, items: Any) -> Any:
            self.at("inference", items)
            if 2 in items:
                raise ValueError("no 2")
            return items

    handler = Bad(inference={3})
    context = Context("m", "1.0", "cpu", Path())
    handler.initialize(context)
    rows = [(f"id{n}", json.dumps(n).encode()) for n in range(4)]
    state = BatchExecutor(handler, context).run(rows, handler.dropped)
    assert [outcome[1] for outcome in state.outcomes[2:]] == ["handler-error", "cancelled"]
    assert wanted(state) == [0, 1]
    assert [items for verb, items, _ in handler.given if verb == "inference"] == [
        [0, 1, 2, 3], [0, 1], [2],
    ]  # fmt: skip
