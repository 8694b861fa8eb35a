from __future__ import annotations

import io
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from examples.digits_dataset import HELD_OUT, held_out, split, to_png
from handlers.digits import WEIGHTS, Digits, DigitsNet, frame
from headrace.errors import ConfigError, InputError
from headrace.handler import Context
from tests.harness.pictures import encoded
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import warm_up

DEMO = Path(__file__).parents[3] / "examples" / "digits"
BLANK = Image.new("L", (64, 64), 200)


def context(**changes: Any) -> Context:
    return Context("digits", "1.0", "cpu", Path(), **changes)


@pytest.fixture(scope="module")
def handler() -> Digits:
    handler = Digits()
    handler.initialize(context())
    return handler


def test_its_example_goes_through_all_verbs(
    handler: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    run = DigitsNet.forward

    def forward(self: DigitsNet, images: Tensor) -> Tensor:
        batches.append(tuple(images.shape))
        return run(self, images)

    monkeypatch.setattr(DigitsNet, "forward", forward)
    warm_up(BatchExecutor(handler, replace(handler.context, max_batch_size=4)))
    assert batches == [(1, 1, 8, 8), (4, 1, 8, 8)]


def test_it_loads_also_where_no_image_is_small_enough() -> None:
    Digits().initialize(context(options={"max_pixels": 1}))


def answers(handler: Digits, inputs: list[Any]) -> list[Any]:
    return handler.postprocess(handler.inference(handler.preprocess(inputs)))


def accuracy(handler: Digits, pngs: list[bytes], labels: list[int]) -> float:
    found = [answer["digit"] for answer in answers(handler, pngs)]
    return float((np.array(found) == labels).mean())


def test_accuracy_on_digits_that_training_never_saw(handler: Digits) -> None:
    pngs, labels = zip(*held_out(), strict=True)
    assert len(pngs) == HELD_OUT
    # 358 are right, as the documentation states; another CPU may round one the other way.
    assert accuracy(handler, list(pngs), list(labels)) >= 0.99


def test_the_split_is_the_same_for_training_and_measuring() -> None:
    train, test = split()
    assert len(train.labels) == 1437
    assert not set(train.indices) & set(test.indices)


@pytest.mark.parametrize("options", [{"dark_ink": False}, {"side_px": 8}, {"side_px": 150}])
def test_polarity_and_size_do_not_matter(handler: Digits, options: dict[str, Any]) -> None:
    _, test = split()
    pngs = [to_png(image, **options) for image in test.images[:150]]
    assert accuracy(handler, pngs, test.labels[:150].tolist()) >= 0.97


def test_margins_jpeg_and_noise_do_not_matter(handler: Digits) -> None:
    _, test = split()
    noise = np.random.default_rng(0)
    photos = []
    for image in test.images[:150]:
        paper = Image.new("L", (140, 100), 255)
        paper.paste(Image.open(io.BytesIO(to_png(image))), (50, 20))
        tones = np.asarray(paper) * 0.6 + 60 + noise.normal(0, 5, (100, 140))
        photos.append(encoded(Image.fromarray(tones.clip(0, 255).astype(np.uint8)), "JPEG"))
    assert accuracy(handler, photos, test.labels[:150].tolist()) >= 0.97


def test_an_answer_does_not_depend_on_its_batch(handler: Digits) -> None:
    pngs = [png for png, _ in held_out()[:40]]
    together = answers(handler, pngs)
    alone = [answers(handler, [png])[0] for png in pngs]
    assert [a["digit"] for a in together] == [a["digit"] for a in alone]
    for a, b in zip(together, alone, strict=True):
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-5)


def test_the_form_of_an_answer(handler: Digits) -> None:
    (answer,) = answers(handler, [held_out()[0][0]])
    assert set(answer) == {"digit", "probability", "probabilities"}
    assert len(answer["probabilities"]) == 10
    assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-4)
    assert answer["probability"] == max(answer["probabilities"])
    assert answer["probabilities"][answer["digit"]] == answer["probability"]


