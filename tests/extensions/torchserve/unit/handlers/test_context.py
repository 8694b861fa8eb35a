"""The context and the helpers that archives import from `ts`."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests
import torch

import ts
import ts.service
import ts.version
from extensions.torchserve.handlers.process import SHIM
from ts.context import Context, RequestProcessor
from ts.handler_utils.utils import import_class, send_intermediate_predict_response
from ts.launcher import register_model, register_model_with_params
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext
from ts.utils import util


def context(gpu: int | None = None) -> Context:
    found = Context("m", "/models/m", {"model": {}}, 4, gpu, "0.12.0")
    found.request_processor = [RequestProcessor({"X-A": "1"}), RequestProcessor({"x-b": "2"})]
    found.request_ids = {0: "a", 1: "b"}
    return found


def test_the_version_is_that_of_torchserve() -> None:
    assert (ts.__version__, ts.version.__version__) == ("0.12.0", "0.12.0")


def test_system_properties_have_the_gpu_also_without_one() -> None:
    assert context().system_properties == {
        "model_dir": "/models/m", "gpu_id": None, "batch_size": 4, "server_name": "MMS",
        "server_version": "0.12.0", "limit_max_image_pixels": True,
    }  # fmt: skip
    assert context(1).system_properties["gpu_id"] == 1


def test_request_headers_are_found_in_any_case() -> None:
    found = context()
    assert found.get_request_header(0, "x-a") == found.get_request_header(0, "X-A") == "1"
    assert found.get_request_header(1, "X-B") == "2"
    assert found.get_request_header(1, "x-a") is None
    headers = found.get_all_request_header(0)
    assert (headers["x-A"], "X-a" in headers, headers.get("no", 7)) == ("1", True, 7)
    assert (found.get_request_id(), found.get_request_id(1), found.get_request_id(2)) == (
        "a", "b", None,
    )  # fmt: skip


def test_responses_have_a_status_and_headers() -> None:
    found = context()
    assert found.get_response_status(0) == (200, None)
    found.set_response_status(code=201, phrase="Made", idx=1)
    found.set_response_content_type(1, "text/plain")
    found.set_response_header(1, "dummy", "1")
    assert found.get_response_status(1) == (201, "Made")
    assert found.get_response_content_type(1) == "text/plain"
    assert found.get_response_headers(1) == {"content-type": "text/plain", "dummy": "1"}
    found.set_all_response_status(503)
    assert [found.get_response_status(n) for n in (0, 1)] == [(503, ""), (503, "")]


def test_attributes_of_the_handler_stay_and_contexts_compare() -> None:
    one: Any = context()
    one.cache = {"a": 1}
    assert one == one
    assert one != context()
    assert one.stopping_criteria is None
    assert one.model_yaml_config == {}
    assert (one.header_key_sequence_id, one.get_sequence_id(0)) == ("ts_request_sequence_id", None)


def test_classes_are_found_by_name() -> None:
    assert import_class("ts.context.Context") is Context
    assert import_class("Context", "ts.context") is Context
    assert import_class("context.Context", "ts") is Context
    for name in ("Context", "ts.context.No", "no_such_package.No"):
        with pytest.raises(ImportError):
            import_class(name)


def test_pieces_are_sent_by_the_first_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found, kept = context(), []
    found.keep_piece = lambda *piece: kept.append(piece)
    send_intermediate_predict_response(["x", b"y"], {0: "a", 1: "b"}, "", 200, found)
    monkeypatch.setenv("LOCAL_RANK", "1")
    send_intermediate_predict_response(["z", b"z"], {0: "a", 1: "b"}, "", 200, found)
    assert kept == [(0, "a", "x"), (1, "b", b"y")]
    assert found.get_response_headers(1) == {"ts_stream_next": "true"}
    send_intermediate_predict_response(["x"], {0: "a"}, "", 200, MockContext())


def test_labels_come_from_the_file_in_each_of_its_forms(tmp_path: Path) -> None:
    file = tmp_path / "index_to_name.json"
    assert util.load_label_mapping(file) is None
    for written in ({"0": "cat"}, {"0": ["n01", "cat"]}, {"object_type_names": ["cat"]}):
        file.write_text(json.dumps(written))
        assert util.load_label_mapping(str(file)) == {"0": "cat"}
    wrongs: list[Any] = [["cat"], {"0": 7}, {"0": []}]
    for wrong in wrongs:
        file.write_text(json.dumps(wrong))
        with pytest.raises(TypeError, match="index_to_name"):
            util.load_label_mapping(file)


def test_classes_become_labels() -> None:
    probabilities = [[0.75, 0.25]]
    assert util.map_class_to_label(probabilities) == [{"0": 0.75, "1": 0.25}]
    labels = {"0": "cat", "1": "dog"}
    assert util.map_class_to_label(torch.tensor(probabilities), labels, [[1, 0]]) == [
        {"dog": 0.75, "cat": 0.25}
    ]
    assert util.map_class_to_label(probabilities, {"0": "cat"}) == [{"cat": 0.75, "1": 0.25}]
    with pytest.raises(TypeError):
        util.map_class_to_label("text")  # type: ignore[arg-type]


def test_only_the_modules_own_classes_are_listed() -> None:
    module = ModuleType("own")
    exec("from pathlib import Path\nclass A: ...\nclass B(A): ...\n", module.__dict__)
    assert [one.__name__ for one in util.list_classes_from_module(module)] == ["A", "B"]
    only = util.list_classes_from_module(module, module.B)
    assert [one.__name__ for one in only] == ["B"]


def test_the_other_helpers(tmp_path: Path) -> None:
    assert re.sub(util.CLEANUP_REGEX, "", "a<br>b &amp; c&#39;") == "ab  c"
    assert util.check_valid_pt2_backend("inductor")
    assert not util.check_valid_pt2_backend("no such")
    (tmp_path / "c.yaml").write_text("a: {b: 1}\n")
    assert util.get_yaml_config(tmp_path / "c.yaml") == {"a": {"b": 1}}
    error = ts.service.PredictionException("words", 599)
    assert (error.message, error.error_code, str(error)) == ("words", 599, "words : 599")
    assert util.PredictionException("words").error_code == 500


def test_a_context_for_tests_of_handlers(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("handler: {a: 1}\n")
    found = MockContext(
        model_dir=str(tmp_path), model_file=None, model_yaml_config_file="model.yaml"
    )
    assert found.manifest == {"model": {"serializedFile": "model.pt"}}
    assert found.system_properties["model_dir"] == str(tmp_path)
    assert found.model_yaml_config == {"handler": {"a": 1}}
    assert found.get_request_header(0, "explain") is False
    found.metrics.add_counter("n", 1)
    found.metrics.add_counter("n", 2)
    found.metrics.add_time("t", 5)
    assert [(one.name, one.value) for one in found.metrics.store] == [("n", 3), ("t", 5)]
    assert "n.Count:3|#ModelName:mnist,Level:Model|#hostname:" in str(found.metrics.store[0])


def test_no_other_process_can_import_ts() -> None:
    """Of Headrace's processes only the model process of an archive has the folder on its path."""
    code = (
        "import importlib.util, sys, api.app, workers.model_process.__main__;"
        "import extensions.torchserve.handlers.handler, handlers.echo;"
        "assert 'ts' not in sys.modules;"
        f"assert not any(path.startswith({str(SHIM)!r}) for path in sys.path);"
        "found = importlib.util.find_spec('ts');"
        f"assert found is None or not str(found.origin).startswith({str(SHIM)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "name",
    [
        "ts.metrics.dimension", "ts.metrics.metric", "ts.metrics.metric_type_enum",
        "ts.metrics.metrics_store", "ts.metrics.process_memory_metric", "ts.metrics.unit",
        "ts.metrics.caching_metric", "ts.metrics.metric_cache_yaml_impl",
        "ts.metrics.metric_cache_abstract", "ts.metrics.metric_cache_errors",
        "ts.handler_utils.timer", "ts.handler_utils.micro_batching", "ts.handler_utils.text_utils",
        "ts.protocol.otf_message_handler", "ts.model_service.model_service",
        "ts.torch_handler.base_handler", "ts.torch_handler.densenet_handler",
        "ts.torch_handler.request_envelope.body", "ts.torch_handler.request_envelope.json",
        "ts.torch_handler.request_envelope.kserve", "ts.torch_handler.request_envelope.kservev2",
    ],
)  # fmt: skip
def test_the_modules_that_archives_import_are_there(name: str) -> None:
    assert importlib.import_module(name).__doc__


