"""BaseHandler and its helpers: loading, the steps, explanations, micro-batches and envelopes."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from extensions.torchserve.config.settings import TorchServeConfig
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from tests.harness.programs import Scaled, save_onnx, save_script
from ts.context import Context
from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.text_utils import get_tokenizer, ngrams_iterator
from ts.handler_utils.timer import timed
from ts.metrics.emission import MetricRow
from ts.metrics.metric_cache_yaml_impl import DEFAULT, MetricsCacheYamlImpl
from ts.model_service.model_service import SingleNodeService
from ts.torch_handler.base_handler import BaseHandler

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.fc(x)
"""


def context_of(folder: Path, config: dict[str, Any] | None = None, **model: str) -> Context:
    metrics = MetricsCacheYamlImpl(DEFAULT)
    metrics.initialize_cache()
    manifest = {"model": {"modelName": "m", **model}}
    return Context("m", str(folder), manifest, 1, None, "0.12.0", True, metrics, config)


@pytest.fixture
def eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    torch.save({"fc.weight": torch.tensor([[2.0, 3.0]])}, tmp_path / "w.pth")
    return tmp_path


def test_an_eager_model_has_its_weights_and_labels(eager: Path) -> None:
    (eager / "index_to_name.json").write_text('{"0": "cat"}')
    handler = BaseHandler()
    handler.initialize(context_of(eager, modelFile="model.py", serializedFile="w.pth"))
    assert handler.initialized
    assert handler.mapping == {"0": "cat"}
    assert (handler.map_location, handler.device, handler.get_device()) == (
        "cpu", torch.device("cpu"), torch.device("cpu"),
    )  # fmt: skip
    assert handler.model_pt_path == str(eager / "w.pth")
    assert not handler.model.training
    assert handler.handle([[1.0, 1.0]], handler.context) == [[5.0]]


def test_an_eager_model_needs_exactly_one_class_and_its_file(eager: Path) -> None:
    (eager / "model.py").write_text(f"{MODEL}\nclass Other: ...\n")
    with pytest.raises(ValueError, match="expected exactly one class, the model, but found"):
        BaseHandler().initialize(context_of(eager, modelFile="model.py"))
    with pytest.raises(RuntimeError, match=r"no file .*gone\.py"):
        BaseHandler().initialize(context_of(eager, modelFile="gone.py"))


@pytest.mark.parametrize(
    ("file", "said"), [("w.bin", "w.bin is not a .pt"), ("", "it has no file")]
)
def test_a_model_without_weights_is_said(tmp_path: Path, file: str, said: str) -> None:
    context = context_of(tmp_path, serializedFile=file)
    with pytest.raises(RuntimeError, match=f"No model weights could be loaded: .*{said}"):
        BaseHandler().initialize(context)


def test_a_torchscript_program_and_an_onnx_file_are_loaded(tmp_path: Path) -> None:
    save_script(tmp_path / "m.pt", Scaled())
    handler = BaseHandler()
    handler.initialize(context_of(tmp_path, serializedFile="m.pt"))
    assert isinstance(handler.model, torch.jit.ScriptModule)
    pytest.importorskip("onnxruntime")
    save_onnx(tmp_path / "m.onnx")
    handler.initialize(context_of(tmp_path, serializedFile="m.onnx"))
    assert type(handler.model).__name__ == "InferenceSession"


