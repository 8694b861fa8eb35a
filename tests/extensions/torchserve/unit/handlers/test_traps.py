"""What handlers of real archives count on, one test for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import ConfigError
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from tests.harness.programs import Scaled

MICRO = """
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler

class Micro(BaseHandler):
    def __init__(self):
        self.handle = MicroBatching(self)

    def initialize(self, ctx):
        super().initialize(ctx)
        config = ctx.model_yaml_config["micro_batching"]
        self.handle.parallelism = config["parallelism"]
        self.handle.micro_batch_size = config["micro_batch_size"]

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, data):
        return [[one, self.model is not None] for one in data]

    def postprocess(self, data):
        return data
"""
MODEL = (
    "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(1, 1)\n"
)


def answers(folder: Path, source: str, requests: list[Any], **files: Any) -> list[Any]:
    model = files.pop("model", {})
    write_archive(folder, "service", {"service.py": source, **files}, **model)
    return [json_of(one) for one in run(loaded(folder, "service"), requests)]


def test_1_a_class_need_not_call_the_constructor_of_its_base(tmp_path: Path) -> None:
    config = "micro_batching: {micro_batch_size: 2, parallelism: {inference: 2}}\n"
    files = {"model.py": MODEL, "c.yaml": config}
    found = answers(
        tmp_path, MICRO, [request(n) for n in range(5)], **files,
        model={"modelFile": "model.py", "configFile": "c.yaml"},
    )  # fmt: skip
    assert found == [[n, True] for n in range(5)]


def test_2_handle_is_what_the_constructor_has_set(tmp_path: Path) -> None:
    source = """
class Mine:
    def __init__(self):
        self.handle = lambda data, context: ["of the instance"] * len(data)

    def initialize(self, context):
        pass

    def handle(self, data, context):
        return ["of the class"] * len(data)
"""
    assert answers(tmp_path, source, [request(1)]) == ["of the instance"]


def test_3_the_folder_of_the_archive_is_the_current_one(tmp_path: Path) -> None:
    source = """
import os, pathlib
AT_IMPORT = pathlib.Path("words.txt").read_text()

class Mine:
    def initialize(self, context):
        folder = context.system_properties.get("model_dir")
        self.files = [name for name in os.listdir(folder) if os.path.isfile(name)]

    def handle(self, data, context):
        return [[AT_IMPORT, "words.txt" in self.files]] * len(data)
"""
    assert answers(tmp_path, source, [request(1)], **{"words.txt": "some"}) == [["some", True]]


def test_4_one_context_lasts_and_takes_attributes(tmp_path: Path) -> None:
    source = """
class Mine:
    def initialize(self, ctx):
        self.context = ctx
        ctx.cache = {}

    def handle(self, data, context):
        assert context is self.context
        for n in context.request_ids.values():
            self.context.cache[n] = self.context.cache.get(n, 0) + 1
        return [dict(self.context.cache)] * len(data)
"""
    write_archive(tmp_path, "service", {"service.py": source})
    executor = loaded(tmp_path, "service")
    run(executor, [request(1)])
    assert json_of(run(executor, [request(1)])[0]) == {"job-0": 2}


def test_5_the_archives_modules_are_found_by_name(tmp_path: Path) -> None:
    source = """
import importlib
from ts.utils.util import list_classes_from_module

def handle(data, context):
    classes = list_classes_from_module(importlib.import_module("model"))
    return [[one.__name__ for one in classes]] * len(data or ())
"""
    assert answers(tmp_path, source, [request(1)], **{"model.py": MODEL}) == [["Net"]]


def test_6_the_configuration_is_a_plain_mapping(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    config = context.model_yaml_config
    try:
        config["handler"]
    except KeyError:
        return [[config, type(config) is dict]] * len(data or ())
"""
    config = "minWorkers: 1\nown: {kept: [1, 2.5, yes, null]}\n"
    found = answers(
        tmp_path, source, [request(1)], **{"c.yaml": config}, model={"configFile": "c.yaml"}
    )
    assert found == [[{"minWorkers": 1, "own": {"kept": [1, 2.5, True, None]}}, True]]


def test_7_prints_go_to_the_output_of_the_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "def handle(data, context):\n    print('loading' if data is None else 'running')\n"
    write_archive(tmp_path, "service", {"service.py": source})
    executor = loaded(tmp_path, "service")
    run(executor, [request(1)])
    assert capfd.readouterr().out == "loading\nrunning\n"