def test_generated_texts_are_streamed_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for transformers, whose streamer is an iterator over texts."""

    class Streamer:
        def __init__(self, tokenizer: Any, skip_prompt: bool, timeout: Any, **more: Any) -> None:
            self.tokenizer = tokenizer
            self.texts: list[str | None] = []

        def put(self, value: Any) -> None:
            self.texts.append(self.tokenizer(value))

        def end(self) -> None:
            self.texts.append(None)

        def __iter__(self) -> Any:
            return iter(self.texts.pop, None)

    for name in ("transformers", "transformers.generation", "transformers.generation.streamers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    stand_in: Any = sys.modules["transformers.generation.streamers"]
    stand_in.BaseStreamer, stand_in.TextIteratorStreamer = object, Streamer
    module = importlib.import_module("ts.handler_utils.hf_batch_streamer")
    streamer = module.TextIteratorStreamerBatch(lambda rows: f"t{rows.item()}", 2, skip_prompt=True)
    with pytest.raises(ValueError, match="made for 2 inputs, but got 3"):
        streamer.put(torch.zeros(3))
    streamer.put(torch.tensor([1, 2]))
    assert next(iter(streamer)) == ["t1", "t2"]
    streamer.end()
    with pytest.raises(StopIteration):
        next(streamer)
    del sys.modules[module.__name__]


def test_a_missing_package_is_named_by_the_part_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.generation.streamers", None)
    monkeypatch.delitem(sys.modules, "ts.handler_utils.hf_batch_streamer", raising=False)
    with pytest.raises(ModuleNotFoundError, match="transformers"):
        importlib.import_module("ts.handler_utils.hf_batch_streamer")


def test_a_registration_takes_and_returns_what_requests_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []
    answer = requests.Response()
    answer.status_code = 200

    def post(url: str, params: Any, **_: Any) -> requests.Response:
        sent.append((url, params))
        return answer

    monkeypatch.setattr(requests, "post", post)
    pairs = (("url", "a.mar"), ("url", "b.mar"))
    assert register_model_with_params(pairs).ok
    register_model("a", "a.mar")
    named = {"model_name": "a", "url": "a.mar", "initial_workers": "1", "synchronous": "true"}
    url = "http://localhost:8081/models"
    assert sent == [(url, pairs), (url, named)]
