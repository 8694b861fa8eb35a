"""An archive with `continuousBatching` in the executor of a model process."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.torchserve.handlers.continuous import ContinuousHandler
from headrace.response import split_details
from tests.extensions.torchserve.compat.archives import SOURCES
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from workers.model_process.batch_state import ReceivedBatch
from workers.model_process.executor import BatchExecutor
from workers.model_process.generation.continuous import ContinuousExecutor
from workers.model_process.outcomes import Outcome
from workers.protocol.frames import Done, Pieces, RunBatch, Stop

CONFIG = "continuousBatching: true\n"
#: Each request says how it goes on: the word of its criterion after each of its calls.
STEPS = """
from ts.handler_utils.utils import send_intermediate_predict_response as send

def handle(data, context):
    if data is None:
        context.cache = {}
        context.calls = []
        return None
    names = list(context.request_ids.values())
    context.calls.append(names)
    for name, row in zip(names, data):
        if name not in context.cache:
            context.cache[name] = {"asked": row["body"], "n": 0}
    values = []
    for idx, name in enumerate(names):
        one = context.cache[name]
        word = one["asked"]["words"][one["n"]]
        if word == "raise":
            raise ValueError("this request is bad")
        one["n"] += 1
        if word == "send":
            send({idx: f"sent{one['n']} "}, {idx: name}, "", 200, context)
        if one["n"] == 1:
            for key, value in one["asked"].get("headers", {}).items():
                context.set_response_header(idx, key, value)
        if word == "end" and "ends" in one["asked"]:
            context.set_response_header(idx, context.header_key_sequence_end, one["asked"]["ends"])
        bad = {"bad": {1}}
        values.append(bad if word == "bad" else f"{one['n']} ")
    if any(one["asked"].get("lacks") for one in context.cache.values()):
        context.stopping_criteria = [lambda value: True]
    elif any(one["asked"].get("without") for one in context.cache.values()):
        context.stopping_criteria = None
    else:
        context.stopping_criteria = [
            lambda value, one=context.cache[name]: {"go": False, "bad": False, "end": True}.get(
                one["asked"]["words"][one["n"] - 1])
            for name in names
        ]
    return values
