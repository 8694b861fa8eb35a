from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from handlers.image_classifier import ImageClassifier
from handlers.resnet import Bottleneck, resnet18, resnet50
from headrace.errors import ConfigError, InputError
from headrace.handler import Context
from tests.harness.pictures import encoded
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import warm_up

#: Means of the three channels as logits: what a result says is known.
CHANNELS = """
import torch

class Channels(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def forward(self, images):
        return images.mean(dim=(2, 3)) * self.scale

def broken():
    raise RuntimeError("no such checkpoint")

def number():
    return 7
"""
COLOURS = {"0": "red", "1": ["n1", "green"], "2": "blue"}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "channels.py").write_text(CHANNELS)
    (tmp_path / "names.json").write_text(json.dumps(COLOURS))
    return tmp_path


def context(model_dir: Path, weights: Path | None = None, **options: Any) -> Context:
    chosen = {"model": "channels.py:Channels", "index_to_name": "names.json", **options}
    return Context(
        "colours", "1.0", "cpu", model_dir, weights=weights, options=chosen, channels_last="off"
    )


def classifier(model_dir: Path, weights: Path | None = None, **options: Any) -> ImageClassifier:
    handler = ImageClassifier()
    handler.initialize(context(model_dir, weights, **options))
    return handler


def test_a_module_that_cannot_run_shows_in_the_warm_up(model_dir: Path) -> None:
    (model_dir / "grey.py").write_text(
        "import torch\ndef grey(): return torch.nn.Conv2d(1, 1, kernel_size=3)\n"
    )
    handler = classifier(model_dir, model="grey.py:grey")
    with pytest.raises(RuntimeError, match="to have 1 channels, but got 3"):
        warm_up(BatchExecutor(handler, handler.context))


def refusal(model_dir: Path, weights: Path | None = None, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        classifier(model_dir, weights, **options)
    return caught.value


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (60, 40)) -> bytes:
    return encoded(Image.new("RGB", size, colour))


def answers(handler: ImageClassifier, inputs: list[Any]) -> list[Any]:
    return handler.postprocess(handler.inference(handler.preprocess(inputs)))


def test_classes_come_best_first_with_their_names(model_dir: Path) -> None:
    handler = classifier(model_dir, top_k=2)
    red, blue = answers(handler, [plain((255, 0, 50)), plain((0, 50, 255))])
    assert [entry["name"] for entry in red["classes"]] == ["red", "blue"]
    assert [entry["name"] for entry in blue["classes"]] == ["blue", "green"]
    assert [entry["index"] for entry in blue["classes"]] == [2, 1]
    first, second = (entry["probability"] for entry in red["classes"])
    assert 1 > first > second > 0


def test_probabilities_are_those_of_the_normalised_image(model_dir: Path) -> None:
    handler = classifier(model_dir, mean=[0.5, 0.5, 0.5], std=[0.5, 0.25, 1.0])
    (answer,) = answers(handler, [plain((255, 0, 51))])
    logits = torch.tensor([(1.0 - 0.5) / 0.5, (0.0 - 0.5) / 0.25, (0.2 - 0.5) / 1.0])
    expected = logits.softmax(0)
    got = {entry["index"]: entry["probability"] for entry in answer["classes"]}
    assert [got[0], got[1], got[2]] == pytest.approx(expected.tolist(), abs=1e-5)


def test_there_are_no_more_classes_than_the_model_has(model_dir: Path) -> None:
    (answer,) = answers(classifier(model_dir, top_k=50), [plain((1, 2, 3))])
    assert len(answer["classes"]) == 3


def test_without_names_the_index_is_the_name(model_dir: Path) -> None:
    (answer,) = answers(classifier(model_dir, index_to_name=None), [plain((0, 0, 255))])
    assert answer["classes"][0]["name"] == "2"