def test_a_program_of_aotinductor_is_loaded_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, str]] = []

    def load(*args: str) -> str:
        called.append((args[0], args[1]))
        return "program"

    monkeypatch.setattr(torch._export, "aot_load", load)
    handler = BaseHandler()
    config = {"pt2": {"export": {"aot_compile": True}}}
    handler.initialize(context_of(tmp_path, config, serializedFile="m.so"))
    assert handler._use_torch_export_aot_compile()
    assert handler.model == "program"
    assert called == [(str(tmp_path / "m.so"), "cpu")]


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ({"compile": {"enable": True, "backend": "inductor", "mode": "x"}},
         {"backend": "inductor", "mode": "x"}),
        ({"compile": {"enable": False, "backend": "inductor"}}, None),
        ({"compile": {"enable": True, "backend": "no such"}}, None),
        ({"export": {"aot_compile": True}}, None),
        ("eager", {"backend": "eager"}),
        ({"backend": "eager"}, {"backend": "eager"}),
    ],
)  # fmt: skip
def test_the_configuration_compiles_the_model(
    eager: Path, monkeypatch: pytest.MonkeyPatch, section: Any, options: dict[str, Any] | None
) -> None:
    compiled: list[dict[str, Any]] = []

    def compile_(model: Any, **given: Any) -> Any:
        compiled.append(given)
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    config = {"pt2": section}
    BaseHandler().initialize(context_of(eager, config, modelFile="model.py"))
    assert compiled == ([] if options is None else [options])
    if isinstance(section, dict) and "compile" in section and options:
        assert "enable" not in config["pt2"]["compile"]


def test_a_model_that_cannot_be_compiled_runs_as_it_is(
    eager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: Any, **_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fails)
    handler = BaseHandler()
    handler.initialize(context_of(eager, {"pt2": "inductor"}, modelFile="model.py"))
    assert handler.handle([[0.0, 0.0]], handler.context) == [[0.0]]


class Steps(BaseHandler):
    """Counts; explains by what it gets."""

    def preprocess(self, data: Any) -> Any:
        return data

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data

    def postprocess(self, data: Any) -> Any:
        return list(data)

    def get_insights(self, prepared: Any, inputs: Any, target: Any) -> Any:
        return [[inputs, target] for _ in prepared]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"data": "a", "body": "b", "target": 3}, ["a", 3]),
        ({"body": "b", "target": bytearray(b"2")}, ["b", 2]),
        ({"body": "b", "target": "cat"}, ["b", "cat"]),
        ({"body": "b"}, ["b", 0]),
        ("bare", [None, 0]),
    ],
)
def test_an_explanation_has_the_input_and_the_target(row: Any, expected: list[Any]) -> None:
    assert Steps().explain_handle(["x"], [row]) == [expected]


def test_a_handler_that_cannot_explain_is_said() -> None:
    with pytest.raises(NotImplementedError, match="BaseHandler cannot explain"):
        BaseHandler().explain_handle(["x"], [{"body": "x"}])


@pytest.mark.parametrize(("gpu", "device"), [(None, "cpu"), (1, "cuda:1"), ("0", "cuda:0")])
def test_the_device_is_the_gpu_that_the_context_names(
    eager: Path, monkeypatch: pytest.MonkeyPatch, gpu: Any, device: str
) -> None:
    handler = BaseHandler()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    context = context_of(eager, modelFile="model.py")
    context.system_properties["gpu_id"] = gpu
    monkeypatch.setattr(handler, "_load_pickled_model", lambda *_: torch.nn.Identity())
    handler.initialize(context)
    assert (str(handler.device), handler.map_location) == (device, device.partition(":")[0])


def test_a_description_is_none_unless_the_handler_has_one(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    context.request_processor[0].get_request_properties()["describe"] = "True"
    assert Steps().handle([1], context) == [None]


def test_the_profiler_runs_if_the_environment_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "true")
    handler = Steps()
    handler.profiler_args = {"activities": [torch.profiler.ProfilerActivity.CPU]}
    assert handler.handle([1, 2], context_of(tmp_path)) == [1, 2]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handler.profiler_args = {}
    handler.manifest = None  # as if an `initialize` of its own had not set it
    handler.handle([1], context_of(tmp_path))
    assert len(list((tmp_path / "pytorch_profiler" / "m").iterdir())) == 1
    handler.profiler_args = {"record_shapes": True}
    handler.handle([1], context_of(tmp_path))
    assert len(list((tmp_path / "pytorch_profiler" / "m").iterdir())) == 2


def test_the_steps_are_measured_if_the_configuration_asks_for_it(
    tmp_path: Path, rows: list[MetricRow]
) -> None:
    class Timed(Steps):
        preprocess = timed(Steps.preprocess)

    Timed().handle([1], context_of(tmp_path))
    assert [row.name for row in rows] == ["HandlerTime"]
    Timed().handle([1], context_of(tmp_path, {"handler": {"profile": True}}))
    assert [row.name for row in rows[1:]] == ["ts_handler_preprocess", "HandlerTime"]
    assert (rows[1].unit, rows[1].type) == ("Milliseconds", "gauge")


