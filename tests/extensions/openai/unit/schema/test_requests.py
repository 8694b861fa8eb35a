"""OpenAI's requests: what is read, what is refused, and the inputs of their jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from extensions.openai.schema.answers import (
    Completion,
    Generation,
    PromptTokensDetails,
    TokenCounts,
    Usage,
    answer,
    read_generation,
    usage_of,
)
from extensions.openai.schema.errors import failure_of, openai_error, status_of
from extensions.openai.schema.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIRequest,
    read_request,
)
from extensions.openai.schema.responses import ECHO, ResponseRequest
from handlers.generation.inputs import CONTEXT_LENGTH
from headrace.errors import (
    HeadraceError,
    InputError,
    InvalidInput,
    InvalidParameter,
    InvalidRequest,
    ModelNotFound,
    RateLimited,
    TooManyInFlight,
    Unauthorized,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> ChatRequest:
    body = {"model": "m", "messages": MESSAGES, **more}
    return read_request(json.dumps(body).encode(), ChatRequest)


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        (ChatRequest, chat_params.CompletionCreateParamsBase.__annotations__),
        (CompletionRequest, CompletionCreateParamsBase.__annotations__),
        (EmbeddingRequest, EmbeddingCreateParams.__annotations__),
        (ResponseRequest, ResponseCreateParamsBase.__annotations__),
    ],
)
def test_every_field_of_openais_api_is_known(
    shape: type[OpenAIRequest], fields: dict[str, Any]
) -> None:
    """A field that the SDK can send is either read or refused by name."""
    assert not fields.keys() - {"stream"} - {*shape.__struct_fields__, *shape.unsupported}


def inputs_of(request: OpenAIRequest) -> list[Any]:
    """The inputs of its jobs, decoded."""
    return [json.loads(one) for one in request.inputs()]


def test_answers_to_one_prompt_share_its_input() -> None:
    body = json.dumps({"model": "m", "prompt": ["a", "b"], "n": 3, "stop": ["."]}).encode()
    inputs = read_request(body, CompletionRequest).inputs()
    assert len(inputs) == 6
    assert len({id(one) for one in list(inputs)}) == 2
    assert inputs.total_bytes == sum(map(len, inputs))
    texts = EmbeddingRequest(model="m", input=["a", "bcd"]).inputs()
    assert (list(texts), texts.total_bytes) == ([b'"a"', b'"bcd"'], 8)


@pytest.mark.parametrize("stop", [["a"] * 17, "a" * 1025, ["a", "b" * 1025]])
def test_stop_texts_have_limits(stop: Any) -> None:
    with pytest.raises(InvalidParameter, match="of length <=") as error:
        chat(stop=stop)
    assert error.value.param == "stop"
    assert inputs_of(chat(stop=["a" * 1024] * 16))


def test_the_input_of_a_chat_has_what_was_given() -> None:
    assert inputs_of(chat()) == [{"messages": MESSAGES}]
    given = chat(max_completion_tokens=7, temperature=0, top_p=0.5, stop=["a"], seed=3, n=2)
    first, second = inputs_of(given)
    assert given.inputs().total_bytes == sum(map(len, given.inputs()))
    assert first == {
        "messages": MESSAGES, "max_tokens": 7, "temperature": 0, "top_p": 0.5, "stop": ["a"],
        "seed": 3,
    }  # fmt: skip
    assert second == {**first, "seed": 4}


#: Fields of sampling; each is in the input of the job as it is.
SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["a"],
    "frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.1,
    "logit_bias": {"7": -100}, "min_tokens": 2, "stop_token_ids": [4], "ignore_eos": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        (ChatRequest, {"continue_final_message": True, "chat_template_kwargs": {"a": 1}}),
        (CompletionRequest, {"echo": True, "max_tokens": 0}),
        (ResponseRequest, {"chat_template_kwargs": {"a": 1}}),
    ],
)
def test_what_changes_something_is_in_the_input(
    shape: type[OpenAIRequest], more: dict[str, Any]
) -> None:
    asked = {**SAMPLING, **more}
    body = {"model": "m", "messages": MESSAGES, "prompt": "a", "input": "hi", **asked}
    fields = {name: one for name, one in body.items() if name in shape.__struct_fields__}
    (value,) = inputs_of(read_request(json.dumps(fields).encode(), shape))
    assert {name: one for name, one in value.items() if name not in ("messages", "prompt")} == asked


def test_the_likeliest_of_more_answers_are_returned() -> None:
    def made(text: str, *logprobs: float) -> bytes:
        tokens = [{"token": "a", "logprob": one} for one in logprobs]
        usage = {"prompt_tokens": 1, "completion_tokens": len(logprobs), "total_tokens": 3}
        return json.dumps({"text": text, "logprobs": tokens, "usage": usage}).encode()

    fields = {"model": "m", "prompt": ["p", "q"], "n": 2, "best_of": 3}
    asked = read_request(json.dumps(fields).encode(), CompletionRequest)
    assert [one["logprobs"] for one in inputs_of(asked)] == [0] * 6
    results = [made("worst", -9), made("second", -1, -3), made("best", -1, -1)] * 2
    found = answer(asked, "cmpl-1", 0, results)
    assert isinstance(found, Completion)
    assert [(one.index, one.text, one.logprobs) for one in found.choices] == [
        (0, "best", None), (1, "second", None), (2, "best", None), (3, "second", None),
    ]  # fmt: skip
    assert found.usage == Usage(2, 10, 12)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"n": 3, "best_of": 2}, "best_of is below n"),
        ({"best_of": 2, "stream": True}, "best_of is not for streams"),
        ({"best_of": 21}, "best_of: expected"),
        ({"max_tokens": 0}, "max_tokens is 0 without echo"),
    ],
)
def test_a_completion_that_makes_no_sense_is_refused(more: dict[str, Any], message: str) -> None:
    body = json.dumps({"model": "m", "prompt": "a", **more}).encode()
    with pytest.raises(InvalidParameter, match=message):
        read_request(body, CompletionRequest)


def test_log_probabilities_are_an_option_of_the_model() -> None:
    def wanted(request: OpenAIRequest) -> list[Any]:
        return [one.get("logprobs") for one in inputs_of(request)]

    assert wanted(chat(logprobs=False, top_logprobs=0)) == [None]
    assert wanted(chat(logprobs=True)) == [0]
    assert wanted(chat(logprobs=True, top_logprobs=5, n=2)) == [5, 5]
    body = json.dumps({"model": "m", "prompt": ["a", "b"], "logprobs": 0}).encode()
    assert wanted(read_request(body, CompletionRequest)) == [0, 0]


def test_a_developers_message_is_the_systems() -> None:
    (found,) = inputs_of(chat(messages=[{"role": "developer", "content": "be brief"}]))
    assert found["messages"] == [{"role": "system", "content": "be brief"}]


def test_null_is_as_good_as_absent() -> None:
    absent = chat(max_tokens=None, tools=None, logprobs=None, stream=None)
    assert inputs_of(absent) == inputs_of(chat())


def test_flex_is_offline_and_the_user_is_kept() -> None:
    assert chat().options().priority == 0
    options = chat(service_tier="flex", user="ann", metadata={"a": "b"}).options()
    assert options.priority == 9
    assert options.metadata == {"a": "b", "user": "ann"}
    assert chat(service_tier="auto").tier == "default"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"a": "\xff"}', "the body is not JSON: .* position 7"),
        (b"[]", "the body is no JSON object"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_request(body, ChatRequest)


def test_a_hint_changes_nothing() -> None:
    hints = {"prompt_cache_key": "a", "prompt_cache_retention": "24h", "safety_identifier": "ann"}
    assert inputs_of(chat(**hints)) == inputs_of(chat())
    with pytest.raises(InvalidParameter, match="unknown field"):
        read_request(b'{"model": "m", "input": "a", "prompt_cache_key": "a"}', EmbeddingRequest)


#: Fields with values that change nothing, as clients of these servers and load tools send them.
NEUTRAL: list[tuple[type[OpenAIRequest], dict[str, Any]]] = [
    (ChatRequest, {
        "stream": True, "min_p": 0.0, "min_tokens": 0, "repetition_penalty": 1.0, "top_k": -1,
        "stream_options": {"include_usage": None, "continuous_usage_stats": True},
        "skip_special_tokens": True, "max_tokens": -1, "max_completion_tokens": -1, "user": None,
        "chat_template_kwargs": {}, "stop_token_ids": [], "ignore_eos": None, "extra_key": "a",
        "reasoning_effort": "none", "usage": {"include": True}, "thinking": {"type": "disabled"},
        "structured_outputs": {"json": None, "json_object": False, "disable_fallback": False},
        "tools": [], "tool_choice": "auto", "prediction": {"type": "content", "content": "a"},
    }),
    (CompletionRequest, {
        "repetition_penalty": 1, "best_of": 1, "echo": False, "suffix": "", "logit_bias": {},
        "frequency_penalty": 0, "presence_penalty": 0.0,
    }),
    (EmbeddingRequest, {
        "truncate_prompt_tokens": -1, "dimensions": None, "priority": 0, "min_p": 0,
    }),
    (ResponseRequest, {
        "include": ["reasoning.encrypted_content", "file_search_call.results"],
        "reasoning": {"effort": None, "summary": "auto"}, "truncation": "auto",
        "text": {"format": None, "verbosity": "medium"}, "max_output_tokens": -1,
        "stream_options": {"include_obfuscation": True},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "neutral"), NEUTRAL)
def test_what_changes_nothing_is_accepted(
    shape: type[OpenAIRequest], neutral: dict[str, Any]
) -> None:
    given = {"model": "m", "messages": MESSAGES, "prompt": "a", "input": "a"}
    plain = {name: one for name, one in given.items() if name in shape.__struct_fields__}
    expected = inputs_of(read_request(json.dumps(plain).encode(), shape))
    assert inputs_of(read_request(json.dumps({**plain, **neutral}).encode(), shape)) == expected


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"include": ["reasoning.encrypted_content", "other"]}, "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"reasoning": {"other": 1}}, "reasoning"),
        ({"text": {"verbosity": "low"}}, "text"),
    ],
)
def test_a_member_that_changes_something_is_refused(given: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "m", "input": "a", **given}).encode()
    with pytest.raises(InvalidParameter, match="not supported here") as error:
        read_request(body, ResponseRequest)
    assert openai_error(error.value).error.param == param
    assert openai_error(error.value).error.code == "unsupported_parameter"


def failed(kind: type[HeadraceError], message: str) -> HeadraceError:
    return failure_of(kind.code, message, retryable=False, text_field="input")


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (ModelNotFound("no model"), "model_not_found", "model"),
        (Unauthorized("no key"), "invalid_api_key", None),
        (RateLimited("too fast"), "rate_limit_exceeded", None),
        (TooManyInFlight("too many"), "rate_limit_exceeded", None),
        (failed(InputError, f"too long: {CONTEXT_LENGTH} 9"), "context_length_exceeded", "input"),
        (failed(InputError, "messages[1].content is no text"), "invalid_value", "input"),
        (failed(InputError, "seed: too large"), "invalid_value", "seed"),
        (failed(InputError, "no image"), "invalid_value", None),
        (failed(InvalidInput, "the input does not fit"), "invalid_value", "input"),
    ],
)
def test_codes_are_openais(error: HeadraceError, code: str, param: str | None) -> None:
    found = openai_error(error).error
    assert (found.code, found.param) == (code, param)
    assert status_of(error) in (400, 401, 404, 429)


def test_a_hint_begins_a_sentence() -> None:
    error = ModelNotFound("no model 'a'; did you mean b?", hint="use one of b")
    found = openai_error(error).error
    assert (found.message, found.param) == ("no model 'a'; did you mean b? Use one of b", "model")


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"model": None}, "model", "model is missing"),
        ({"n": 0}, "n", "n: expected"),
        ({"n": 129}, "n", "n: expected"),
        ({"seed": "x"}, "seed", "seed: expected"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for streams"),
        ({"stream": True, "stream_options": {"usage": 1}}, "stream_options", "unknown field"),
        ({"response_format": {"type": "json"}}, "response_format", "type is unknown"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "frequency_penalty: expected"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty: expected"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias.*: expected"),
        ({"best_of": 2}, "best_of", "unknown field"),
        ({"xtc_probability": 0.5, "watermark": True}, "xtc_probability", "^xtc_.* not supported"),
        ({"watermark": True, "xtc_probability": 0.5}, "watermark", "^watermark is not supported"),
        ({"thinking": {"type": "enabled"}}, "thinking", "not supported"),
        (
            {"service_tier": "gold"},
            "service_tier",
            "service_tier: expected auto, default, flex or priority, got 'gold'",
        ),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs: expected"),
        ({"top_logprobs": 2}, "top_logprobs", "only for answers with logprobs"),
        ({"mesages": 1}, "mesages", "did you mean messages"),
    ],
)
def test_a_bad_field_is_named(given: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as error:
        chat(**given)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), ("", 1), (["a", "b"], 2), ([1, 2], 1), ([[1, 2], [3]], 2)],
)
def test_prompts_are_texts_or_tokens(prompt: Any, count: int) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    inputs = inputs_of(read_request(body, CompletionRequest))
    assert len(inputs) == count
    assert all(one["max_tokens"] == 16 for one in inputs)


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], {"a": 1}, 7, [-1], [[1], "a"]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    with pytest.raises(InvalidParameter, match="prompt is neither a text"):
        read_request(body, CompletionRequest).inputs()


@pytest.mark.parametrize(
    ("texts", "index"), [(["a", "b", 7, 8], 2), ([[1], "a"], 1), ([[1], []], 1), ([1, -1], 1)]
)
def test_the_first_text_that_does_not_fit_is_named(texts: Any, index: int) -> None:
    body = json.dumps({"model": "m", "input": texts}).encode()
    with pytest.raises(InvalidParameter, match=rf"these: input\[{index}\] does not fit$"):
        read_request(body, EmbeddingRequest).inputs()


def test_each_job_of_several_texts_has_a_place() -> None:
    texts = EmbeddingRequest(model="m", input=["a", "b"])
    assert [texts.place_of(n, 2) for n in range(2)] == ["input[0]", "input[1]"]
    assert texts.place_of(0, 1) == ""
    prompts = CompletionRequest(model="m", prompt=["a", "b"], n=2)
    assert [prompts.place_of(n, 4) for n in (0, 1, 2, 3)] == ["prompt[0]"] * 2 + ["prompt[1]"] * 2
    assert CompletionRequest(model="m", prompt="a", n=2).place_of(1, 2) == ""


def test_a_prompt_with_several_answers_counts_once() -> None:
    request = chat(n=2)
    counts = [TokenCounts(5, 2, 7, 1), TokenCounts(5, 3, 8, 4)]
    found = [Generation("a", usage=count) for count in counts]
    assert usage_of(request, found) == Usage(5, 5, 10, PromptTokensDetails(1))
    assert usage_of(request, [found[0], Generation("b")]) is None


def test_a_text_is_a_generation() -> None:
    assert read_generation(b'"abc"', "m") == Generation("abc")
    assert read_generation(b'{"text": "a", "finish_reason": "eos"}', "m").finish == "stop"
    with pytest.raises(InvalidParameter, match="m is no language model"):
        read_generation(b"[1]", "m")


def test_long_instructions_are_not_repeated_but_sent() -> None:
    given = {"model": "m", "input": "hi", "instructions": "x" * 5000, "metadata": {"a": "b"}}
    request = read_request(json.dumps(given).encode(), ResponseRequest)
    (value,) = inputs_of(request)
    assert value["messages"][0] == {"role": "system", "content": "x" * 5000}
    metadata = request.options().metadata
    assert metadata is not None
    assert metadata["a"] == "b"
    assert metadata[ECHO]["instructions"] is None
    brief = read_request(json.dumps({**given, "instructions": "x"}).encode(), ResponseRequest)
    metadata = brief.options().metadata
    assert metadata is not None
    assert metadata[ECHO]["instructions"] == "x"
