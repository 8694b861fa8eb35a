"""The built-in handlers of segmentation, detection and texts, and explanations of all.

Their modules are small and have known or random weights: there are none to download here.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD, centre_square, pixels
from handlers.image_classifier import ImageClassifier
from handlers.image_segmenter import ImageSegmenter
from handlers.object_detector import ObjectDetector
from handlers.text_classifier import TextClassifier
from headrace.errors import ConfigError, HandlerError, InputError
from headrace.handler import Context, Handler
from tests.harness.pictures import encoded
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import warm_up

MODULES = """
import torch
from torch import nn

class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images):
        return {"out": self.conv(images), "aux": None}

class Boxes(nn.Module):
    '''One object per colour, with the colour's mean as its score.'''

    def forward(self, images):
        assert isinstance(images, list)
        found = []
        for image in images:
            high, wide = image.shape[1:]
            box = torch.tensor([[0.0, 0.0, wide, high]] * 3)
            found.append({"boxes": box, "labels": torch.tensor([1, 2, 3]),
                          "scores": image.mean(dim=(1, 2))})
        return found

class Broken(nn.Module):
    def forward(self, images):
        return (images,)

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(6, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, tokens, offsets):
        return self.fc(self.embedding(tokens, offsets))

class Channels(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "modules.py").write_text(MODULES)
    (tmp_path / "names.json").write_text(json.dumps({"1": "red", "2": ["n2", "green"]}))
    torch.save({"<unk>": 0, "good": 1, "bad": 2, "very": 3, "very good": 4}, tmp_path / "v.pt")
    return tmp_path


def made(kind: type[Handler], folder: Path, model: str, **options: Any) -> Any:
    chosen = {"model": f"modules.py:{model}", **options}
    context = Context("m", "1.0", "cpu", folder, options=chosen, max_batch_size=3)
    handler = kind()
    handler.initialize(context)
    return handler


def answers(handler: Any, inputs: list[Any], **asked: Any) -> list[Any]:
    handler.context.parameters = [asked for _ in inputs]
    return handler.postprocess(handler.inference(handler.preprocess(inputs)))  # type: ignore[no-any-return]


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    tones = np.random.default_rng(width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return encoded(Image.fromarray(tones), kind)


def test_segmentation_names_the_class_of_each_pixel(folder: Path) -> None:
    handler = made(ImageSegmenter, folder, "Segments", resize_px=24, crop_px=16)
    data = picture(40, 30)
    first, second = answers(handler, [data, base64.b64encode(data).decode()])
    assert first == second
    square = centre_square(Image.open(io.BytesIO(data)), 24, 16)
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (IMAGENET_MEAN, IMAGENET_STD))
    image = (pixels(square) / 255 - mean) / std
    with torch.inference_mode():
        expected = handler.model(image[None])["out"].softmax(1)[0]
    found = torch.tensor(first)
    assert found.shape == (16, 16, 2)
    assert torch.allclose(found[..., 1], expected.amax(0), atol=1e-5)
    assert torch.equal(found[..., 0], expected.argmax(0).float())


def test_images_and_lists_of_other_sizes_run_in_one_batch(folder: Path) -> None:
    handler = made(ImageSegmenter, folder, "Segments", resize_px=8, crop_px=8)
    tensor = torch.rand(3, 5, 6)
    found = answers(handler, [picture(9, 9), tensor.tolist(), picture(10, 10)])
    assert [np.shape(one) for one in found] == [(8, 8, 2), (5, 6, 2), (8, 8, 2)]
    with torch.inference_mode():
        best = handler.model(tensor[None])["out"].softmax(1).max(1)
    assert torch.allclose(torch.tensor(found[1])[..., 1], best.values[0], atol=1e-6)
    assert torch.equal(torch.tensor(found[1])[..., 0], best.indices[0].float())


def test_detection_gives_boxes_with_labels_and_scores(folder: Path) -> None:
    handler = made(ObjectDetector, folder, "Boxes", index_to_name="names.json")
    red = encoded(Image.new("RGB", (30, 20), (255, 0, 0)))
    grey = torch.full((3, 4, 5), 0.75).tolist()
    one, three, none = answers(handler, [red, grey, torch.zeros(3, 2, 2).tolist()])
    assert one == [{"red": [0.0, 0.0, 30.0, 20.0], "score": 1.0}]
    assert [set(found) for found in three] == [{name, "score"} for name in ("red", "green", "3")]
    assert three[2] == {"3": [0.0, 0.0, 5.0, 4.0], "score": 0.75}
    assert none == []