class Counted(Steps):
    def __init__(self) -> None:  # as handlers do: without the base class's
        self.handle = MicroBatching(self, 2)  # type: ignore[method-assign]
        self.sizes: list[int] = []
        self.places: list[int] = []

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.sizes.append(len(data))
        self.places.append(self.handle.get_micro_batch_idx())  # type: ignore[attr-defined]
        if "bad" in data:
            raise ValueError("a bad word")
        return [word * 2 for word in data]


def test_micro_batches_keep_the_order_and_raise_what_a_step_raises(tmp_path: Path) -> None:
    handler = Counted()
    micro: Any = handler.handle
    micro.parallelism = {"preprocess": 2, "inference": 3}
    assert micro.parallelism == {"preprocess": 2, "inference": 3}
    assert [len(micro.thread_groups[step]) for step in micro.thread_groups] == [2, 3, 1]
    words = [f"w{n}" for n in range(7)]
    for _ in range(3):
        assert micro(words, context_of(tmp_path)) == [word * 2 for word in words]
    assert sorted(handler.sizes) == [1] * 3 + [2] * 9
    assert sorted(set(handler.places)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="a bad word"):
        micro(["a", "b", "bad"], context_of(tmp_path))
    assert micro(["a"], context_of(tmp_path)) == ["aa"]
    micro.parallelism = {"inference": 1}
    assert micro(words, context_of(tmp_path)) == [word * 2 for word in words]
    for wrong in ({"inference": 0}, {"other": 1}):
        with pytest.raises(ValueError, match="parallelism"):
            micro.parallelism = wrong
    threads = [one.thread for group in micro.thread_groups.values() for one in group]
    micro.shutdown()
    assert not any(one.is_alive() for one in threads)
    assert threading.current_thread().is_alive()


def test_tokens_and_their_ngrams() -> None:
    assert list(ngrams_iterator(["here", "we", "are"], 2)) == [
        "here", "we", "are", "here we", "we are",
    ]  # fmt: skip
    assert get_tokenizer(None)("A b") == ["A", "b"]
    basic = get_tokenizer("basic_english")
    assert basic('It\'s "fine", isn\'t it?<br />Yes; no: (ok).') == [
        "it", "'", "s", "fine", ",", "isn", "'", "t", "it", "?", "yes", "no", "(", "ok", ")", ".",
    ]  # fmt: skip
    assert get_tokenizer(list)("ab") == ["a", "b"]
    for tokenizer, language in (("basic_english", "de"), ("spacy", "en")):
        with pytest.raises(ValueError, match=tokenizer):
            get_tokenizer(tokenizer, language)


def test_a_handler_of_the_oldest_interface(tmp_path: Path) -> None:
    class Old(SingleNodeService):
        def _inference(self, data: Any) -> Any:
            return data[0]["x"]

    signature = {"input_type": "application/json", "inputs": [{"data_name": "data"}]}
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    old = Old("m", str(tmp_path), {})
    old.initialize(context_of(tmp_path))
    assert old.signature() == signature
    assert old.handle([{"body": bytearray(b"{'x': 4}")}], None) == [4]
    assert old.handle([{"data": {"x": [5]}}], None) == [5]
    with pytest.raises(ValueError, match=r"no file .*other\.json"):
        old.initialize(context_of(tmp_path, signature="other.json"))


def test_tensors_go_in_and_out_of_the_densenet_handler(tmp_path: Path) -> None:
    write_archive(
        tmp_path, "densenet_handler", {"model.py": MODEL}, modelFile="model.py",
        serializedFile="w.pth",
    )  # fmt: skip
    torch.save({"fc.weight": torch.tensor([[2.0, 3.0]])}, tmp_path / "w.pth")
    body = io.BytesIO()
    torch.save(torch.ones(2), body)
    executor = loaded(tmp_path, "densenet_handler")
    sent = request(body.getvalue(), "application/octet-stream")
    for outcome in run(executor, [sent, sent]):
        assert outcome[0], outcome
        found = executor.handler.inference([body.getvalue()])
        assert torch.load(io.BytesIO(found[0]), weights_only=True).tolist() == [[5.0]]


