"""An archive's handler in the executor of a model process: rows, headers, results and errors."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from extensions.torchserve.config.settings import TorchServeConfig
from headrace.errors import HandlerError
from headrace.response import ErrorResponse, split_details
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import Outcome

#: Returns what it gets, as text.
SHOWS = """
def handle(data, context):
    return [repr(row) for row in data or ()]
"""
HEADERS = """
def handle(data, context):
    if data is None:
        return None
    get = context.get_request_header
    return [
        {"x": get(n, "X-Tenant"), "all": dict(context.get_all_request_header(n)),
         "sequence": context.get_sequence_id(n), "id": context.get_request_id(n)}
        for n in range(len(data))
    ]
"""


def served(folder: Path, source: str, **options: Any) -> BatchExecutor:
    return loaded(write_archive(folder, "service", {"service.py": source}), "service", **options)


def shown(outcomes: list[Outcome]) -> list[Any]:
    names = {"bytearray": bytearray, "inf": math.inf, "nan": math.nan}
    return [eval(json_of(one), names) for one in outcomes]


def response_of(outcome: Outcome) -> ErrorResponse | None:
    assert not outcome[0]
    return msgspec.json.decode(outcome[5], type=ErrorResponse) if len(outcome) > 5 else None


def test_a_body_has_the_type_that_torchserve_gives_it(tmp_path: Path) -> None:
    outcomes = run(
        served(tmp_path, SHOWS),
        [
            request({"n": [1]}),
            request(b"\x89PNG", "image/png"),
            request(b"text", "text/csv; charset=utf-8"),
            request(b'{"a": 1}', "application/json; charset=utf-8"),
            request(b'{"a": 1}', "application/vnd.api+json"),
            request(b'{"a": ', "application/json"),
            request(b"\xff", "text/plain"),
            request(b"", "application/octet-stream"),
            request(["NaN"]),
            request(b'[1e400, NaN, 1180591620717411303424, "\\ud800"]', "application/json"),
        ],
    )
    assert [row["body"] for row in shown(outcomes)] == [
        {"n": [1]}, bytearray(b"\x89PNG"), "text", {"a": 1}, bytearray(b'{"a": 1}'),
        bytearray(b'{"a": '), bytearray(b"\xff"), bytearray(b""), ["NaN"],
        [math.inf, ANY, 2**70, "\ud800"],
    ]  # fmt: skip


def test_bytes_inside_of_json_stay_json_and_a_binary_input_is_its_bytes(tmp_path: Path) -> None:
    inner = {"content_type": "image/png", "base64": base64.b64encode(b"x").decode()}
    outcomes = run(served(tmp_path, SHOWS), [request({"data": inner}), request(inner)])
    assert shown(outcomes) == [{"body": {"data": inner}}, {"body": bytearray(b"x")}]


def test_a_form_is_a_row_with_its_members(tmp_path: Path) -> None:
    form = {
        "data": (b"\x00", "image/png"), "text": (b"a", "text/plain"), "plain": (b"7", ""),
        "json": (b"[1]", "application/json"), "an odd name": (b"o", "text/plain"),
    }  # fmt: skip
    (found,) = shown(run(served(tmp_path, SHOWS), [request(form=form)]))
    assert found == {
        "data": bytearray(b"\x00"), "text": "a", "plain": bytearray(b"7"), "json": [1],
        "an odd name": "o",
    }  # fmt: skip


def test_nothing_is_decoded_if_the_configuration_says_so(tmp_path: Path) -> None:
    config = TorchServeConfig(decode_input_request=False)
    requests = [
        request(b'{"a" :1}', "application/json"),
        request(b"text", "text/plain"),
        request(form={"json": (b"[1 ]", "application/json")}),
    ]
    assert shown(run(served(tmp_path, SHOWS, config=config), requests)) == [
        {"body": bytearray(b'{"a" :1}')},
        {"body": bytearray(b"text")},
        {"json": bytearray(b"[1 ]")},
    ]


def test_headers_are_found_in_any_case_and_have_the_members_types(tmp_path: Path) -> None:
    executor = served(tmp_path, HEADERS)
    sent = {"x-tenant": "blue", "ts_request_sequence_id": "s1", "url_path": "v1/a"}
    body, form = run(
        executor,
        [
            request(b"x", "image/png; q=1", headers=sent),
            request(form={"data": (b"x", "image/png")}, headers={"X-TENANT": "red"}),
        ],
    )
    assert json_of(body) == {
        "x": "blue", "sequence": "s1", "id": "job-0",
        "all": {**sent, "explain": "False", "body": {"content-type": "image/png"}},
    }  # fmt: skip
    found = json_of(form)
    assert (found["x"], found["id"], found["sequence"]) == ("red", "job-1", None)
    assert found["all"]["data"] == {"content-type": "image/png"}
    assert found["all"]["url_path"] == ""


EXPLAINED = """
from ts.torch_handler.base_handler import BaseHandler