def test_8_bytes_have_the_methods_of_bytearray_and_text_is_text(tmp_path: Path) -> None:
    source = """
def value(body):
    return int(body.decode() if isinstance(body, (bytes, bytearray)) else body)

def handle(data, context):
    rows = [row["body"] for row in data or ()]
    return [[type(one).__name__, len(one), value(one)] for one in rows]
"""
    requests = [request(b"12", "application/octet-stream"), request(b"345", "text/plain")]
    assert answers(tmp_path, source, requests) == [["bytearray", 2, 12], ["str", 3, 345]]


def test_9_the_ids_are_in_the_order_of_the_data(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    if data is None:
        return None
    ids = context.request_ids
    assert list(ids) == list(range(len(data)))
    return [[row["body"], name] for row, name in zip(data, ids.values())]
"""
    found = answers(tmp_path, source, [request(n) for n in range(3)])
    assert found == [[0, "job-0"], [1, "job-1"], [2, "job-2"]]


def test_10_results_of_each_type(tmp_path: Path) -> None:
    source = """
import torch

RESULTS = [b"bytes", "text", {"a": [1]}, torch.ones(1), ("a", ("b",)), [[1], []]]

def handle(data, context):
    return [RESULTS[row["body"]] for row in data or ()]
"""
    write_archive(tmp_path, "service", {"service.py": source})
    outcomes = run(loaded(tmp_path, "service"), [request(n) for n in range(6)])
    assert all(one[0] for one in outcomes)
    assert [one[2] for one in outcomes] == [
        "application/octet-stream", "", "", "application/octet-stream", "", "",
    ]  # fmt: skip
    read = [json.loads(outcomes[n][1]) for n in (1, 2, 4, 5)]
    assert read == ["text", {"a": [1]}, ["a", ["b"]], [[1], []]]


LOADS = """
import torch

class Mine:
    def initialize(self, context):
        self.value = torch.load("vocab.pt")

    def handle(self, data, context):
        return [type(self.value).__name__] * len(data)
"""


def test_11_pickled_files_load_by_the_operators_option_alone(tmp_path: Path) -> None:
    write_archive(tmp_path, "service", {"service.py": LOADS})
    torch.save(Scaled(), tmp_path / "vocab.pt")
    with pytest.raises(ConfigError, match="more than weights: Weights only load") as caught:
        loaded(tmp_path, "service")
    assert "set `weights_only: false`" in caught.value.hint
    with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        executor = loaded(tmp_path, "service", weights_only=False)
    assert json_of(run(executor, [request(1)])[0]) == "Scaled"


def test_12_names_of_the_base_handlers_module_are_there(tmp_path: Path) -> None:
    source = """
from ts.torch_handler.base_handler import (
    IPEX_AVAILABLE, ONNX_AVAILABLE, PROFILER_AVAILABLE, PT230_AVAILABLE, PT2_AVAILABLE,
    XLA_AVAILABLE, BaseHandler, ipex, setup_ort_session,
)

def handle(data, context):
    return [[PROFILER_AVAILABLE, PT2_AVAILABLE, PT230_AVAILABLE]] * len(data or ())
"""
    assert answers(tmp_path, source, [request(1)]) == [[True, True, True]]


def test_13_the_sequence_of_the_request_goes_into_the_response(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    for n, _ in enumerate(data or ()):
        key = context.header_key_sequence_id
        context.set_response_header(n, key, context.get_sequence_id(n))
    return [1] * len(data or ())
"""
    write_archive(tmp_path, "service", {"service.py": source})
    sent = request(1, headers={"ts_request_sequence_id": "s-7"})
    (found,) = run(loaded(tmp_path, "service"), [sent])
    from headrace.response import split_details

    assert split_details(found[2])[1].headers == {"ts_request_sequence_id": "s-7"}


def test_14_explain_is_the_text_true(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    return [context.get_request_header(n, "explain") for n, _ in enumerate(data or ())]
"""
    requests = [request(1), request(1, parameters={"explain": True})]
    assert answers(tmp_path, source, requests) == ["False", "True"]


def test_15_parsed_json_is_no_text_for_literal_eval(tmp_path: Path) -> None:
    source = """
import ast

def handle(data, context):
    return [ast.literal_eval(row["body"]) for row in data or ()]
"""
    write_archive(tmp_path, "service", {"service.py": source})
    executor = loaded(tmp_path, "service")
    bad, good = run(executor, [request({"a": 1}), request(b"{'a': 1}", "text/plain")])
    assert bad[1] == "handler-error"
    assert json_of(good) == {"a": 1}
