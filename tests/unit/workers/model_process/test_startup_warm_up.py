from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, HandlerError, InputError
from headrace.handler import Context, Handler
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import warm_up


class Counts(Handler):
    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.seen: list[list[Any]] = []

    def example_input(self) -> Any:
        return {"x": 1}

    def inference(self, items: list[Any]) -> list[Any]:
        self.seen.append(items)
        if len(items) > self.room:
            raise MemoryError(f"{len(items)} items")
        return items


def warmed(handler: Handler, max_batch_size: int = 8, allowed: Sequence[int] = ()) -> int:
    context = Context(
        "m", "1.0", "cpu", Path(), max_batch_size=max_batch_size, allowed_batch_sizes=list(allowed)
    )
    handler.initialize(context)
    return warm_up(BatchExecutor(handler, context))


def test_the_example_runs_alone_and_as_a_full_batch() -> None:
    handler = Counts()
    assert warmed(handler) == 0
    assert handler.seen == [[{"x": 1}], [{"x": 1}] * 8]


def test_without_an_example_nothing_runs() -> None:
    class Without(Counts):
        def example_input(self) -> Any:
            return None

    handler = Without()
    assert warmed(handler) == 0
    assert handler.seen == []


def test_an_attribute_will_do_and_bytes_arrive_as_bytes() -> None:
    class Attribute:
        example_input = b"\x00\xff"

        def initialize(self, context: Context) -> None:
            self.seen: list[Any] = []

        def preprocess(self, inputs: list[Any]) -> list[Any]:
            self.seen += inputs
            return inputs

        def inference(self, items: Any) -> Any:
            return items

        def postprocess(self, outputs: Any) -> Any:
            return outputs

    handler: Any = Attribute()
    warmed(handler, 2)
    assert handler.seen == [b"\x00\xff"] * 3


def test_a_full_batch_that_does_not_fit_gives_the_size_that_does() -> None:
    handler = Counts(room=3)
    assert warmed(handler, 16) == 2
    assert [len(items) for items in handler.seen] == [1, 16, 8, 4, 2]


def test_each_allowed_size_runs_as_far_as_memory_has_room() -> None:
    handler = Counts()
    assert warmed(handler, 16, [4, 8, 16]) == 0
    assert [len(items) for items in handler.seen] == [4, 4, 8, 16]
    assert warmed(Counts(room=9), 16, [4, 8, 16]) == 8


def test_one_that_does_not_fit_at_all_is_a_failed_load() -> None:
    with pytest.raises(MemoryError):
        warmed(Counts(room=0))


def test_what_a_verb_raises_is_raised() -> None:
    class Broken(Counts):
        def postprocess(self, outputs: Any) -> list[Any]:
            raise KeyError("boxes")

    with pytest.raises(KeyError, match="boxes"):
        warmed(Broken())


def test_an_error_in_the_place_of_the_result_is_one_too() -> None:
    class Refuses(Counts):
        def preprocess(self, inputs: list[Any]) -> list[Any]:
            return [InputError("send an image") for _ in inputs]

    with pytest.raises(
        HandlerError, match="the result for example_input is an error: InputError: send an im"
    ):
        warmed(Refuses())


def test_a_result_that_cannot_be_sent_is_one_too() -> None:
    class Odd(Counts):
        def postprocess(self, outputs: Any) -> list[Any]:
            return [object() for _ in outputs]

    with pytest.raises(HandlerError, match="the result for example_input cannot be sent: "):
        warmed(Odd())


def test_an_example_that_no_client_can_send_is_named() -> None:
    class Odd(Counts):
        def example_input(self) -> Any:
            return object()

    with pytest.raises(ConfigError, match="example_input is not a valid input"):
        warmed(Odd())