class Explained(BaseHandler):
    def initialize(self, context):
        self.sizes = []

    def preprocess(self, data):
        self.sizes.append(len(data))
        return [row["body"] for row in data]

    def inference(self, data):
        return data

    def postprocess(self, data):
        return [{"answer": one, "sizes": self.sizes} for one in data]

    def get_insights(self, prepared, inputs, target):
        return [{"insight": inputs["x"], "target": target}]

    def describe_handle(self):
        return {"describes": "itself"}
"""


def test_explanations_and_descriptions_run_in_calls_of_their_own(tmp_path: Path) -> None:
    outcomes = run(
        served(tmp_path, EXPLAINED),
        [
            request({"x": 0}),
            request({"x": 1}, headers={"explain": "True"}),
            request({"x": 2}),
            request({"x": 3}, parameters={"explain": True}),
            request({}, headers={"describe": "True"}),
            request({"x": 5}, parameters={"explain": False}, headers={"explain": "False"}),
        ],
    )
    found = [json_of(one) for one in outcomes]
    assert [one.get("answer") for one in found] == [{"x": 0}, None, {"x": 2}, None, None, {"x": 5}]
    assert found[0]["sizes"] == [3]
    assert found[1] == {"insight": 1, "target": 0}
    assert found[3] == {"insight": 3, "target": 0}
    assert found[4] == {"describes": "itself"}


def test_an_explanation_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    good, bad, also_good = run(
        served(tmp_path, EXPLAINED),
        [
            request({"x": 0}),
            request({"y": 1}, headers={"explain": "True"}),
            request({"x": 2}, headers={"explain": "True"}),
        ],
    )
    assert json_of(good)["sizes"] == [1]
    assert bad[1:3] == ["handler-error", "KeyError: 'x'"]
    assert json_of(also_good)["insight"] == 2


SETS = """
def handle(data, context):
    if data is None:
        return None
    for n, row in enumerate(data):
        if row["body"] == "page":
            context.set_response_content_type(n, "text/html")
        if row["body"] == "headers":
            context.set_response_header(n, "dummy", "1")
        if row["body"] == "teapot":
            context.set_response_status(418, "teapot", n)
        if row["body"] == "all":
            context.set_all_response_status(503)
    return [row["body"] for row in data]
"""


def test_each_request_has_a_status_and_headers_of_its_own(tmp_path: Path) -> None:
    executor = served(tmp_path, SETS)
    page, headers, plain, teapot = run(
        executor, [request(word) for word in ("page", "headers", "plain", "teapot")]
    )
    kind, details = split_details(page[2])
    assert (kind, details.headers) == ("text/html", {"content-type": "text/html"})
    assert split_details(headers[2])[1].headers == {"dummy": "1"}
    assert json_of(plain) == "plain"
    assert teapot[1:3] == ["handler-error", "the handler set the status 418 teapot: teapot"]
    assert response_of(teapot) == ErrorResponse(418, {}, b"teapot")
    assert [response_of(one) for one in run(executor, [request("all"), request("x")])] == [
        ErrorResponse(503, {}, b"all"),
        ErrorResponse(503, {}, b"x"),
    ]
    assert json_of(run(executor, [request("again")])[0]) == "again"


RAISES = """
from ts.service import PredictionException