"""
Sent = tuple[bytes, str, bytes]


class Frames:
    """An inbox with jobs, and what comes out: `on` is called with each frame that is sent."""

    def __init__(self, on: Callable[[Any], None] = lambda _: None) -> None:
        self.sent: list[Any] = []
        self._on = on
        self._waiting: list[Any] = []
        self.dropped: dict[int, set[int]] = {}

    def put(self, seq: int, sent: Sent) -> None:
        raw, kind, details = sent
        row = [f"job-{seq}", raw, kind, float("inf"), details]
        dropped = self.dropped.setdefault(seq, set())
        self._waiting.append(ReceivedBatch(RunBatch(seq, [row]), dropped))

    def get(self, block: bool = True) -> Any:
        if self._waiting:
            return self._waiting.pop(0)
        if block:
            return Stop()
        raise queue.Empty

    def send(self, frame: Any) -> None:
        self.sent.append(frame)
        self._on(frame)

    def outcome(self, seq: int) -> Outcome:
        (found,) = [
            one.outcomes[0] for one in self.sent if isinstance(one, Done) and one.seq == seq
        ]
        outcome: Outcome = found
        return outcome

    def pieces(self, seq: int) -> list[Any]:
        rows = [row for one in self.sent if isinstance(one, Pieces) for row in one.rows]
        return [piece for row in rows if row[0] == seq for piece in json.loads(row[4])]

    def head(self, seq: int) -> Any:
        rows = [row for one in self.sent if isinstance(one, Pieces) for row in one.rows]
        heads = [row[5] for row in rows if row[0] == seq and row[5]]
        assert len(heads) <= 1
        return json.loads(heads[0]) if heads else None


def served(folder: Path, config: str = CONFIG, slots: int = 2) -> BatchExecutor:
    files = {"service.py": STEPS, "c.yaml": config}
    archive = write_archive(folder, "service", files, configFile="c.yaml")
    return loaded(archive, "service", max_batch_size=slots)


def context_of(executor: BatchExecutor) -> Any:
    assert isinstance(executor.handler, ContinuousHandler)
    return executor.handler._ts


def serve(executor: BatchExecutor, frames: Frames) -> Frames:
    handler: Any = executor.handler
    ContinuousExecutor(executor, handler, frames, frames.send).run()  # type: ignore[arg-type]
    return frames


def steps(*words: str, **more: Any) -> Sent:
    return request({"words": words, **more})


def test_requests_join_and_leave_between_calls(tmp_path: Path) -> None:
    frames, executor = Frames(), served(tmp_path)
    for seq, words in enumerate((("go", "go", "end"), ("end",), ("go", "end")), 1):
        frames.put(seq, steps(*words))
    serve(executor, frames)
    assert context_of(executor).calls == [
        ["job-1", "job-2"], ["job-1", "job-3"], ["job-1", "job-3"],
    ]  # fmt: skip
    assert [json_of(frames.outcome(seq)) for seq in (1, 2, 3)] == ["1 2 3 ", "1 ", "1 2 "]
    assert frames.pieces(1) == ["1 ", "2 ", "3 "]
    assert (frames.pieces(2), frames.head(2)) == ([], None)
    assert frames.head(1) == {"headers": {"ts_stream_next": "true"}}


def test_the_first_call_has_the_headers_of_the_reply(tmp_path: Path) -> None:
    frames, executor = Frames(), served(tmp_path)
    headers = {"content-type": "text/plain", "x-own": "1"}
    frames.put(1, steps("go", "end", headers=headers))
    frames.put(2, steps("end", headers=headers))
    serve(executor, frames)
    assert frames.head(1) == {"headers": {**headers, "ts_stream_next": "true"}}
    for seq, text in ((1, "1 2 "), (2, "1 ")):
        _, body, kind = frames.outcome(seq)
        assert body.decode() == text
        assert kind.startswith("text/plain;x-response=")


@pytest.mark.parametrize(
    ("words", "more", "text", "pieces"),
    [
        (("nothing",), {}, "1 ", []),
        (("go", "nothing", "end"), {}, "1 2 3 ", ["1 ", "2 ", "3 "]),
        (("go",), {"without": 1}, "1 ", []),
        (("send",), {"without": 1}, "sent1 1 ", ["sent1 ", "1 "]),
        (("send", "end"), {}, "sent1 1 2 ", ["sent1 ", "1 ", "2 "]),
    ],
)
def test_a_reply_without_the_word_of_a_criterion(
    tmp_path: Path, words: tuple[str, ...], more: dict[str, Any], text: str, pieces: list[str]
) -> None:
    frames = Frames()
    frames.put(1, steps(*words, **more))
    serve(served(tmp_path), frames)
    assert json_of(frames.outcome(1)) == text
    assert frames.pieces(1) == pieces


def test_a_call_that_raises_ends_its_requests_and_no_others(tmp_path: Path) -> None:
    frames, executor = Frames(), served(tmp_path)
    for seq, words in enumerate((("go", "go", "end"), ("go", "raise"), ("end",)), 1):
        frames.put(seq, steps(*words))
    serve(executor, frames)
    for seq in (1, 2):
        assert frames.outcome(seq)[1:3] == ["handler-error", "ValueError: this request is bad"]
    assert frames.pieces(1) == ["1 "]
    assert json_of(frames.outcome(3)) == "1 "
    assert list(context_of(executor).cache) == ["job-3"]


def test_a_value_that_cannot_be_sent_ends_its_request_alone(tmp_path: Path) -> None:
    frames, executor = Frames(), served(tmp_path)
    frames.put(1, steps("bad", "end"))
    frames.put(2, steps("go", "end"))
    serve(executor, frames)
    assert "a piece of the handler's reply cannot be sent" in frames.outcome(1)[2]
    assert json_of(frames.outcome(2)) == "1 2 "


def test_each_request_needs_a_criterion(tmp_path: Path) -> None:
    frames = Frames()
    frames.put(1, steps("go", lacks=1))
    frames.put(2, steps("go"))
    serve(served(tmp_path), frames)
    assert "context.stopping_criteria has nothing for the request 1" in frames.outcome(2)[2]


def test_a_cancelled_request_leaves_and_its_cache_is_removed(tmp_path: Path) -> None:
    def cancel(frame: Any) -> None:
        if isinstance(frame, Pieces) and frame.rows[0][0] == 1:
            frames.dropped[1].add(0)

    frames, executor = Frames(cancel), served(tmp_path)
    frames.put(1, steps("go", "go", "go", "end"))
    frames.put(2, steps("go", "go", "go", "end"))
    serve(executor, frames)
    assert frames.outcome(1)[1] == "cancelled"
    assert json_of(frames.outcome(2)) == "1 2 3 4 "
    assert frames.pieces(1) == ["1 "]
    assert list(context_of(executor).cache) == ["job-2"]


def test_the_requests_of_one_sequence_join_in_calls_of_their_own(tmp_path: Path) -> None:
    """TorchServe runs twice as many requests with sequences, so that they find room."""
    frames = Frames()
    executor = served(tmp_path, CONFIG + "sequenceBatching: true\n", slots=2)
    for seq, sequence in enumerate(("a", "a", "b"), 1):
        body = msgspec.json.encode({"words": ["go", "end"]})
        sent = request(body, "application/json", headers={"ts_request_sequence_id": sequence})
        frames.put(seq, sent)
    serve(executor, frames)
    calls = [["job-1", "job-3"], ["job-1", "job-2", "job-3"], ["job-2"]]
    assert context_of(executor).calls == calls


def test_the_last_piece_of_a_reply_can_end_its_sequence(tmp_path: Path) -> None:
    frames = Frames()
    executor = served(tmp_path, CONFIG + "sequenceBatching: true\n")
    body = msgspec.json.encode({"words": ["go", "end"], "ends": "a"})
    frames.put(1, request(body, "application/json", headers={"ts_request_sequence_id": "a"}))
    serve(executor, frames)
    details = split_details(str(frames.outcome(1)[2]))[1]
    assert details.headers == {"ts_request_sequence_end": "a"}


def test_an_explanation_has_a_call_of_its_own(tmp_path: Path) -> None:
    frames, executor = Frames(), served(tmp_path)
    frames.put(1, steps("go", "end"))
    explained = request({"words": ["go"]}, parameters={"explain": True})
    frames.put(2, explained)
    serve(executor, frames)
    assert context_of(executor).calls == [["job-2"], ["job-1"], ["job-1"]]
    assert json_of(frames.outcome(2)) == "1 "


def test_without_a_worker_all_requests_run(tmp_path: Path) -> None:
    outcomes = run(served(tmp_path), [steps("go", "end"), steps("raise"), steps("end")])
    assert [outcome[0] for outcome in outcomes] == [False, False, True]
    assert json_of(outcomes[2]) == "1 "
    assert json_of(run(served(tmp_path), [steps("go", "end")])[0]) == "1 2 "


def test_an_archive_without_the_key_is_no_generator(tmp_path: Path) -> None:
    executor = served(tmp_path, "continuousBatching: false\n")
    assert not isinstance(executor.handler, ContinuousHandler)


def test_a_session_stops_its_stream_and_ends(tmp_path: Path) -> None:
    """A handler in the style of TorchServe's example of stateful inference."""
    config = "sequenceBatching: true\nhandler: {cache: {capacity: 2}}\n"
    files = {"session.py": SOURCES["session"].read_text(), "c.yaml": CONFIG + config}
    archive = write_archive(tmp_path, "session", files, configFile="c.yaml")
    frames = Frames()
    for seq, number in enumerate((b"2", b"4", b"3", b"-1", b"0"), 1):
        headers = {"ts_request_sequence_id": "a"}
        frames.put(seq, request(number, "application/octet-stream", headers=headers))
    serve(loaded(archive, "session", max_batch_size=4), frames)
    bodies = [frames.outcome(n)[1] for n in range(1, 6)]
    assert bodies == [b"2", b"6", b"99", b"-1", b"9"]
    assert frames.pieces(3) == [9, 9]
    ended = split_details(str(frames.outcome(5)[2]))[1].headers
    assert ended == {"ts_request_sequence_id": "a", "ts_request_sequence_end": "a"}