def test_the_densenet_handler_never_unpickles_what_a_client_sends(tmp_path: Path) -> None:
    write_archive(tmp_path, "densenet_handler", {"model.py": MODEL}, modelFile="model.py")
    body = io.BytesIO()
    torch.save(Scaled(), body)
    executor = loaded(tmp_path, "densenet_handler", weights_only=False)
    (found,) = run(executor, [request(body.getvalue(), "application/octet-stream")])
    assert not found[0]
    assert "WeightsUnpickler" in found[2] or "Weights only" in found[2]


def enveloped(folder: Path, envelope: Any, source: str, requests: list[Any]) -> list[Any]:
    write_archive(folder, "service", {"service.py": source})
    executor = loaded(folder, "service", config=TorchServeConfig(service_envelope=envelope))
    return [json_of(one) for one in run(executor, requests)]


SAME = "def handle(data, context):\n    return data or []\n"


def test_the_envelope_body(tmp_path: Path) -> None:
    form = request(form={"data": (b"[1]", "application/json")})
    assert enveloped(tmp_path, "body", SAME, [request([2]), form]) == [[2], [1]]


def test_the_envelope_json(tmp_path: Path) -> None:
    source = "def handle(data, context):\n    return [repr(one) for one in data or ()]\n"
    requests = [
        request({"instances": [{"b64": "YWI="}, {"x": {"b64": "YQ=="}, "y": 1}]}),
        request({"instances": [3]}),
    ]
    found = enveloped(tmp_path, "json", source, requests)
    assert [json.loads(one)["predictions"] for one in found] == [
        ["b'ab'", "{'x': b'a', 'y': 1}"], ["3"],
    ]  # fmt: skip


def test_the_envelope_kserve_takes_every_request_of_a_batch(tmp_path: Path) -> None:
    """TorchServe's takes the first alone."""
    requests = [
        request({"instances": [1, 2]}),
        request(b'{"instances": [3]}', "application/octet-stream"),
        request({"instances": [4]}, headers={"explain": "True"}),
    ]
    assert enveloped(tmp_path, "kserve", SAME, requests) == [
        {"predictions": [1, 2]}, {"predictions": [3]}, {"explanations": [4]},
    ]  # fmt: skip


def test_the_envelope_kservev2(tmp_path: Path) -> None:
    source = (
        "def handle(data, context):\n"
        "    if data and data[0]['data'] == 'fails':\n"
        "        raise ValueError\n"
        "    return [one['data'] for one in data or ()]\n"
    )
    tensor = {"name": "in", "shape": [2, 1], "datatype": "INT64", "data": [6, 7]}
    text = {"name": "word", "shape": [2], "datatype": "BYTES", "data": ["a", "more"]}
    requests = [
        request({"id": "mine", "inputs": [tensor, text]}),
        request({"id": "gone", "inputs": [{**text, "data": ["fails"]}]}),
        request({"inputs": [text]}, headers={"explain": "True"}),
        request(b'{"inputs": []}', "application/octet-stream"),
    ]
    write_archive(tmp_path, "service", {"service.py": source})
    executor = loaded(tmp_path, "service", config=TorchServeConfig(service_envelope="kservev2"))
    first, failed, third, empty = run(executor, requests)
    word = {"name": "word", "datatype": "BYTES", "data": ["a"], "shape": [1]}
    both = {"model_name": "m", "model_version": "1.0"}
    numbers = {"name": "in", "datatype": "INT64", "data": [6, 7], "shape": [2]}
    assert json_of(first) == {"id": "mine", **both, "outputs": [numbers, word]}
    assert list(json_of(first)["outputs"][0]) == ["name", "datatype", "data", "shape"]
    assert not failed[0]
    # Its own id, and not that of the request that has failed.
    assert json_of(third) == {"id": "job-2", **both, "outputs": [word]}
    # As with TorchServe, no inputs are no answer.
    assert not empty[0]