class Mine:
    def initialize(self, context):
        self.batches = []

    def handle(self, data, context):
        words = [row["body"] for row in data]
        self.batches.append(words)
        for word in words:
            if word == "code":
                raise PredictionException("Some Prediction Error", 599)
            if word == "odd code":
                raise PredictionException("odd", "x")
            if word == "memory":
                raise MemoryError("no room")
            if word == "CUDA":
                raise RuntimeError("CUDA error: device-side assert")
            if word == "bad":
                raise ValueError("a bad word")
            if word == "exit":
                raise SystemExit(3)
        return [f"{word} {len(words)}" for word in words]
"""


def test_one_bad_request_of_a_batch_fails_alone(tmp_path: Path) -> None:
    """TorchServe fails the whole batch."""
    executor = served(tmp_path, RAISES)
    outcomes = run(executor, [request(word) for word in ("a", "bad", "c", "code", "e")])
    assert [one[0] for one in outcomes] == [True, False, True, False, True]
    assert outcomes[1][1:4] == ["handler-error", "ValueError: a bad word", False]
    assert "service.py" in outcomes[1][4]
    assert response_of(outcomes[1]) is None
    assert response_of(outcomes[3]) == ErrorResponse(599)
    assert outcomes[3][2] == "Some Prediction Error"


@pytest.mark.parametrize(
    ("word", "code", "status"),
    [("memory", "out-of-memory", 0), ("CUDA", "handler-error", 507), ("odd code", "handler-error",
     500), ("exit", "handler-error", 0)],
)  # fmt: skip
def test_an_exception_has_the_status_of_torchserve(
    tmp_path: Path, word: str, code: str, status: int
) -> None:
    executor = served(tmp_path, RAISES)
    bad, good = run(executor, [request(word), request("good")])
    assert bad[1] == code
    response = response_of(bad)
    assert (response.status if response else 0) == status
    assert json_of(good) == "good 1"


@pytest.mark.parametrize(("device", "gpu"), [("cpu", None), ("cuda", 0), ("cuda:3", 3)])
def test_the_gpu_has_the_number_of_the_device(tmp_path: Path, device: str, gpu: int | None) -> None:
    source = """
def handle(data, context):
    return [context.system_properties for _ in data or ()]
"""
    (found,) = run(served(tmp_path, source, device=device), [request(1)])
    properties = json_of(found)
    assert properties == {
        "model_dir": str(tmp_path), "gpu_id": gpu, "batch_size": 8, "server_name": "MMS",
        "server_version": "0.12.0", "limit_max_image_pixels": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "message"),
    [("None", "not NoneType"), ("'text'", "not str"), ("(1, 2)", "not tuple"),
     ("[1]", "it returned 1 for 2"), ("[1, 2, 3]", "it returned 3 for 2")],
)  # fmt: skip
def test_what_is_no_list_of_the_batch_is_an_error(
    tmp_path: Path, result: str, message: str
) -> None:
    source = f"def handle(data, context):\n    return {result} if data and data[1:] else data\n"
    executor = served(tmp_path, source)
    executor.context.request_ids = ["job-0", "job-1"]
    with pytest.raises(HandlerError, match=message):
        executor.handler.inference([b"1", b"2"])


def test_a_value_that_cannot_be_sent_fails_alone(tmp_path: Path) -> None:
    source = "import numpy\ndef handle(data, context):\n    return [numpy.ones(1), 2]\n"
    bad, good = run(served(tmp_path, source), [request(1), request(2)])
    assert "the handler's result cannot be sent" in bad[2]
    assert json_of(good) == 2


def test_pieces_are_joined_before_the_last_one(tmp_path: Path) -> None:
    source = """
from ts.handler_utils.utils import send_intermediate_predict_response as send
from ts.protocol import otf_message_handler

def handle(data, context):
    if data is None:
        return None
    send([f"a{n} " for n in range(len(data))], context.request_ids, "ok", 200, context)
    old = otf_message_handler.send_intermediate_predict_response
    old(["b "] * len(data), context.request_ids, "ok", 200, context)
    return ["c"] * len(data)
"""
    executor = served(tmp_path, source)
    for _ in range(2):
        with pytest.warns(PendingDeprecationWarning):
            found = run(executor, [request(1), request(2)])
        assert [json_of(one) for one in found] == ["a0 b c", "a1 b c"]


def test_pieces_go_to_the_log_of_the_request_whose_id_they_have(tmp_path: Path) -> None:
    source = """
from ts.handler_utils.utils import send_intermediate_predict_response as send

