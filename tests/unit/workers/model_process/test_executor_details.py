"""What comes with each input stays with its item, however a batch is split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InputError
from headrace.handler import Context, Handler
from headrace.jobs.options import InputDetails
from workers.model_process.batch_state import BatchState
from workers.model_process.context import ThreadContext
from workers.model_process.executor import BatchExecutor

NEVER = float("inf")


class Noting(Handler):
    """Notes what the context has in each verb; some inputs are errors, and some raise."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, list[Any], list[str], list[Any]]] = []

    def note(self, verb: str, items: list[Any]) -> list[Any]:
        own = self.context
        ids = [one.get("n") for one in own.parameters]
        assert [one.get("n") for one in own.metadata] == ids
        assert [one.get("n") for one in own.headers] == [n if n is None else str(n) for n in ids]
        self.noted.append((verb, items, list(own.request_ids), ids))
        return items

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        items = self.note("preprocess", inputs)
        return [InputError("bad") if item in (0, 3) else item for item in items]

    def inference(self, items: list[Any]) -> list[Any]:
        if 5 in self.note("inference", items):
            raise ValueError("five")
        return items

    def postprocess(self, outputs: list[Any]) -> list[Any]:
        return self.note("postprocess", outputs)


def text(n: int) -> bytes:
    details = InputDetails(b'{"n":%d}' % n, b'{"n":"%d"}' % n, b'{"n":%d}' % n)
    return details.text()


def run(handler: Handler, rows: list[tuple[Any, ...]], kind: type[Context] = Context) -> BatchState:
    context = kind("m", "1.0", "cpu", Path())
    handler.initialize(context)
    return BatchExecutor(handler, context).run(rows)


@pytest.mark.parametrize("kind", [Context, ThreadContext])
def test_each_verb_has_those_of_the_items_that_it_gets(kind: type[Context]) -> None:
    handler = Noting()
    rows = [(f"id{n}", b"%d" % n, "", NEVER, text(n)) for n in range(7)]
    state = run(handler, rows, kind)
    assert [outcome[0] for outcome in state.outcomes] == [n not in (0, 3, 5) for n in range(7)]
    assert len(handler.noted) > 6
    for verb, items, ids, numbers in handler.noted:
        assert numbers == items, verb
        assert ids == [f"id{n}" for n in items]


def test_items_with_and_without_anything_are_in_one_batch() -> None:
    handler = Noting()
    rows: list[tuple[Any, ...]] = [("id1", b"1", "", NEVER, text(1)), ("id2", b"2")]
    run(handler, rows)
    assert [numbers for *_, numbers in handler.noted] == [[1, None]] * 3


def test_what_a_handler_writes_into_an_empty_mapping_reaches_no_other_batch() -> None:
    class Careless(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            own = self.context
            lists = (own.parameters, own.headers, own.metadata, own.part_types)
            found = [[key for one in item for key in one] for item in zip(*lists, strict=True)]
            own.metadata[0]["left"] = 1
            return found

    handler = Careless()
    context = Context("m", "1.0", "cpu", Path())
    handler.initialize(context)
    executor = BatchExecutor(handler, context)
    for size in (2, 2, 1, 3):
        state = executor.run([(f"id{n}", b"1") for n in range(size)])
        assert [json.loads(outcome[1]) for outcome in state.outcomes] == [[]] * size


def test_bytes_are_decoded_for_a_form_and_for_a_handler_that_accepts_them() -> None:
    class Kinds(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            return [
                [type(item["a"]).__name__, *own]
                for item, own in zip(items, self.context.part_types, strict=True)
            ]

    class Accepting(Kinds):
        accepts_nested_bytes = True

    raw = b'{"a": {"content_type": "a/b", "base64": "AA=="}}'
    form = InputDetails(nested=True).text()
    rows: list[tuple[Any, ...]] = [("1", raw), ("2", raw, "", NEVER, form)]
    for handler, kinds in (
        (Kinds(), [["dict"], ["bytes", "a"]]),
        (Accepting(), [["bytes", "a"]] * 2),
    ):
        found = [json.loads(outcome[1]) for outcome in run(handler, rows).outcomes]
        assert found == kinds
    bad = ("3", b'{"a": {"content_type": "a/b", "base64": "!"}}')
    outcomes = run(Accepting(), [bad, rows[0]]).outcomes
    assert outcomes[0][1:3] == [
        "input-error", "a: the input's base64 cannot be read: it has the character '!'",
    ]  # fmt: skip
    assert outcomes[1][0]


def test_a_handler_gets_inputs_as_they_were_sent_if_it_asks_for_it() -> None:
    class Raw(Handler):
        raw_inputs = True

        def inference(self, items: list[Any]) -> list[Any]:
            of = self.context
            return [repr(one) for one in zip(items, of.content_types, of.part_types, strict=True)]

    sent = b'{"content_type": "text/plain", "base64": "YQ=="}'
    form = InputDetails(nested=True).text()
    rows: list[tuple[Any, ...]] = [
        ("1", b'{"a" :1}'),
        ("2", sent),
        ("3", b"[1 ]", "application/json"),
        ("4", b"\xff", "text/plain"),
        ("5", b'{"x": %b, "y": "text", "z": [1]}' % sent, "", NEVER, form),
        ("6", b'{"content_type": "text/plain", "base64": "%b"}' % (b"YWFh" * 500)),
        ("7", b'{"content_type": "a/b", "base64": "!"}'),
    ]
    *good, bad = run(Raw(), rows).outcomes
    assert [eval(json.loads(outcome[1])) for outcome in good] == [
        (b'{"a" :1}', "application/json", {}),
        (b"a", "text/plain", {}),
        (b"[1 ]", "application/json", {}),
        (b"\xff", "text/plain", {}),
        ({"x": b"a", "y": "text", "z": [1]}, "application/json", {"x": "text/plain"}),
        (b"a" * 1500, "text/plain", {}),
    ]
    assert bad[1] == "input-error"


def test_what_cannot_be_read_fails_its_own_job() -> None:
    rows = [("1", b"1", "", NEVER, b"{"), ("2", b"2", "", NEVER, text(2))]
    outcomes = run(Noting(), rows).outcomes
    assert [outcome[0] for outcome in outcomes] == [False, True]
    assert outcomes[0][1] == "input-error"
