"""The handler `text_embedding`, on the model that comes with Headrace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.language_model import INCLUDED
from handlers.text_embedding import TextEmbedding
from headrace.errors import ConfigError, InputError
from headrace.handler import Context

TEXTS = ["def", "a longer text about json", "zip takes iterables"]


def loaded(base: Path = Path("/"), /, **options: Any) -> TextEmbedding:
    handler = TextEmbedding()
    handler.initialize(Context("m", "1", "cpu", base, options=options))
    return handler


def vectors(handler: TextEmbedding, *inputs: Any) -> list[list[float]]:
    items = handler.preprocess(list(inputs))
    return [one["embedding"] for one in handler.inference(items)]


@pytest.fixture(scope="module")
def states() -> list[torch.Tensor]:
    """The last hidden states of each text, alone."""
    # Each process that collects these tests would take a second to import it.
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(INCLUDED)
    model: Any = AutoModel.from_pretrained(INCLUDED, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [
            model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0] for text in TEXTS
        ]


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("mean", lambda found: found.mean(0)),
        ("first", lambda found: found[0]),
        ("last", lambda found: found[-1]),
    ],
)
def test_a_batch_has_the_vectors_of_its_texts(
    states: list[torch.Tensor], pooling: str, pooled: Any
) -> None:
    found = vectors(loaded(pooling=pooling, normalize=False), *TEXTS)
    for vector, expected in zip(found, states, strict=True):
        assert vector == pytest.approx(pooled(expected).tolist(), abs=1e-4)


def test_vectors_have_the_length_one() -> None:
    for vector in vectors(loaded(), *TEXTS):
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-5)


def test_tokens_are_as_good_as_their_text() -> None:
    handler = loaded()
    (item,) = handler.preprocess([TEXTS[1]])
    (output,) = handler.inference([item])
    assert vectors(handler, item) == [output["embedding"]]
    assert output["usage"]["prompt_tokens"] == len(item)
    assert vectors(handler, TEXTS[1].encode()) == [output["embedding"]]


def test_a_folder_of_sentence_transformers_names_its_pooling(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(INCLUDED, folder)
    assert loaded(tmp_path, folder="model").pooling == "mean"
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )
    assert loaded(tmp_path, folder="model").pooling == "first"
    assert loaded(tmp_path, folder="model", pooling="last").pooling == "last"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "the text is empty"),
        ("for " * 50, "context length is 20 tokens"),
        ("for " * 5000, "far more tokens, and this model's maximum context length is 20"),
        (b"\xff", "no text in UTF-8"),
        ({"text": "a"}, "neither a text nor a list of tokens"),
        ([-1], "neither a text nor a list of tokens"),
        ([True], "neither a text nor a list of tokens"),
        ([99_999], "a token is above 2,047"),
    ],
)
def test_a_bad_text_fails_alone(value: Any, message: str) -> None:
    good, bad = loaded(context=20).preprocess(["def", value])
    assert isinstance(good, list)
    assert isinstance(bad, InputError)
    assert message in bad.message


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        loaded(tmp_path, folder="nothing")
