"""Modules of `ts` for engines and several devices: they work, or the load says what to use."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from extensions.torchserve.handlers.process import SHIM
from headrace.errors import ConfigError
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from tests.harness.pictures import encoded

HAS_DALI = importlib.util.find_spec("nvidia") is not None and (
    importlib.util.find_spec("nvidia.dali") is not None
)
OWN = """
from abc import ABC
from {module} import {name}

class Mine({name}, ABC):
    def initialize(self, context):
        super().initialize(context)
        self.ready = self.device

    def handle(self, data, context):
        return [self.ready for _ in data]
"""
RANKS = """
import os
import torch.distributed as dist
from ts.torch_handler.distributed.base_deepspeed_handler import BaseDeepSpeedHandler

class Mine(BaseDeepSpeedHandler):
    def initialize(self, context):
        super().initialize(context)
        dist.init_process_group("gloo")
        self.found = [dist.get_rank(), dist.get_world_size(), self.device]
        dist.destroy_process_group()

    def handle(self, data, context):
        return [self.found for _ in data]
"""
DEEPSPEED = """
from ts.handler_utils.distributed.deepspeed import get_ds_engine

def handle(data, context):
    if data is None:
        context.engine = get_ds_engine("the model", context)
        return None
    return [context.engine for _ in data]
"""
FAKE_DEEPSPEED = """
def init_inference(model, **options):
    return [model, options]
"""
CHANNELS = """
import torch