def test_texts_of_a_batch_all_get_their_classes(folder: Path) -> None:
    handler = made(TextClassifier, folder, "Bag", vocabulary="v.pt", index_to_name="names.json")
    texts = ["Very good!", b"bad", "unheard of"]
    ids = [[3, 1, 4], [2], [0, 0, 0]]
    for found, tokens in zip(answers(handler, texts), ids, strict=True):
        with torch.inference_mode():
            logits = handler.model(torch.tensor(tokens), torch.tensor([0]))
        assert list(found) == ["0", "red"]
        assert list(found.values()) == pytest.approx(logits.softmax(1)[0].tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "model", "good", "options"),
    [
        (ImageSegmenter, "Segments", picture(9, 9), {"resize_px": 8, "crop_px": 8}),
        (ObjectDetector, "Boxes", picture(9, 9), {}),
        (TextClassifier, "Bag", "good", {"vocabulary": "v.pt"}),
    ],
)
def test_a_bad_input_fails_alone(
    folder: Path, kind: type[Handler], model: str, good: Any, options: dict[str, Any]
) -> None:
    handler = made(kind, folder, model, **options)
    inputs = [good, b"\xff\xfe", {"a": 1}, "", ["x"], [[1]], good]
    items = handler.preprocess(inputs)
    assert [isinstance(item, InputError) for item in items] == [False, *[True] * 5, False]
    mates = [item for item in items if not isinstance(item, Exception)]
    assert len(handler.postprocess(handler.inference(mates))) == 2
    assert warm_up(BatchExecutor(handler, handler.context)) >= 0


def test_explanations_are_of_each_jobs_own_target(folder: Path) -> None:
    handler = made(ImageClassifier, folder, "Channels", resize_px=8, crop_px=8)
    data = picture(9, 9)
    handler.context.parameters = [
        {"explain": True, "target": 2}, {}, {"explain": True}, {"explain": True, "target": 9},
    ]  # fmt: skip
    items = handler.preprocess([data, data, data, data])
    second, plain, best, wrong = handler.postprocess(handler.inference(items))
    assert np.shape(second) == (3, 8, 8)
    # Each channel is a class of its own: the other channels say nothing about it.
    assert np.abs(second[0]).max() == np.abs(second[1]).max() == 0 < np.abs(second[2]).max()
    likeliest = plain["classes"][0]["index"]
    assert np.abs(best[likeliest]).max() > 0
    assert isinstance(wrong, InputError)


def test_segments_and_texts_are_explained_too(folder: Path) -> None:
    segmenter = made(ImageSegmenter, folder, "Segments", resize_px=8, crop_px=8)
    (found,) = answers(segmenter, [picture(9, 9)], explain=True, target=1)
    assert np.shape(found) == (3, 8, 8)
    classifier = made(TextClassifier, folder, "Bag", vocabulary="v.pt")
    (found,) = answers(classifier, ["Good, bad!"], explain=True)
    assert found["words"] == ["good", "bad"]
    assert np.shape(found["importances"]) == (1, 4)


def test_objects_have_no_explanation(folder: Path) -> None:
    (found,) = answers(made(ObjectDetector, folder, "Boxes"), [picture(5, 5)], explain=True)
    assert isinstance(found, InputError)
    assert "has no explanations" in found.message


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(ImageSegmenter, '"out": logits'), (ObjectDetector, "no boxes, labels and scores")],
)
def test_a_module_of_another_kind_is_named(
    folder: Path, kind: type[Handler], expected: str
) -> None:
    handler = kind()
    options = {"model": "modules.py:Broken"}
    handler.initialize(Context("m", "1.0", "cpu", folder, options=options, channels_last="off"))
    with pytest.raises(HandlerError, match=expected):
        answers(handler, [picture(5, 5)])


@pytest.mark.parametrize("kind", [ImageSegmenter, ObjectDetector, TextClassifier])
def test_the_module_must_be_named(folder: Path, kind: type[Handler]) -> None:
    torch.save({"a": 1}, folder / "source_vocab.pt")
    with pytest.raises(ConfigError, match="the option `model` is missing") as caught:
        kind().initialize(Context("m", "1.0", "cpu", folder))
    assert "options.model" in caught.value.hint


def test_a_vocabulary_is_needed(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no vocabulary .*source_vocab.pt"):
        made(TextClassifier, folder, "Bag")


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "1"])
def test_the_tones_of_an_image_are_those_of_its_array(mode: str) -> None:
    image = Image.effect_noise((7, 5), 80).convert("RGB").convert(mode)
    array = np.array(image, np.uint8).reshape(5, 7, -1).transpose(2, 0, 1)
    assert np.array_equal(pixels(image).numpy(), array * (255 if mode == "1" else 1))
    assert pixels(image).is_contiguous()
