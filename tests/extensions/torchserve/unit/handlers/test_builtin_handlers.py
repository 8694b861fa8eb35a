"""TorchServe's built-in handlers on archives, against computations that are written out here.

The digits' model is trained, and its images are real. The other models have random weights, as
there are none to download.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from extensions.torchserve.config.settings import TorchServeConfig
from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD
from headrace.errors import ConfigError, HeadraceError
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from tests.harness.digits import IMAGES, write_digits_archive
from tests.harness.pictures import encoded

DIGITS = IMAGES[0].parent
CHANNELS = """
import torch

class Channels(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
"""
SEGMENTS = """
import torch

class Segments(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return {"out": self.conv(images)}
"""
BOXES = """
import torch

class Boxes(torch.nn.Module):
    def forward(self, images):
        found = []
        for image in images:
            high, wide = image.shape[-2:]
            found.append({"boxes": torch.tensor([[0.0, 1.0, wide, high]] * 3),
                          "labels": torch.tensor([1, 2, 3]), "scores": image.mean(dim=(1, 2))})
        return found
"""
BAG = """
import torch

class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(6, 4)
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, tokens, offsets):
        return self.fc(self.embedding(tokens, offsets))
"""


class Vocabulary(dict[str, int]):
    """A vocabulary of a class of its own."""


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def png(size: tuple[int, int], colour: Any = (255, 0, 0), mode: str = "RGB") -> bytes:
    return encoded(Image.new(mode, size, colour))


def archive(
    folder: Path, handler: str, model: str, files: dict[str, str | bytes] | None = None,
    state: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    serialized = {"serializedFile": "model.pt"} if state is not None else {}
    weights = {"model.pt": saved(state)} if state is not None else {}
    return write_archive(
        folder, handler, {"net.py": model, **weights, **(files or {})},
        modelFile="net.py", **serialized,
    )  # fmt: skip


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return write_digits_archive(tmp_path)


def test_real_digits_are_classified(digits: Path) -> None:
    outcomes = run(loaded(digits, "image_classifier"), [
        request(image.read_bytes(), "image/png") for image in IMAGES
    ])  # fmt: skip
    assert len(outcomes) == 12
    for image, outcome in zip(IMAGES, outcomes, strict=True):
        found = json_of(outcome)
        assert len(found) == 5
        assert next(iter(found)) == f"digit {image.name[0]}"
        assert found[f"digit {image.name[0]}"] > 0.99
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_an_image_comes_in_each_form(digits: Path) -> None:
    data = (DIGITS / "7_1496.png").read_bytes()
    text = base64.b64encode(data).decode()
    image = (
        Image.open(io.BytesIO(data)).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    )
    tones = np.asarray(image, np.float32)[16:240, 16:240] / 255
    tensor = ((tones - IMAGENET_MEAN) / IMAGENET_STD).transpose(2, 0, 1)
    outcomes = run(loaded(digits, "image_classifier"), [
        request(data, "application/octet-stream"),
        request(text.encode(), "text/plain"),
        request(text),
        request(tensor.tolist()),
        request(form={"data": (data, "image/png")}),
        request(form={"body": (data, "image/png")}),
    ])  # fmt: skip
    first = json_of(outcomes[0])
    assert next(iter(first)) == "digit 7"
    for outcome in outcomes[1:]:
        assert json_of(outcome) == pytest.approx(first, abs=1e-5)


@pytest.mark.parametrize(
    "names", [{"0": "red", "2": "blue"}, {"0": ["n0", "red"], "2": ["n2", "blue"]}]
)
def test_labels_have_both_forms_and_are_the_index_without_one(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    archive(tmp_path, "image_classifier", CHANNELS, {"index_to_name.json": json.dumps(names)})
    (outcome,) = run(loaded(tmp_path, "image_classifier"), [request(png((9, 9)), "image/png")])
    found = json_of(outcome)
    # Three classes only, although the handler returns up to five.
    logits = [(tone - mean) / std for tone, mean, std in zip(
        (1, 0, 0), IMAGENET_MEAN, IMAGENET_STD, strict=True)]  # fmt: skip
    expected = torch.tensor(logits).softmax(0).tolist()
    assert list(found) == ["red", "blue", "1"]
    assert found == pytest.approx(
        {"red": expected[0], "1": expected[1], "blue": expected[2]}, rel=1e-4
    )


def test_a_bad_image_fails_alone(digits: Path) -> None:
    good = request((DIGITS / "3_0705.png").read_bytes(), "image/png")
    bad = [
        request(b"no image", "image/png"),
        request({"a": 1}),
        request(b"", "image/png"),
        request("not base64!"),
        request(form={"other": (b"x", "text/plain")}),
    ]
    outcomes = run(loaded(digits, "image_classifier"), [good, *bad, good])
    assert [one[0] for one in outcomes] == [True, *[False] * len(bad), True]
    messages = [one[2] for one in outcomes[1:-1]]
    assert "not an image" in messages[0]
    assert "got a JSON object" in messages[1]
    assert "not base64" in messages[3]
    assert "the field 'data'" in messages[4]


CUSTOM = """
import torch
from ts.torch_handler.image_classifier import ImageClassifier

class Tone:
    def __call__(self, image):
        assert image.mode == "L"
        return torch.tensor([image.getpixel((0, 0)) / 255.0])

class Mine(ImageClassifier):
    image_processing = Tone()

    def initialize(self, context):
        self.initialized = True
        self.device = torch.device("cpu")
        self.model = lambda batch: torch.cat([batch, 1 - batch, batch * 0 - 9], dim=1)
        self.mapping = None
        self.set_max_result_classes(self.get_max_result_classes() - 3)
"""


def test_a_class_of_the_users_has_its_own_preparation(tmp_path: Path) -> None:
    # It has two classes, and so only one may be defined in the file: the other is a helper.
    tone, _, mine = CUSTOM.partition("class Mine")
    write_archive(
        tmp_path, "mine.py", {"tone.py": tone, "mine.py": "from tone import *\nclass Mine" + mine}
    )
    (outcome,) = run(loaded(tmp_path, "mine.py"), [request(png((3, 3), 204, "L"), "image/png")])
    found = json_of(outcome)
    assert list(found) == ["0", "1"]
    total = sum(np.exp([0.8, 0.2, -9.0]))
    assert found["0"] == pytest.approx(np.exp(0.8) / total, rel=1e-5)


def test_images_are_not_turned_and_keep_pillows_limit(tmp_path: Path) -> None:
    archive(tmp_path, "image_classifier", CHANNELS)
    before = Image.MAX_IMAGE_PIXELS
    try:
        loaded(tmp_path, "image_classifier")
        assert before == Image.MAX_IMAGE_PIXELS
        loaded(tmp_path, "image_classifier", config=TorchServeConfig(limit_max_image_pixels=False))
        assert Image.MAX_IMAGE_PIXELS is None
    finally:
        Image.MAX_IMAGE_PIXELS = before


def test_each_pixel_has_its_class_and_probability(tmp_path: Path) -> None:
    torch.manual_seed(5)
    state = {f"conv.{name}": value for name, value in nn.Conv2d(3, 4, 1).state_dict().items()}
    archive(tmp_path, "image_segmenter", SEGMENTS, state=state)
    outcomes = run(loaded(tmp_path, "image_segmenter"), [
        request(png((300, 260), colour), "image/png") for colour in ((255, 0, 0), (0, 0, 0))
    ])  # fmt: skip
    for outcome, tones in zip(outcomes, ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0)), strict=True):
        found = np.array(json_of(outcome))
        assert found.shape == (224, 224, 2)
        pixel = torch.tensor([(tone - mean) / std for tone, mean, std in zip(
            tones, IMAGENET_MEAN, IMAGENET_STD, strict=True)])  # fmt: skip
        chances = (state["conv.weight"][:, :, 0, 0] @ pixel + state["conv.bias"]).softmax(0)
        assert (found[..., 0] == int(chances.argmax())).all()
        assert found[..., 1] == pytest.approx(float(chances.max()), rel=1e-5)


def test_objects_have_boxes_labels_and_scores(tmp_path: Path) -> None:
    names = {"1": "red", "2": "green"}
    archive(tmp_path, "object_detector", BOXES, {"index_to_name.json": json.dumps(names)})
    outcomes = run(loaded(tmp_path, "object_detector"), [
        request(png((30, 20), (255, 127, 128)), "image/png"),
        request(png((5, 6), (0, 0, 0)), "image/png"),
        request(png((8, 8), 255, "L"), "image/png"),
    ])  # fmt: skip
    box = [0.0, 1.0, 30.0, 20.0]
    # 127 / 255 is just below 0.5, and 128 / 255 above it.
    assert json_of(outcomes[0]) == [
        {"red": box, "score": 1.0}, {"3": box, "score": pytest.approx(128 / 255)},
    ]  # fmt: skip
    assert json_of(outcomes[1]) == []
    assert [set(one) for one in json_of(outcomes[2])] == [
        {"red", "score"}, {"green", "score"}, {"3", "score"},
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
def test_a_scripted_detector_that_takes_a_list_gets_one(tmp_path: Path, count: int) -> None:
    class Means(nn.Module):
        def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
            return [
                {
                    "boxes": torch.zeros(1, 4),
                    "labels": torch.ones(1, dtype=torch.int64),
                    "scores": image.mean().reshape(1),
                }
                for image in images
            ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Means()).save(str(tmp_path / "m.pt"))  # type: ignore[no-untyped-call]
        write_archive(tmp_path, "object_detector", {}, serializedFile="m.pt")
        executor = loaded(tmp_path, "object_detector")
    white = request(png((4, 4), (255, 255, 255)), "image/png")
    for outcome in run(executor, [white] * count):
        assert json_of(outcome) == [{"1": [0.0] * 4, "score": 1.0}]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    torch.manual_seed(7)
    bag, linear = nn.EmbeddingBag(6, 4).state_dict(), nn.Linear(4, 2).state_dict()
    state = {"embedding.weight": bag["weight"]}
    state |= {f"fc.{name}": value for name, value in linear.items()}
    known = {"<unk>": 0, "good": 1, "bad": 2, "very": 3, "very good": 4}
    names = {"0": "poor", "1": "fine"}
    files: dict[str, str | bytes] = {
        "source_vocab.pt": saved(known), "index_to_name.json": json.dumps(names),
    }  # fmt: skip
    return archive(tmp_path, "text_classifier", BAG, files, state)


def test_every_text_of_a_batch_is_classified(texts: Path) -> None:
    outcomes = run(loaded(texts, "text_classifier"), [
        request(b"<b>Very</b> good!", "text/plain"),
        request("bad"),
        request(form={"data": (b"w\xc3\xb6rd", "text/plain")}),
        request(b"\xff\xfe", "application/octet-stream"),
        request(b"bad", "application/octet-stream"),
    ])  # fmt: skip
    state = torch.load(texts / "model.pt")
    for n, ids in {0: [3, 1, 4], 1: [2], 2: [0], 4: [2]}.items():
        pooled = state["embedding.weight"][ids].mean(0)
        expected = (state["fc.weight"] @ pooled + state["fc.bias"]).softmax(0).tolist()
        found = json_of(outcomes[n])
        assert list(found) == ["poor", "fine"]
        assert list(found.values()) == pytest.approx(expected, rel=1e-5)
    assert not outcomes[3][0]
    assert "UTF-8" in outcomes[3][2]


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
def test_a_vocabulary_with_code_needs_trust(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    (texts / "source_vocab.pt").write_bytes(saved(Vocabulary(bad=2)))
    with pytest.raises(HeadraceError, match="without running code"):
        loaded(texts, "text_classifier")
    with caplog.at_level(logging.WARNING):
        executor = loaded(texts, "text_classifier", weights_only=False)
    assert "is run, as the model has weights_only: false" in caplog.text
    assert json_of(run(executor, [request("bad")])[0])


def test_a_vocabulary_is_needed(texts: Path) -> None:
    (texts / "source_vocab.pt").unlink()
    with pytest.raises(ConfigError, match="the archive has no vocabulary") as caught:
        loaded(texts, "text_classifier")
    assert "--extra-files source_vocab.pt" in caught.value.hint


def explanation(data: bytes, kind: str, **form: bytes) -> Any:
    asked = {"explain": "True"}
    if not form:
        return request(data, kind, headers=asked)
    parts = {name: (value, "application/json") for name, value in form.items()}
    return request(form={"data": (data, kind), **parts}, headers=asked)


def test_each_explanation_is_of_its_own_target(tmp_path: Path) -> None:
    archive(tmp_path, "image_classifier", CHANNELS)
    data = png((9, 9), (200, 100, 50))
    executor = loaded(tmp_path, "image_classifier")
    outcomes = run(executor, [
        request(data, "image/png"),
        explanation(data, "image/png"),
        explanation(data, "image/png", target=b"2"),
        explanation(data, "image/png", target=b"7"),
    ])  # fmt: skip
    assert set(json_of(outcomes[0])) == {"0", "1", "2"}
    for outcome, target in ((outcomes[1], 0), (outcomes[2], 2)):
        found = np.array(json_of(outcome))
        assert found.shape == (3, 224, 224)
        # The model is linear: an input's share is its value by its weight.
        tone = (200, 100, 50)[target] / 255
        share = (tone - IMAGENET_MEAN[target]) / IMAGENET_STD[target] / 224**2
        assert found[target] == pytest.approx(share, rel=1e-4)
        assert not found[[n for n in range(3) if n != target]].any()
    assert not outcomes[3][0]
    assert "the model has no class 7" in outcomes[3][2]


def test_segments_and_texts_are_explained(tmp_path: Path, texts: Path) -> None:
    executor = loaded(texts, "text_classifier")
    outcomes = run(executor, [explanation(b"Very good!", "text/plain")])
    (found,) = [json_of(one) for one in outcomes]
    state = torch.load(texts / "model.pt")
    pooled = state["embedding.weight"][[3, 1, 4]].mean(0) - state["embedding.weight"][0]
    shares = (pooled * state["fc.weight"][0]).softmax(0).tolist()
    assert found == {"importances": [pytest.approx(shares, abs=1e-5)], "words": ["very", "good"]}


def test_a_segmentation_is_explained_and_a_detection_is_not(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    archive(tmp_path / "s", "image_segmenter", SEGMENTS)
    data = explanation(png((9, 9)), "image/png")
    (outcome,) = run(loaded(tmp_path / "s", "image_segmenter"), [data])
    assert np.shape(json_of(outcome)) == (3, 224, 224)


def test_a_detection_has_no_explanation(tmp_path: Path) -> None:
    archive(tmp_path, "object_detector", BOXES)
    (outcome,) = run(loaded(tmp_path, "object_detector"), [explanation(png((9, 9)), "image/png")])
    assert not outcome[0]
    assert "has no explanations" in outcome[2]


def test_a_missing_captum_is_reported_only_for_an_explanation(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    executor = loaded(digits, "image_classifier")
    data = (DIGITS / "7_1496.png").read_bytes()
    plain, explained = run(executor, [request(data, "image/png"), explanation(data, "image/png")])
    assert plain[0]
    assert not explained[0]
    assert "pip install 'headrace[explain]'" in explained[2]


def test_a_module_that_imports_captum_says_so_at_load(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    mine = "import captum\nfrom ts.torch_handler.image_classifier import ImageClassifier\n"
    (digits / "mine.py").write_text(mine + "class Mine(ImageClassifier): pass\n")
    with pytest.raises(ConfigError, match="captum"):
        loaded(digits, "mine.py")


def test_the_classes_have_the_names_that_handlers_import() -> None:
    from ts.torch_handler.contractions import CONTRACTION_MAP
    from ts.torch_handler.text_handler import TextHandler

    assert CONTRACTION_MAP["don't"] == "do not"
    handler = TextHandler()
    assert handler._expand_contractions("they're") == "they are"
    assert handler._remove_puncutation("a-b!") == handler._remove_punctuation("a-b!") == "ab"
    assert handler._remove_accented_characters("é") == "e"
    assert handler._remove_html_tags("<i>x</i>") == "x"
    assert handler._tokenize("A b.") == ["a", "b", "."]
    assert handler.get_word_token(["Ġa"]) == ["a"]