def handle(data, context):
    if data is None:
        return None
    names = context.request_ids
    context.set_response_header(1, "x-own", "1")
    send(["one "], {0: names[0]}, "ok", 200, context)
    send(["", b"\\xff"], {1: names[1]}, "ok", 200, context)
    send(["gone"], {0: "another"}, "ok", 200, context)
    return ["two", ""]
"""
    executor = served(tmp_path, source)
    rows: list[Any] = []
    executor.send_pieces_to(rows.extend)
    one, other = run(executor, [request(1), request(2)])
    assert json_of(one) == "one two"
    assert other[2].startswith("application/octet-stream;x-response=")
    binary = {"content_type": "application/octet-stream", "base64": "/w=="}
    next_ = {"ts_stream_next": "true"}
    assert [(row[1], json.loads(row[4]), row[5] and json.loads(row[5])) for row in rows] == [
        ("job-0", ["one "], {"headers": next_}),
        ("job-1", [binary], {"headers": {"x-own": "1", **next_}}),
        ("job-0", ["two"], b""),
    ]


def test_a_piece_that_cannot_be_sent_fails_its_call(tmp_path: Path) -> None:
    source = """
from ts.handler_utils.utils import send_intermediate_predict_response as send

def handle(data, context):
    if data is None:
        return None
    send([{1, 2}], context.request_ids, "ok", 200, context)
    return ["two"]
"""
    (found,) = run(served(tmp_path, source), [request(1)])
    assert "a piece of the handler's reply cannot be sent" in found[2]


def test_a_coroutine_function_runs_to_its_end(tmp_path: Path) -> None:
    source = """
import asyncio

class Mine:
    def initialize(self, context):
        self.lock = asyncio.Lock()

    async def handle(self, data, context):
        async with self.lock:
            await asyncio.sleep(0)
        return [row["body"] for row in data]
"""
    executor = served(tmp_path, source)
    for word in ("a", "b"):
        assert json_of(run(executor, [request(word)])[0]) == word


METRICS = """
from ts.metrics.dimension import Dimension

class Mine:
    def initialize(self, context):
        context.metrics.add_counter("Loads", 1)

    def handle(self, data, context):
        context.metrics.add_counter("Words", 2, 1, [Dimension("Kind", "short")])
        return [1] * len(data)
"""


def test_metrics_come_as_rows_at_the_end_of_the_batch(tmp_path: Path) -> None:
    executor = served(tmp_path, METRICS)
    sent: list[Any] = []
    executor.handler.send_metrics_to(sent.append)  # type: ignore[attr-defined]
    run(executor, [request(1), request(2)])
    (rows,) = sent
    own = [["ModelName", "m"], ["Level", "Model"]]
    assert json.loads(json.dumps(rows[0])) == [
        "Words", "Count", "counter", 2.0, [["Kind", "short"], *own], ["job-1"],
    ]  # fmt: skip
    name, unit, kind, value, dimensions, ids = rows[1]
    assert (name, unit, kind, ids) == (
        "PredictionTime",
        "Milliseconds",
        "gauge",
        ["job-0", "job-1"],
    )
    assert dimensions == own
    assert value >= 0


def test_the_configuration_reaches_the_handlers_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "s")
    monkeypatch.setenv("MY_OTHER", "o")
    config = TorchServeConfig(
        blacklist_env_vars="MY_SEC.*", limit_max_image_pixels=False, ts_header_key_sequence_id="sid"
    )
    source = """
import os
def handle(data, context):
    return [[os.environ.get("MY_SECRET"), os.environ.get("MY_OTHER"), context.get_sequence_id(0),
             context.system_properties["limit_max_image_pixels"]] for _ in data or ()]
"""
    executor = served(tmp_path, source, config=config)
    found = run(executor, [request(1, headers={"sid": "seven"})])
    assert json_of(found[0]) == [None, "o", "seven", False]


def test_the_configuration_is_read_from_the_file_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.properties"
    file.write_text("service_envelope=body\n")
    monkeypatch.setenv("HEADRACE_TORCHSERVE", str(file))
    executor = served(tmp_path / "model", "def handle(data, context):\n    return data or []\n")
    assert json_of(run(executor, [request({"a": 1})])[0]) == {"a": 1}