@pytest.mark.parametrize("size", [(400, 100), (100, 400), (10, 10), (1, 3000)])
def test_the_middle_is_cut_from_any_shape(model_dir: Path, size: tuple[int, int]) -> None:
    handler = classifier(model_dir, resize_px=32, crop_px=24)
    width, height = size
    image = Image.new("RGB", size, (255, 0, 0))
    side = min(size) * 24 / 32
    left, top = round((width - side) / 2), round((height - side) / 2)
    image.paste((0, 0, 255), (left, top, left + round(side), top + round(side)))
    (item,) = handler.preprocess([encoded(image)])
    assert item.shape == (24, 24, 3)
    assert item.dtype == torch.uint8
    if min(size) >= 100:
        blue = np.asarray(item)[..., 2]
        assert blue.mean() > 240


def test_a_jpeg_is_drafted_to_about_the_same_pixels(model_dir: Path) -> None:
    handler = classifier(model_dir, resize_px=64, crop_px=64)
    ramp = np.linspace(0, 255, 1024 * 1024).reshape(1024, 1024).astype(np.uint8)
    image = Image.fromarray(ramp).convert("RGB")
    png, jpeg = handler.preprocess([encoded(image), encoded(image, "JPEG")])
    assert (png.float() - jpeg.float()).abs().mean() < 2


def test_bad_inputs_fail_at_their_place_while_their_mates_succeed(model_dir: Path) -> None:
    handler = classifier(model_dir, max_pixels=5_000)
    good = plain((0, 0, 255))
    inputs: list[Any] = [good, b"", {"a": 1}, b"text", good[:50], plain((0, 0, 0), (100, 51)), good]
    items = handler.preprocess(inputs)
    failed = [isinstance(item, InputError) for item in items]
    assert failed == [False, True, True, True, True, True, False]
    mates = [item for item in items if not isinstance(item, Exception)]
    found = handler.postprocess(handler.inference(mates))
    assert [answer["classes"][0]["name"] for answer in found] == ["blue", "blue"]


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_weights_are_loaded(model_dir: Path, name: str) -> None:
    path = model_dir / name
    state = {"scale": torch.tensor(-1.0)}
    save_file(state, path) if name.endswith("safetensors") else torch.save(state, path)
    (answer,) = answers(classifier(model_dir, path), [plain((255, 0, 0))])
    assert answer["classes"][-1]["name"] == "red"


def test_a_checkpoint_with_a_state_dict_inside_is_loaded(model_dir: Path) -> None:
    path = model_dir / "checkpoint.pt"
    torch.save({"epoch": 3, "state_dict": {"scale": torch.tensor(-1.0)}}, path)
    (answer,) = answers(classifier(model_dir, path), [plain((255, 0, 0))])
    assert answer["classes"][-1]["name"] == "red"


def test_a_pickled_module_is_refused(model_dir: Path) -> None:
    path = model_dir / "module.pt"
    torch.save(torch.nn.Linear(1, 1), path)
    error = refusal(model_dir, path)
    assert "cannot be read as weights" in error.message
    assert "a pickled module is refused" in error.hint


def test_weights_of_another_module_are_refused(model_dir: Path) -> None:
    path = model_dir / "w.safetensors"
    save_file({"other": torch.zeros(1)}, path)
    error = refusal(model_dir, path)
    assert "do not fit the module" in error.message
    assert "scale" in error.message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w.onnx", b"", "unknown kind of file '.onnx'"),
        ("gone.pt", None, "there is no weights file"),
        ("list.pt", b"list", "holds a list, not a state dict"),
    ],
)
def test_weights_that_are_none(
    model_dir: Path, name: str, content: bytes | None, expected: str
) -> None:
    path = model_dir / name
    if content == b"list":
        torch.save([1], path)
    elif content is not None:
        path.write_bytes(content)
    assert expected in refusal(model_dir, path).message