def test_the_images_of_the_demo_are_held_out_and_named_right(handler: Digits) -> None:
    paths = sorted(DEMO.glob("*.png"))
    _, test = split()
    assert len(paths) >= 12
    assert {path.name[0] for path in paths} == set("0123456789")
    assert {int(path.stem[2:]) for path in paths} <= set(test.indices.tolist())
    found = answers(handler, [path.read_bytes() for path in paths])
    assert [answer["digit"] for answer in found] == [int(path.name[0]) for path in paths]


def test_bad_inputs_fail_at_their_place_while_their_mates_succeed(handler: Digits) -> None:
    png, label = held_out()[0]
    bad: list[Any] = [b"", b"not an image", png[:100], {"image": 1}, encoded(BLANK)]
    inputs = [png, *bad, png]
    items = handler.preprocess(inputs)
    assert [isinstance(item, InputError) for item in items] == [False, *[True] * len(bad), False]
    messages = [item.message for item in items[1:-1]]
    for message, part in zip(
        messages,
        ["0 bytes", "not an image", "cannot be decoded", "a JSON object", "the image is blank"],
        strict=True,
    ):
        assert part in message
    good = [item for item in items if not isinstance(item, Exception)]
    found = handler.postprocess(handler.inference(good))
    assert [answer["digit"] for answer in found] == [label, label]


def test_input_errors_keep_no_frames_alive(handler: Digits) -> None:
    (error,) = handler.preprocess([b"not an image"])
    assert error.__traceback__ is None


def test_max_pixels_is_an_option() -> None:
    handler = Digits()
    handler.initialize(context(options={"max_pixels": 100}))
    (error,) = handler.preprocess([encoded(BLANK)])
    assert "at most 100 are allowed" in error.message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_pixel": 1}, "options.max_pixel: unknown option; did you mean max_pixels?"),
        ({"max_pixels": 0}, "options.max_pixels: expected int >= 1, got 0"),
        ({"max_pixels": 10**9}, "options.max_pixels: expected int <= 89478485"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Digits().initialize(context(options=options))
    assert f"model digits: {expected}" in caught.value.message


def test_weights_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(ConfigError, match="there is no weights file"):
        Digits().initialize(context(weights=path))
    path.write_bytes(b"not weights")
    with pytest.raises(ConfigError, match="cannot be read as weights"):
        Digits().initialize(context(weights=path))


def test_the_weights_are_small() -> None:
    assert WEIGHTS.stat().st_size < 200_000


def test_a_frame_is_the_digit_alone() -> None:
    image = Image.new("L", (100, 60), 230)
    image.paste(30, (70, 10, 80, 50))
    framed = frame(image)
    assert framed.shape == (8, 8)
    # 10 of 40 pixels are 2 of 8, in the middle.
    assert framed[:, 3:5].min() == pytest.approx(1)
    assert framed[:, :3].max() == framed[:, 5:].max() == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (2, 2)])
def test_tiny_images_are_answered_or_refused(handler: Digits, size: tuple[int, int]) -> None:
    (item,) = handler.preprocess([encoded(Image.new("L", size, 0))])
    assert isinstance(item, InputError)
    striped = np.zeros(size, dtype=np.uint8)
    striped[0, 0] = 255
    (item,) = handler.preprocess([encoded(Image.fromarray(striped))])
    assert isinstance(item, InputError) or item.shape == (1, 8, 8)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (16_000, 3), (4000, 4000)])
def test_memory_does_not_grow_with_the_longest_side(handler: Digits, size: tuple[int, int]) -> None:
    striped = np.zeros(size[::-1], dtype=np.uint8)
    striped[: size[1] // 2 + 1, : size[0] // 2 + 1] = 255
    data = encoded(Image.fromarray(striped))
    tracemalloc.start()
    try:
        handler.preprocess([data])
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
