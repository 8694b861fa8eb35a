from __future__ import annotations

import json
import math
import time
import weakref
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from headrace.errors import InputError, TransientError
from headrace.handler import Context, Handler, Response
from headrace.jobs.values.value_check import ValueCheck
from workers.model_process.batch_state import BatchState, StageTimes, SubBatch
from workers.model_process.context import Input
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import encode_result


def run(handler: Handler, inputs: list[Any]) -> list[list[Any]]:
    context = Context("m", "1.0", "cpu", Path())
    handler.initialize(context)
    raw = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in inputs]
    state = BatchExecutor(handler, context).run([(f"id{n}", item) for n, item in enumerate(raw)])
    assert len(state.outcomes) == len(inputs)
    return state.outcomes


class Inverse(Handler):
    """Raises for its whole batch when one input is 0; counts what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def inference(self, items: list[int]) -> list[float]:
        self.batches.append(items)
        return [1 / item for item in items]


def test_one_bad_input_fails_alone() -> None:
    handler = Inverse()
    outcomes = run(handler, [1, 2, 0, 4, 5, 6, 7, 8])
    assert [outcome[0] for outcome in outcomes] == [True, True, False, True, True, True, True, True]
    assert json.loads(outcomes[1][1]) == 0.5
    _, code, message, retryable, traceback = outcomes[2]
    assert (code, retryable) == ("handler-error", False)
    assert "ZeroDivisionError" in message
    assert "1 / item" in traceback
    assert len(handler.batches) <= 7  # bisection, not one by one


def test_an_error_at_a_position_fails_that_one_without_running_it() -> None:
    class Picky(Inverse):
        def preprocess(self, inputs: list[Any]) -> list[Any]:
            return [InputError("zero has no inverse") if item == 0 else item for item in inputs]

    handler = Picky()
    outcomes = run(handler, [1, 0, 2])
    assert outcomes[1][1:4] == ["input-error", "zero has no inverse", False]
    assert handler.batches == [[1, 2]]


def padded(handler: Handler, inputs: list[Any], allowed: list[int]) -> tuple[list[Any], int]:
    context = Context("m", "1.0", "cpu", Path(), allowed_batch_sizes=allowed)
    handler.initialize(context)
    raw = [(f"id{n}", json.dumps(item).encode()) for n, item in enumerate(inputs)]
    state = BatchExecutor(handler, context).run(raw)
    outcomes, times = state.outcomes, state.times
    assert len(outcomes) == len(inputs)
    return [json.loads(outcome[1]) if outcome[0] else outcome[1] for outcome in outcomes], (
        times.padding
    )


@pytest.mark.parametrize(
    ("inputs", "ran", "padding"),
    [([2], [2], 0), ([2, 4], [2, 4, 4, 4], 2), ([2, 4, 5, 8], [2, 4, 5, 8], 0)],
)
def test_a_batch_is_filled_up_to_the_next_allowed_size(
    inputs: list[int], ran: list[int], padding: int
) -> None:
    handler = Inverse()
    assert padded(handler, inputs, [1, 4, 8]) == ([1 / item for item in inputs], padding)
    assert handler.batches == [ran]


def test_a_bad_batch_is_split_into_parts_of_allowed_sizes() -> None:
    handler = Inverse()
    results, padding = padded(handler, [1, 2, 0, 4, 5], [4, 8])
    assert results == [1.0, 0.5, "handler-error", 0.25, 0.2]
    assert {len(batch) for batch in handler.batches} == {4, 8}
    assert padding == sum(map(len, handler.batches)) - (5 + 2 + 3 + 1 + 2)


def test_what_preprocess_refused_is_no_padding() -> None:
    class Picky(Inverse):
        def preprocess(self, inputs: list[Any]) -> list[Any]:
            return [InputError("no") if item < 0 else item for item in inputs]

    handler = Picky()
    assert padded(handler, [1, -1, -1, 2, -1], [4, 8]) == (
        [1.0, "input-error", "input-error", 0.5, "input-error"],
        2,
    )
    assert handler.batches == [[1, 2, 2, 2]]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_a_batch_that_is_a_tensor_or_an_array_is_filled_up_too(make: Any) -> None:
    class Rows(Handler):
        def preprocess(self, inputs: list[Any]) -> Any:
            return make(inputs)

        def inference(self, items: Any) -> Any:
            assert isinstance(items, type(make([1])))
            assert tuple(items.shape) == (4, 2)
            return items.sum(1)

    assert padded(Rows(), [[1, 2], [3, 4], [5, 6]], [4]) == ([3, 7, 11], 1)


def test_all_inputs_bad_never_reach_the_model() -> None:
    class Never(Inverse):
        def preprocess(self, inputs: list[Any]) -> list[Any]:
            return [InputError("no") for _ in inputs]

    handler = Never()
    assert [outcome[1] for outcome in run(handler, [1, 2])] == ["input-error"] * 2
    assert handler.batches == []


def test_errors_keep_their_type_and_whether_a_retry_can_help() -> None:
    class Away(Handler):
        def inference(self, items: Any) -> Any:
            raise TransientError("the tokenizer service is away")

    assert run(Away(), [1])[0][1:4] == ["transient-error", "the tokenizer service is away", True]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), MemoryError("no memory")])
def test_out_of_memory_is_known_by_its_class(error: Exception) -> None:
    class Full(Handler):
        def inference(self, items: Any) -> Any:
            raise error

    assert run(Full(), [1])[0][1] == "out-of-memory"


@pytest.mark.parametrize(
    ("verb", "value", "says"),
    [
        ("preprocess", [1], "preprocess returned 1 values for 2 inputs"),
        ("preprocess", 5, "preprocess returned int, not a list of 2"),
        ("postprocess", [], "postprocess returned 0 values for 2 inputs"),
    ],
)
def test_a_verb_that_loses_count_is_named(verb: str, value: Any, says: str) -> None:
    handler = Handler()
    handler.context = Context("m", "1.0", "cpu", Path())
    setattr(handler, verb, lambda _values: value)
    executor = BatchExecutor(handler, handler.context)
    inputs: list[Input] = [
        ("a", 1, "application/json", None),
        ("b", 2, "application/json", None),
    ]
    with pytest.raises(Exception, match=says):
        executor.verbs(SubBatch(inputs, StageTimes()))


def test_what_is_no_json_is_a_bad_input() -> None:
    outcomes = run(Handler(), [b"{", b"[1]", b'{"content_type":"image/png","base64":"!"}'])
    assert [outcome[0] for outcome in outcomes] == [False, True, False]
    assert outcomes[0][1] == outcomes[2][1] == "input-error"


def test_ids_and_content_types_stand_in_the_context() -> None:
    class Seen(Handler):
        def inference(self, items: Any) -> Any:
            return [
                list(pair)
                for pair in zip(self.context.request_ids, self.context.content_types, strict=True)
            ]

    outcomes = run(Seen(), [1, b'{"content_type":"text/plain","base64":"aGk="}'])
    assert [json.loads(outcome[1]) for outcome in outcomes] == [
        ["id0", "application/json"], ["id1", "text/plain"],
    ]  # fmt: skip


def test_a_tensor_passes_whole_through_the_verbs() -> None:
    class Doubles(Handler):
        def preprocess(self, inputs: list[Any]) -> Any:
            return torch.tensor(inputs)

        def inference(self, items: Any) -> Any:
            assert isinstance(items, torch.Tensor)
            return items * 2

    assert [json.loads(outcome[1]) for outcome in run(Doubles(), [1, 2])] == [2, 4]


def test_results_on_the_wire() -> None:
    assert encode_result({"a": np.float32(0.5), "b": np.arange(2), "c": torch.ones(1)})[1] == (
        b'{"a":0.5,"b":[0,1],"c":[1.0]}'
    )
    assert encode_result(b"\xff") == [True, b"\xff", "application/octet-stream"]
    assert encode_result(Response(b"x", "image/png"))[2] == "image/png"
    assert encode_result(Response(b"x", ""))[2] == "application/octet-stream"


def test_json_that_others_wrote_is_json_for_every_reader() -> None:
    """msgspec passes a Raw on unread, and Python's json writes NaN, which JSON does not have."""
    foreign = json.dumps([math.nan, -math.inf, "NaN"]).encode()
    for result, text in (
        (msgspec.Raw(foreign), b'[null,null,"NaN"]'),
        (msgspec.Raw(b' {"x": 1.50}'), b' {"x": 1.50}'),
        ({"a": [msgspec.Raw(foreign)]}, b'{"a":[[null,null,"NaN"]]}'),
        ({"a": math.nan, "b": [np.inf, torch.tensor(math.nan)]}, b'{"a":null,"b":[null,null]}'),
    ):
        assert encode_result(result) == [True, text, ""]