def test_random_weights_are_said_and_the_same_each_time(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"model": "handlers.resnet:resnet18", "index_to_name": None,
               "model_options": {"num_classes": 5}, "resize_px": 40, "crop_px": 32}  # fmt: skip
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        first = answers(classifier(model_dir, **options), [plain((9, 99, 200))])
    assert "no weights in the models file" in caplog.text
    assert torch.equal(torch.get_rng_state(), before)
    assert answers(classifier(model_dir, **options), [plain((9, 99, 200))]) == first
    assert len(first[0]["classes"]) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topk": 3}, "options.topk: unknown option; did you mean top_k?"),
        ({"top_k": 0}, "options.top_k: expected int >= 1, got 0"),
        ({"std": [1, 0, 1]}, "options.std: expected float > 0.0, got [1, 0, 1]"),
        ({"mean": [0.5]}, "options.mean: expected list of length >= 3, got [0.5]"),
        ({"crop_px": 300}, "options.crop_px is 300, more than resize_px, 256"),
        ({"model": "channels.py"}, "options.model 'channels.py' is malformed"),
        ({"model": "gone.py:build"}, "there is no file"),
        ({"model": "channels.py:broken"}, "calling it failed: RuntimeError: no such checkpoint"),
        ({"precision": "double"}, "options.precision: "),
        ({"model_options": {"size": 1}}, "calling it failed: TypeError"),
        ({"model": "channels.py:number"}, "returned int, not a torch module"),
        ({"index_to_name": "gone.json"}, "cannot be read: No such file"),
        ({"index_to_name": "channels.py"}, "is not JSON"),
    ],
)
def test_wrong_options_are_named(model_dir: Path, options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(model_dir, **options).message


@pytest.mark.parametrize("names", ['["a"]', '{"a": "b"}', '{"0": 1}', '{"0": []}'])
def test_wrong_names_are_refused(model_dir: Path, names: str) -> None:
    (model_dir / "names.json").write_text(names)
    error = refusal(model_dir)
    assert "options.index_to_name" in error.message
    assert error.hint == 'write {"0": "tench", ...}'


def test_resnet_has_the_size_and_names_of_the_paper_and_of_torchvision() -> None:
    model = resnet18()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512
    names = model.state_dict()
    assert len(names) == 122
    for name in ("conv1.weight", "layer1.0.bn2.running_var", "layer2.0.downsample.1.bias",
                 "layer4.1.conv2.weight", "fc.bias"):  # fmt: skip
        assert name in names
    assert "layer1.0.downsample.0.weight" not in names
    with torch.inference_mode():
        assert model.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)


def test_resnet_50_too() -> None:
    model = resnet50()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    names = model.state_dict()
    assert len(names) == 320
    assert {"layer1.0.downsample.1.bias", "layer3.5.bn3.running_mean"} <= set(names)
    second = model.layer2[0]
    assert isinstance(second, Bottleneck)
    assert second.conv2.stride == (2, 2)
    with torch.inference_mode():
        assert model.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


@pytest.mark.parametrize("precision", ["half", "bfloat16"])
def test_lower_precision_gives_nearly_the_same_answers_in_float(
    model_dir: Path, precision: str
) -> None:
    inputs: list[Any] = [plain((255, 0, 50)), plain((0, 50, 255))]
    handler = classifier(model_dir, precision=precision)
    assert next(handler.model.parameters()).dtype is not torch.float32
    for exact, rough in zip(
        answers(classifier(model_dir), inputs), answers(handler, inputs), strict=True
    ):
        assert [c["name"] for c in rough["classes"]] == [c["name"] for c in exact["classes"]]
        got = [c["probability"] for c in rough["classes"]]
        assert got == pytest.approx([c["probability"] for c in exact["classes"]], abs=0.02)


ENCODER = """
import torch
from torch import nn

class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 64, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(48, 3)

    def forward(self, images):
        patches = images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4)
        tokens = patches.permute(0, 2, 3, 1, 4).flatten(1, 2).flatten(2)
        return self.head(self.encoder(tokens)[:, 0])
"""


def test_transformer_encoders_run_in_torch_s_fast_path(tmp_path: Path) -> None:
    """The module is in evaluation mode and without gradients, which is what the fast path needs."""
    (tmp_path / "encoder.py").write_text(ENCODER)
    handler = ImageClassifier()
    made = context(tmp_path, model="encoder.py:Patches", index_to_name=None)
    handler.initialize(made)
    executor = BatchExecutor(handler, made)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        warm_up(executor)
    names = {event.key for event in profile.key_averages()}
    assert "aten::_transformer_encoder_layer_fwd" in names