class Channels(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
"""


def test_a_process_of_a_parallel_type_is_the_only_rank(tmp_path: Path) -> None:
    files = {"service.py": RANKS, "c.yaml": "parallelType: tp\ntorchrun: {nproc-per-node: 1}\n"}
    write_archive(tmp_path, "service", files, configFile="c.yaml")
    assert json_of(run(loaded(tmp_path, "service"), [request("a")])[0]) == [0, 1, 0]


@pytest.mark.parametrize(
    ("module", "name", "says", "instead"),
    [
        ("ts.torch_handler.distributed.base_pippy_handler", "BasePippyHandler",
         "PiPPy splits a model over processes", 'device_map="auto"'),
        ("ts.torch_handler.vllm_handler", "VLLMHandler", "no vLLM handler", "vllm serve"),
        ("ts.torch_handler.trt_llm_handler", "TRTLLMHandler", "no TensorRT-LLM handler",
         "trtllm-serve"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_here_fails_at_the_load_and_names_another_way(
    tmp_path: Path, module: str, name: str, says: str, instead: str
) -> None:
    write_archive(tmp_path, "service", {"service.py": OWN.format(module=module, name=name)})
    with pytest.raises(ConfigError, match=says) as caught:
        loaded(tmp_path, "service")
    assert instead in caught.value.hint


@pytest.mark.parametrize("handler", ["vllm_handler", "trt_llm_handler"])
def test_an_archive_names_an_engine_as_its_handler(tmp_path: Path, handler: str) -> None:
    write_archive(tmp_path, handler, {})
    with pytest.raises(ConfigError, match="Headrace has no"):
        loaded(tmp_path, handler)


def test_pippys_driver_is_not_here(tmp_path: Path) -> None:
    source = (
        DEEPSPEED.replace("deepspeed", "pt_pippy")
        .replace('get_ds_engine("the model",', 'get_pipeline_driver("the model", 4,')
        .replace("get_ds_engine", "get_pipeline_driver")
    )
    write_archive(tmp_path, "service", {"service.py": source})
    with pytest.raises(ConfigError, match="PiPPy splits a model over processes"):
        loaded(tmp_path, "service")


def test_deepspeed_gets_the_files_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed itself needs a GPU: this one returns its arguments."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/deepspeed.py").write_text(FAKE_DEEPSPEED)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "a.bin").write_bytes(b"")
    (weights / "a.txt").write_bytes(b"")
    config = {"handler": {"model_path": str(weights)},
              "deepspeed": {"config": "ds.json", "checkpoint": "checkpoints.json"}}  # fmt: skip
    files = {"service.py": DEEPSPEED, "c.yaml": json.dumps(config), "ds.json": "{}"}
    folder = write_archive(tmp_path / "archive", "service", files, configFile="c.yaml")
    model, options = json_of(run(loaded(folder, "service"), [request("a")])[0])
    assert model == "the model"
    assert options == {
        "config": str(folder / "ds.json"),
        "base_dir": str(weights),
        "checkpoint": str(folder / "checkpoints.json"),
    }
    written = json.loads((folder / "checkpoints.json").read_text())
    assert written["checkpoints"] == [str(weights / "a.bin")]


@pytest.mark.parametrize(
    ("config", "says"),
    [({"deepspeed": {"config": "gone.json"}}, "there is no file"),
     ({}, "has no section `deepspeed`")],
)  # fmt: skip
def test_a_configuration_of_deepspeed_that_lacks_something_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object], says: str
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/deepspeed.py").write_text(FAKE_DEEPSPEED)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    files = {"service.py": DEEPSPEED, "c.yaml": json.dumps(config)}
    folder = write_archive(tmp_path / "archive", "service", files, configFile="c.yaml")
    with pytest.raises(ConfigError, match=says):
        loaded(folder, "service")


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None, reason="deepspeed is installed"
)
def test_a_missing_deepspeed_is_named(tmp_path: Path) -> None:
    files = {"service.py": DEEPSPEED, "c.yaml": '{"deepspeed": {"config": "ds.json"}}'}
    write_archive(tmp_path, "service", files, configFile="c.yaml")
    with pytest.raises(ConfigError, match="needs the package deepspeed") as caught:
        loaded(tmp_path, "service")
    assert "install deepspeed" in caught.value.hint


def dali_archive(folder: Path, handler: str = "dali_image_classifier") -> Path:
    config = {"dali": {"batch_size": 4, "num_threads": 1, "device_id": -1, "seed": 1}}
    labels = json.dumps({"0": "red", "1": "green", "2": "blue"})
    files = {"m.py": CHANNELS, "c.yaml": json.dumps(config), "index_to_name.json": labels}
    return write_archive(folder, handler, files, modelFile="m.py", configFile="c.yaml")


@pytest.mark.skipif(HAS_DALI, reason="DALI is installed")
@pytest.mark.parametrize("handler", ["dali_image_classifier", "dali_handler"])
def test_a_missing_dali_is_named(tmp_path: Path, handler: str) -> None:
    dali_archive(tmp_path, handler)
    with pytest.raises(ConfigError, match=r"needs the package nvidia\.dali") as caught:
        loaded(tmp_path, handler)
    assert "image_classifier" in caught.value.hint


@pytest.mark.skipif(not HAS_DALI, reason="DALI is not installed: pip install nvidia-dali-cuda120")
def test_dali_prepares_images_on_the_cpu(tmp_path: Path) -> None:
    images = []
    for size, colour in (((300, 400), (255, 0, 0)), ((500, 260), (0, 0, 255))):
        images.append(request(encoded(Image.new("RGB", size, colour), "JPEG"), "image/jpeg"))
    bad = request(b"no image", "image/jpeg")
    dali_archive(tmp_path)
    red, failed, blue = run(loaded(tmp_path, "dali_image_classifier"), [images[0], bad, images[1]])
    assert not failed[0]
    assert next(iter(json_of(red))) == "red"
    assert next(iter(json_of(blue))) == "blue"


def test_the_collector_prints_the_host_and_the_processes() -> None:
    """As TorchServe runs it: by its path, with the processes in the input."""
    done = subprocess.run(
        [sys.executable, "-m", "ts.metrics.metric_collector", "--gpu", "0"],
        input=f"{1}\n", capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(SHIM), "PATH": ""},
    )  # fmt: skip
    *lines, empty, process = done.stdout.splitlines()
    assert [line.partition(".")[0] for line in lines] == [
        "CPUUtilization", "DiskAvailable", "DiskUsage", "DiskUtilization", "MemoryAvailable",
        "MemoryUsed", "MemoryUtilization",
    ]  # fmt: skip
    assert all("|#Level:Host|#hostname:" in line for line in lines)
    assert empty == ""
    assert process.startswith("1:")