@pytest.mark.parametrize("text", [b"", b"{", b"nan", b'"\xff"', b"[1] 2", b"[" * 100_000])
def test_what_is_no_json_fails_its_own_item_alone(text: bytes) -> None:
    class Passes(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            return [msgspec.Raw(text) if item == 1 else item for item in items]

    class PassesInside(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            return [[{"x": msgspec.Raw(text)}] if item == 1 else item for item in items]

    for handler in (Passes(), PassesInside()):
        bad, good = run(handler, [1, 2])
        assert bad[:2] == [False, "handler-error"]
        assert bad[2].startswith("the result cannot be sent: its msgspec.Raw is not JSON: ")
        assert good == [True, b"2", ""]


def test_a_response_of_text_is_an_error_and_not_read_as_base64() -> None:
    class Page(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            return [Response(item, "text/html") for item in items]

    (outcome,) = run(Page(), ["page"])
    assert outcome[:2] == [False, "handler-error"]
    assert outcome[2] == "the result cannot be sent: a Response's body must be bytes, not str"
    with pytest.raises(TypeError, match="object is not a JSON value"):
        encode_result(object())


def test_a_result_that_json_cannot_say_fails_alone() -> None:
    class Mixed(Handler):
        def inference(self, items: Any) -> Any:
            return [object() if item == 2 else item for item in items]

    assert [outcome[0] for outcome in run(Mixed(), [1, 2, 3])] == [True, False, True]


class Roomy(Handler):
    """Has memory for so many items at a time; an item that says so is too large by itself."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.batches: list[int] = []

    def inference(self, items: list[Any]) -> list[Any]:
        self.batches.append(len(items))
        if len(items) > self.room or "huge" in items:
            raise torch.OutOfMemoryError(f"no room for {len(items)}")
        return items


def worked(handler: Handler, inputs: list[Any]) -> BatchState:
    context = Context("m", "1.0", "cpu", Path())
    handler.initialize(context)
    return BatchExecutor(handler, context).run(
        [(f"id{n}", json.dumps(item).encode()) for n, item in enumerate(inputs)]
    )


def test_out_of_memory_halves_the_batch_and_tells_the_size_that_fits() -> None:
    handler = Roomy(5)
    state = worked(handler, list(range(16)))
    assert [outcome[:2] for outcome in state.outcomes] == [
        [True, str(n).encode()] for n in range(16)
    ]
    assert handler.batches == [16, 8, 4, 4, 8, 4, 4]
    assert state.fits == 4


def test_one_input_that_is_too_large_alone_does_not_make_the_batches_smaller() -> None:
    state = worked(Roomy(16), [1, 2, "huge", 4, 5, 6, 7, 8])
    codes = [outcome[1] for outcome in state.outcomes if not outcome[0]]
    assert codes == ["out-of-memory"]
    assert state.fits == 0


def test_a_batch_that_fits_tells_nothing() -> None:
    assert worked(Roomy(16), [1, 2, 3]).fits == 0


def test_what_a_failed_attempt_held_is_free_before_the_next() -> None:
    class Held:
        pass

    seen: list[weakref.ref[Held]] = []
    alive: list[int] = []

    class Holds(Handler):
        def inference(self, items: list[Any]) -> list[Any]:
            alive.append(sum(ref() is not None for ref in seen))
            held = Held()
            seen.append(weakref.ref(held))
            if len(items) > 1:
                raise MemoryError
            return items

    worked(Holds(), [1, 2, 3, 4])
    assert alive == [0] * 7


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 800000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_memory_errors_without_a_class_are_known_by_their_words(message: str) -> None:
    class Full(Handler):
        def inference(self, items: Any) -> Any:
            raise RuntimeError(message)

    assert run(Full(), [1])[0][1] == "out-of-memory"


def test_torchs_cpu_allocator_is_understood() -> None:
    class Full(Handler):
        def inference(self, items: Any) -> Any:
            return torch.empty(1 << 50)

    assert run(Full(), [1])[0][1] == "out-of-memory"


class Typed(Handler):
    """Returns what its input names."""

    def inference(self, items: list[str]) -> list[Any]:
        results = {
            "number": 7,
            "text": "seven",
            "bytes": b"7",
            "json": Response(b"7", "application/json"),
            "no json": Response(b"{", "application/json"),
            "no text": Response(b"\xff", "text/plain"),
            "nan": float("nan"),
        }
        return [results[item] for item in items]


def test_enforced_outputs_fail_one_result_each() -> None:
    check = ValueCheck({"type": "integer"}, ["application/octet-stream"])
    executor = BatchExecutor(Typed(), Context("m", "1.0", "cpu", Path()), output_check=check)
    names = ["number", "text", "bytes", "json", "no json", "no text", "nan"]
    outcomes = executor.run([(name, json.dumps(name).encode()) for name in names]).outcomes
    fits = [outcome[0] for outcome in outcomes]
    assert fits == [True, False, True, True, False, False, False]
    assert {outcome[1] for outcome in outcomes if not outcome[0]} == {"handler-error"}
    assert outcomes[1][2].startswith("the result does not fit the outputs: the value is not of")
    assert outcomes[4][2].startswith("the result does not have its type: ")


def test_an_input_that_does_not_fit_reaches_no_verb() -> None:
    handler = Inverse()
    check = ValueCheck({"type": "integer", "minimum": 1})
    executor = BatchExecutor(handler, Context("m", "1.0", "cpu", Path()), input_check=check)
    texts = [b"1", b"0", b"NaN", b"{", b"2"]
    outcomes = executor.run([(str(n), text) for n, text in enumerate(texts)]).outcomes
    assert [outcome[0] for outcome in outcomes] == [True, False, False, False, True]
    assert {outcome[1] for outcome in outcomes if not outcome[0]} == {"input-error"}
    assert handler.batches == [[1, 2]]


class Pair(NamedTuple):
    """Not a row for each of two items."""

    scores: list[int]
    labels: list[int]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"a": 1, "b": 2}, "dict"), (OrderedDict(a=1, b=2), "OrderedDict"), ("ab", "str"),
        (b"ab", "bytes"), (bytearray(b"ab"), "bytearray"), (memoryview(b"ab"), "memoryview"),
        ({1, 2}, "set"), (frozenset({1, 2}), "frozenset"), ({1: 2, 3: 4}.values(), "dict_values"),
        (iter([1, 2]), "list_iterator"), (Pair([1], [2]), "Pair"), (time.gmtime(), "struct_time"),
        (torch.tensor([[1, 2], [3, 4]]).max(dim=1), "max"), (torch.tensor(1), "Tensor"),
        (None, "NoneType"), (7, "int"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["preprocess", "inference", "postprocess"])
def test_what_is_no_list_is_refused_by_name(verb: str, values: Any, name: str) -> None:
    handler = type("Own", (Handler,), {verb: lambda self, items: values})()
    for outcome in run(handler, [1, 2]):
        assert outcome[1] == "handler-error"
        assert outcome[2].startswith(f"{verb} returned {name}, not a list of ")


@pytest.mark.parametrize(
    "values",
    [[1, 2], (1, 2), deque([1, 2]), range(1, 3), np.array([1, 2]), torch.tensor([1, 2])],
)
def test_lists_and_arrays_of_all_kinds_are_results(values: Any) -> None:
    handler = type("Own", (Handler,), {"inference": lambda self, items: values})()
    assert [json.loads(outcome[1]) for outcome in run(handler, [0, 0])] == [1, 2]


@pytest.mark.parametrize("step", [{"a": 1, "b": 2}, "ab", {1, 2}])
def test_a_step_of_a_stream_is_a_list_too(step: Any) -> None:
    class Streams(Handler):
        def inference(self, items: Any) -> Any:
            yield step

    for outcome in run(Streams(), [1, 2]):
        assert "a step of inference returned " in outcome[2]


def test_a_coroutine_is_no_output() -> None:
    async def later(items: Any) -> Any:
        return items

    handler = type("Own", (Handler,), {"inference": lambda self, items: later(items)})()
    with pytest.warns(RuntimeWarning, match="never awaited"):
        (outcome,) = run(handler, [1])
    assert outcome[2] == "inference returned a coroutine; define it with def"
