"""Penalties, biases and the other parameters of sampling: as transformers and vLLM have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.language_model import INCLUDED, LanguageModel
from headrace.errors import InputError
from headrace.generator import Piece
from tests.unit.handlers.test_language_model import (
    QUESTION,
    answer,
    answers,
    loaded,
    one_thread,
    reference,
    request,
    run,
    text,
)

__all__ = ["one_thread", "reference"]
#: Of this the model knows nothing, so small changes of the logits change the answer.
FOX = {"prompt": "The quick brown fox"}
SHORT = {"messages": [{"role": "user", "content": "What is math.pi?"}]}
GREEDY = {**FOX, "max_tokens": 40, "temperature": 0}
ALL: dict[str, Any] = {
    "frequency_penalty": 0.7,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.2,
    "min_p": 0.05,
    "logit_bias": {"300": 3, "9": -100},
    "min_tokens": 30,
}


@pytest.fixture(scope="module", params=["continuous", "generate"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    handler = loaded(engine=request.param)
    yield handler
    handler.engine.close()


def tokens_of(pieces: list[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.tokens]


def written(model: LanguageModel, value: Any) -> list[int]:
    """The tokens of an answer."""
    model.add("job", request(model, value))
    return tokens_of(run(model, "job"))


@cache
def generated(reference: Any, prompt: tuple[int, ...], options: str) -> list[int]:
    """What transformers writes: the same for each engine."""
    ids = torch.tensor([prompt])
    found = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False,
        **json.loads(options),
    )  # fmt: skip
    return found[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("about", "ours", "theirs"),
    [
        (FOX, {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (FOX, {"repetition_penalty": 0.7}, {"repetition_penalty": 0.7}),
        (FOX, {"logit_bias": {"300": 4, "16": -100}},
         {"sequence_bias": [[[300], 4.0], [[16], -100.0]]}),
        (SHORT, {"min_tokens": 39}, {"min_new_tokens": 39}),
        (SHORT, {"min_tokens": 35, "repetition_penalty": 1.3},
         {"min_new_tokens": 35, "repetition_penalty": 1.3}),
    ],
)  # fmt: skip
def test_answers_are_those_of_generate(
    model: LanguageModel, reference: Any, about: Any, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    value = {**about, "max_tokens": 40, "temperature": 0}
    prompt = tuple(request(model, value).tokens)
    expected = generated(reference, prompt, json.dumps(theirs))
    assert expected != generated(reference, prompt, "{}")
    assert written(model, {**value, **ours}) == expected


def test_penalties_of_openai_follow_their_formula(model: LanguageModel, reference: Any) -> None:
    value = {**GREEDY, "frequency_penalty": 0.9, "presence_penalty": -0.4, "ignore_eos": True}
    tokens = list(request(model, value).tokens)
    counts: Counter[int] = Counter()
    expected: list[int] = []
    with torch.inference_mode():
        for _ in range(40):
            logits = reference(torch.tensor([tokens + expected])).logits[0, -1]
            for token, count in counts.items():
                logits[token] -= 0.9 * count - 0.4
            expected.append(int(logits.argmax()))
            counts[expected[-1]] += 1
    plain = written(model, {**GREEDY, "ignore_eos": True})
    assert written(model, value) == expected != plain


def test_min_p_leaves_what_is_nearly_the_likeliest(model: LanguageModel) -> None:
    best = written(model, GREEDY)
    hot = {**GREEDY, "temperature": 2, "seed": 4}
    assert written(model, {**hot, "min_p": 1}) == best != written(model, hot)


def test_extreme_values_choose_tokens_that_can_follow(model: LanguageModel) -> None:
    for more in ({"temperature": 1e-300, "top_p": 0.5, "top_k": 2**31 - 1}, {"temperature": 1e-9}):
        assert written(model, {**GREEDY, **more}) == written(model, GREEDY)
    long = {**GREEDY, "temperature": 1, "top_p": 0.5, "top_k": 2**31 - 1}
    assert written(model, {**long, "seed": 1})


def test_parameters_change_only_their_own_answer(model: LanguageModel) -> None:
    hot = {"temperature": 1, "seed": 3}
    values = [
        GREEDY, {**GREEDY, **ALL}, {**GREEDY, **hot}, {**GREEDY, **hot, **ALL},
        {**GREEDY, "frequency_penalty": -1},
    ]  # fmt: skip
    together = answers(model, *values)
    assert together == [answer(model, value) for value in values]
    assert len({one.text for one in together}) == 5


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_with_penalties_goes_on_in_another_process(
    model: LanguageModel, temperature: int
) -> None:
    asked = request(model, {**FOX, **ALL, "max_tokens": 40, "temperature": temperature, "seed": 2})
    model.add("job", asked)
    whole = run(model, "job")
    assert len(tokens_of(whole)) >= 30
    for count in (1, 12, 25):
        model.add("job", asked)
        before = run(model, "job", count)
        model.cancel("job")
        model.add("job", asked, tokens_of(before))
        assert text(before) + text(run(model, "job")) == text(whole)


def test_stop_tokens_end_an_answer_and_are_no_part_of_its_text(model: LanguageModel) -> None:
    tokens = written(model, GREEDY)
    place = next(n for n in range(5, 30) if tokens.index(tokens[n]) == n)
    value = {**GREEDY, "stop_token_ids": [7, tokens[place]], "logprobs": 0}
    for more in ({}, {"ignore_eos": True}):
        asked = request(model, {**value, **more})
        model.add("job", asked)
        pieces = run(model, "job")
        assert tokens_of(pieces) == tokens[: place + 1]
        assert pieces[-1].finish == "stop"
        found = "".join(piece.delta["text"] for piece in pieces if piece.delta)
        assert found == model.tokenizer.decode(tokens[:place])
        model.add("job", asked, tokens_of(pieces))
        assert [one.finish for one in run(model, "job")] == ["stop"]
    (longer,) = answers(model, {**GREEDY, **value, "logprobs": None, "min_tokens": place + 3})
    assert longer.usage["completion_tokens"] >= place + 3


def test_min_tokens_leave_a_shape_its_end(model: LanguageModel) -> None:
    value = {**GREEDY, **ALL, "structured": {"choice": ["yes", "no"]}}
    assert answer(model, value).text in ("yes", "no")


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_prompt_comes_before_its_answer_with_log_probabilities(
    model: LanguageModel, reference: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handlers.generation.sampling._LOGITS", 7 * 2048)
    prompt = "zip(*iterables, strict=False) yields tuples<|end|>" * 3
    value = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": most, "temperature": 0}
    tokens = list(request(model, value).tokens)
    found, other = model.postprocess(answers(model, value, {**value, "prompt": tokens}))
    assert [one["token"] for one in found["logprobs"]] == [
        one["token"] for one in other["logprobs"]
    ]
    assert found["text"].startswith(prompt)
    assert found["usage"]["prompt_tokens"] == len(tokens)
    whole = written(model, {"prompt": prompt, "max_tokens": most or 1, "temperature": 0})[:most]
    assert len(found["logprobs"]) == len(tokens) + len(whole)
    with torch.inference_mode():
        shares = reference(torch.tensor([tokens + whole])).logits[0].log_softmax(dim=-1)
    first, *others = found["logprobs"]
    assert (first["logprob"], first["top_logprobs"]) == (None, [])
    for one, token, row in zip(others, (tokens + whole)[1:], shares, strict=False):
        assert one["logprob"] == pytest.approx(float(row[token]), abs=1e-3)
        tops = [top["logprob"] for top in one["top_logprobs"]]
        assert tops == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)
    assert found["text"] == prompt + model._decode(whole)


def test_an_echo_comes_once(model: LanguageModel) -> None:
    value = {"prompt": "zip", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    plain = answer(model, value).text
    assert answer(model, {**value, "echo": True}).text == f"zip{plain}"
    assert answer(model, {**value, "echo": True, "max_tokens": 0}).text == "zip"
    asked = request(model, {**value, "echo": True, "logprobs": 0})
    model.add("job", asked)
    before = run(model, "job", 2)
    model.cancel("job")
    model.add("job", asked, tokens_of(before))
    pieces = [*before, *run(model, "job")]
    assert "".join(piece.delta["text"] for piece in pieces if piece.delta) == f"zip{plain}"
    model.add("job", asked)
    free = model.budget().slots
    model.pause({"job"})
    assert not list(model.step())
    model.pause(set())
    model.cancel("job")
    assert model.budget().slots == free + 1
    assert answer(model, {**value, "echo": True}).text == f"zip{plain}"


def test_a_model_whose_prompts_cannot_be_read_in_pieces_says_so(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.engine), "has_prompt_scores", False)
    with pytest.raises(InputError, match="logprobs: this model has none of prompts"):
        request(model, {"prompt": "a", "echo": True, "logprobs": 0})
    assert request(model, {"prompt": "a", "echo": True}).echo == "a"


def test_defaults_are_those_of_the_folder(tmp_path: Path) -> None:
    for file in INCLUDED.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((INCLUDED / "generation_config.json").read_text())
    config |= {"repetition_penalty": 1.5}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    handler = loaded(folder=str(tmp_path))
    try:
        plain = answer(handler, {**GREEDY, "repetition_penalty": 1})
        penalized = answer(handler, {**GREEDY, "repetition_penalty": 1.5})
        assert answer(handler, GREEDY) == penalized != plain
    finally:
        handler.engine.close()


def test_templates_get_their_variables(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ mood }}"
    monkeypatch.setattr(
        model.tokenizer, "chat_template", template + "{% if add_generation_prompt %}!{% endif %}"
    )
    begin = {"role": "assistant", "content": "Well"}
    chat = {"messages": [*QUESTION["messages"], begin]}

    def prompt(**more: Any) -> str:
        return str(model.tokenizer.decode(request(model, {**chat, **more}).tokens))

    plain = "<|user|>What does zip do?<|assistant|>Well"
    variables = {"chat_template_kwargs": {"mood": "?"}}
    assert prompt() == f"{plain}!"
    assert prompt(**variables) == f"{plain}?!"
    assert prompt(add_generation_prompt=False) == plain
    assert prompt(continue_final_message=True, **variables) == plain


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty: Expected `float` <= 2"),
        ({"presence_penalty": -3}, "presence_penalty: Expected `float` >= -2"),
        ({"repetition_penalty": 1e-9}, "repetition_penalty: Expected `float` >= 0.01"),
        ({"repetition_penalty": 1e39}, "repetition_penalty: Expected `float` <= 100"),
        ({"top_k": 10**400}, "top_k: "),
        ({"top_k": 2**31}, "top_k: Expected `int` <= 2147483647"),
        ({"min_p": 1.5}, "min_p: Expected `float` <= 1"),
        ({"min_tokens": 11}, "min_tokens: it is 11, above the 10 tokens"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias: the key '1.5' is no token"),
        ({"logit_bias": {"2048": 1}}, "logit_bias: it has a token above 2,047"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]: Expected `float` <= 100"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]: Expected `int` >= 0"),
        ({"echo": True}, "echo: it is only for a prompt"),
        ({"max_tokens": 0}, "max_tokens: it is 0"),
        ({"chat_template_kwargs": {"tokenize": False}}, "'tokenize' is no variable"),
    ],
)
def test_values_out_of_range_are_refused(
    model: LanguageModel, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        request(model, {**QUESTION, "max_tokens": 10, **more})
    assert message in str(caught.value)
