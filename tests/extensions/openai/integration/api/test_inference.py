"""Chats, completions and embeddings through OpenAI's SDK: whole, in chunks, refused, hung up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from base64 import b64decode
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion

from headrace import errors
from tests.extensions.openai.harness.batches import sdk
from tests.extensions.openai.integration.api.conftest import MODELS
from tests.harness.deployments.site import Site
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until
from tests.integration.observability.test_metrics import samples

HANG_UPS = 250
LOADS = "Deserialize ``s`` (a ``str``, ``bytes`` or ``bytearray`` instance"


def chat(content: str = "What is json.loads?", **more: Any) -> dict[str, Any]:
    return {
        "model": "docs", "messages": [{"role": "user", "content": content}], "max_tokens": 60,
        "temperature": 0, **more,
    }  # fmt: skip


def scripted(**item: Any) -> dict[str, Any]:
    """A chat with the model `pieces`, which does what the item asks for."""
    return {"model": "pieces", "messages": [{"role": "user", "content": json.dumps(item)}]}


def texts(chunks: Any) -> dict[int, str]:
    """The texts of a stream, by the index of their answers."""
    found: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index] += choice.delta.content or ""
    return dict(found)


def test_a_chat_is_answered(client: Any, site: Site) -> None:
    answer: ChatCompletion = client.chat.completions.create(**chat())
    (choice,) = answer.choices
    assert choice.message.content is not None
    assert choice.message.content.startswith(LOADS)
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 40
    job = site.shown(answer.id)
    assert job["result"]["text"] == choice.message.content
    assert answer._request_id == answer.id


def test_usage_has_the_tokens_that_were_cached(client: Any, site: Site) -> None:
    def counted() -> float:
        return samples(site.api, "headrace_prompt_tokens_cached_total")["docs",]

    before = counted()
    system = {"role": "system", "content": "Answer like the help of Python. " * 20}
    asked = [system, {"role": "user", "content": "What is zip?"}]
    one, other = (
        client.chat.completions.create(**{**chat(n=n), "messages": asked}).usage for n in (1, 2)
    )
    cached = other.prompt_tokens_details.cached_tokens
    assert one.prompt_tokens_details.cached_tokens == 0
    assert 0 < cached <= other.prompt_tokens
    response = client.responses.create(model="docs", input=asked, max_output_tokens=16)
    assert response.usage.input_tokens_details.cached_tokens == cached
    wait_until(lambda: counted() == before + 3 * cached, "the tokens of each job are counted")


def test_an_answer_fits_the_types_of_the_sdk(site: Site) -> None:
    with openai.OpenAI(
        base_url=f"{site.api.url}/v1", api_key="none", _strict_response_validation=True,
        http_client=openai.DefaultHttpxClient(verify=PLAIN),
    ) as strict:  # fmt: skip
        client: Any = strict
        assert client.chat.completions.create(**chat()).choices
        assert list(client.chat.completions.create(**chat(stream=True)))
        assert client.completions.create(model="docs", prompt="def").choices
        likely: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
        for asked in (chat(**likely), chat(**likely, max_tokens=5)):
            assert client.chat.completions.create(**asked).choices[0].logprobs.content
            assert list(client.chat.completions.create(**asked, stream=True))
        words = {"model": "docs", "prompt": "def", "logprobs": 2}
        assert client.completions.create(**words).choices[0].logprobs.tokens
        vectors = client.embeddings.create(model="vectors", input="def", encoding_format="float")
        assert vectors.data
        assert {model.id for model in client.models.list()} == MODELS.keys()
        assert client.models.retrieve("docs").owned_by == "headrace"


def test_chunks_are_the_same_answer(client: Any) -> None:
    whole = client.chat.completions.create(**chat())
    chunks = list(
        client.chat.completions.create(
            **chat(), stream=True, stream_options={"include_usage": True}
        )
    )
    assert texts(chunks) == {0: whole.choices[0].message.content}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage
    assert len(chunks) >= 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_each_answer_of_several_has_its_own_choices(client: Any) -> None:
    asked = chat("What is zip?", temperature=2, n=3, seed=7, max_tokens=12, ignore_eos=True)
    asked["extra_body"] = {"ignore_eos": asked.pop("ignore_eos")}
    whole = client.chat.completions.create(**asked)
    found = {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(found.values())) == 3
    assert whole.usage.completion_tokens == 36
    one = client.chat.completions.create(**{**asked, "n": 1, "seed": 8})
    assert one.choices[0].message.content == found[1]
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens
    assert texts(client.chat.completions.create(**asked, stream=True)) == found


def test_completions_continue_texts_and_tokens(client: Any) -> None:
    asked: dict[str, Any] = {
        "model": "docs", "prompt": ["import os", "def "], "n": 2, "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    first, again, other, _ = (choice.text for choice in whole.choices)
    assert first == again != other
    assert whole.usage.completion_tokens == 4 * 16
    chunks: dict[int, str] = defaultdict(str)
    for chunk in client.completions.create(**asked, stream=True):
        chunks[chunk.choices[0].index] += chunk.choices[0].text
    assert [chunks[n] for n in range(4)] == [first, again, other, other]
    tokens = client.completions.create(model="docs", prompt=[5, 6, 7], max_tokens=2)
    assert tokens.usage.prompt_tokens == 3
    lists = client.completions.create(model="docs", prompt=[[5, 6, 7], [8]], max_tokens=2)
    assert (lists.usage.prompt_tokens, len(lists.choices)) == (4, 2)


def test_log_probabilities_of_a_chat_come_whole_and_in_chunks(client: Any) -> None:
    asked = chat(logprobs=True, top_logprobs=3)
    (choice,) = client.chat.completions.create(**asked).choices
    whole = choice.logprobs.content
    assert "".join(one.token for one in whole) == choice.message.content
    for one in whole:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].logprob == one.logprob <= 0
        assert bytes(one.bytes).decode() == one.token
    chunks = [
        (piece.delta.content, piece.logprobs)
        for chunk in client.chat.completions.create(**asked, stream=True)
        for piece in chunk.choices
    ]
    assert "".join(text or "" for text, _ in chunks) == choice.message.content
    streamed = [one for _, found in chunks if found is not None for one in found.content]
    assert [one.token for one in streamed] == [one.token for one in whole]
    assert [one.logprob for one in streamed] == pytest.approx(
        [one.logprob for one in whole], abs=1e-3
    )


def test_log_probabilities_of_a_completion_come_whole_and_in_chunks(client: Any) -> None:
    asked: dict[str, Any] = {
        "model": "docs", "prompt": "import", "temperature": 0, "logprobs": 2,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    (choice,) = client.completions.create(**asked).choices
    whole = choice.logprobs
    (echoed,) = client.completions.create(**asked, echo=True).choices
    assert echoed.text == f"import{choice.text}"
    assert echoed.logprobs.tokens[-16:] == whole.tokens
    assert (echoed.logprobs.token_logprobs[0], echoed.logprobs.top_logprobs[0]) == (None, None)
    for found, text, new in ((whole, choice.text, 0), (echoed.logprobs, echoed.text, 1)):
        for token, at in zip(found.tokens, found.text_offset, strict=True):
            assert text[at:].startswith(token)
        for token, logprob, likely in list(
            zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
        )[-16:]:
            assert likely[token] == logprob == max(likely.values())
        parts = [
            one.choices[0].logprobs
            for one in client.completions.create(**asked, echo=bool(new), stream=True)
            if one.choices[0].logprobs is not None
        ]
        assert [token for part in parts for token in part.tokens] == found.tokens
        assert [at for part in parts for at in part.text_offset] == found.text_offset


def test_a_prompt_alone_is_measured(client: Any) -> None:
    """As lm-eval does it: the prompts are texts or tokens, and the last token does not count."""
    fields: dict[str, Any] = {"model": "docs", "temperature": 0, "logprobs": 1, "echo": True}
    prompts = ["Return the sum of the numbers.", "Deserialize a JSON document."]
    texts = client.completions.create(**fields, prompt=prompts, max_tokens=1)
    alone = client.completions.create(**fields, prompt=prompts[1], max_tokens=0).choices[0]
    assert alone.text == prompts[1]
    assert "".join(alone.logprobs.tokens) == prompts[1]
    found = texts.choices[1].logprobs
    assert found.tokens[:-1] == alone.logprobs.tokens
    assert found.token_logprobs[1:-1] == pytest.approx(alone.logprobs.token_logprobs[1:], abs=1e-3)


def test_the_likeliest_answers_come_first(client: Any) -> None:
    fields: dict[str, Any] = {"model": "docs", "prompt": "The quick", "seed": 1, "max_tokens": 8}
    several = client.completions.create(**fields, n=4, logprobs=0).choices

    def mean(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    best = client.completions.create(**fields, n=2, best_of=4)
    texts = [one.text for one in sorted(several, key=mean, reverse=True)]
    assert [one.text for one in best.choices] == texts[:2]
    assert [one.logprobs for one in best.choices] == [None, None]
    assert best.usage.completion_tokens == 32
    with pytest.raises(openai.BadRequestError, match="best_of is not for streams"):
        client.completions.create(**fields, best_of=2, stream=True)


PENALTIES: dict[str, Any] = {
    "frequency_penalty": 0.5, "presence_penalty": 0.2, "logit_bias": {"300": 2},
    "extra_body": {
        "repetition_penalty": 1.1, "min_p": 0.02, "min_tokens": 390, "stop_token_ids": [9],
        "ignore_eos": True,
    },
}  # fmt: skip


def test_parameters_of_sampling_reach_the_model(client: Any) -> None:
    def text(**more: Any) -> str:
        return str(client.chat.completions.create(**chat(**more)).choices[0].message.content)

    plain = text()
    assert text(logit_bias={"300": 100}, max_tokens=3) != plain[:3]
    assert len(text(extra_body={"min_tokens": 60})) > len(plain)
    assert text(temperature=2, seed=1, extra_body={"min_p": 1}) == plain
    again = [
        {"role": "user", "content": "What is json.loads?"},
        {"role": "assistant", "content": plain[:20]},
    ]
    assert text(messages=again, extra_body={"continue_final_message": True}) == plain[20:]
    more = client.responses.create(
        model="docs", input="What is json.loads?", temperature=2, extra_body={"min_p": 1}
    )
    assert more.output_text == plain
    with pytest.raises(openai.BadRequestError, match="a token above 2,047") as error:
        text(logit_bias={"5000": 1})
    assert error.value.param == "logit_bias"


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_without_log_probabilities_is_named(client: Any, stream: bool) -> None:
    asked = {**scripted(pieces=["a", "b"]), "logprobs": True, "stream": stream}
    with pytest.raises(openai.BadRequestError, match="model pieces returns no logprobs") as error:
        client.chat.completions.create(**asked)
    assert error.value.param == "logprobs"


def test_embeddings_are_in_the_order_of_their_texts(client: Any) -> None:
    inputs = [f"text number {n}" for n in range(40)]
    many = client.embeddings.create(model="vectors", input=inputs, encoding_format="float")
    assert [one.index for one in many.data] == [*range(40)]
    alone = client.embeddings.create(model="vectors", input=inputs[7], encoding_format="float")
    assert alone.data[0].embedding == pytest.approx(many.data[7].embedding, abs=1e-5)
    assert many.data[6].embedding != pytest.approx(many.data[7].embedding, abs=1e-2)
    assert sum(x * x for x in alone.data[0].embedding) == pytest.approx(1, abs=1e-4)
    answer = httpx2.post(
        str(client.base_url) + "embeddings", verify=PLAIN,
        json={"model": "vectors", "input": inputs[7], "encoding_format": "base64"},
    ).json()  # fmt: skip
    raw = b64decode(answer["data"][0]["embedding"])
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(alone.data[0].embedding)


def test_a_bad_text_of_several_is_named_by_its_index(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: "):
        client.embeddings.create(model="vectors", input=["a", "b " * 100_000, "c"])
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model="vectors", input="b " * 100_000)
    assert "input[" not in str(error.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "kind", "message", "param"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError,
         "unknown role wizard", None),
        ({"messages": [{"role": "user"}]}, openai.BadRequestError, "content is no text",
         "messages"),
        ({"messages": []}, openai.BadRequestError, "messages: expected `array`", "messages"),
        ({"max_tokens": 5000}, openai.BadRequestError, "set max_tokens to 1,009 or less",
         "messages"),
        ({"temperature": 3}, openai.BadRequestError, "temperature: expected", "temperature"),
        ({"tools": [{"type": "custom"}]}, openai.BadRequestError,
         "tools[0].type: Invalid enum value 'custom'", "tools"),
        ({"extra_body": {"tempratur": 1}}, openai.BadRequestError, "did you mean temperature",
         "tempratur"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "strin"}}}}, openai.BadRequestError,
         "response_format.json_schema.schema: the JSON schema is one for which there are no masks; "
         "change it, or leave it out (llguidance: Invalid type: strin)", "response_format"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, openai.BadRequestError,
         "structured_outputs.regex: the expression is", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["a"]}}},
         openai.BadRequestError, "structured_outputs has 2 shapes. Give exactly one",
         "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"choice": [1]}}}, openai.BadRequestError,
         "structured_outputs.choice[0]: Expected `str`", "structured_outputs"),
        ({"model": "nothing"}, openai.NotFoundError,
         "no model 'nothing' is registered. Use one of", "model"),
        ({"model": "echo"}, openai.BadRequestError, "model echo is no language model", "model"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_openais_form(
    client: Any, asked: dict[str, Any], kind: type[openai.APIStatusError], message: str,
    param: str | None, stream: bool,
) -> None:  # fmt: skip
    with pytest.raises(kind) as error:
        client.chat.completions.create(**{**chat(), **asked}, stream=stream)
    assert message in str(error.value)
    assert error.value.param == param


def test_a_prompt_that_is_too_long_is_named(client: Any) -> None:
    long = "word " * 2000
    chat_of_it = {"messages": [{"role": "user", "content": long}]}
    for create, asked in (
        (client.chat.completions.create, {"model": "docs", **chat_of_it}),
        (client.completions.create, {"model": "docs", "prompt": long}),
        (client.responses.create, {"model": "docs", "input": long}),
        (client.responses.create, {"model": "docs", "input": long, "stream": True}),
        (client.embeddings.create, {"model": "vectors", "input": ["a", long]}),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            create(**asked)
        assert error.value.code == "context_length_exceeded"
        assert error.value.param in asked.keys() - {"model"}


def test_an_input_that_a_model_does_not_declare_is_a_bad_request(client: Any) -> None:
    for create, asked in (
        (client.chat.completions.create, {"messages": chat()["messages"]}),
        (client.responses.create, {"input": "x"}),
    ):
        with pytest.raises(openai.BadRequestError, match="does not fit") as error:
            create(model="numbers", **asked)
        assert (error.value.code, error.value.param) == ("invalid_value", next(iter(asked)))
        assert error.value.type == "invalid_request_error"


def test_grammars_that_compile_for_long_are_refused_and_hold_nothing_up(client: Any) -> None:
    """More of them than the model has places, and another request beside them."""
    lines = "".join(f"R{n}: R{n + 1} | R{n}\n" for n in range(1500))

    def slow(number: int) -> None:
        grammar = f'start: "{number}" R0\n{lines}R1500: "a"'
        shaped = {"structured_outputs": {"grammar": grammar}}
        client.chat.completions.create(**chat(extra_body=shaped))

    with ThreadPoolExecutor(5) as threads:
        refused = [threads.submit(slow, number) for number in range(5)]
        assert client.chat.completions.create(**chat()).choices[0].message.content
        assert not all(future.done() for future in refused)
        for future in refused:
            with pytest.raises(openai.BadRequestError, match="too complex") as error:
                future.result()
            assert error.value.param == "structured_outputs"
            assert error.value.type == "invalid_request_error"


#: What load tools send, to the byte; the texts and lengths are shorter. guidellm 0.8.1 asks for
#: /health first. The last two are of `vllm bench serve`, for completions and chats.
LOAD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {
        "model": "docs", "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 12, "ignore_eos": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "1 0 m0 Hard pass"}]}],
    }),
    ("/v1/completions", {
        "model": "docs", "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 12, "ignore_eos": True, "prompt": "1 0 m0 Hard pass",
    }),
    ("/v1/completions", {
        "model": "docs", "prompt": "Hard pass", "repetition_penalty": 1.0, "max_tokens": 12,
        "logprobs": None, "stream": True, "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }),
    ("/v1/chat/completions", {
        "model": "docs", "max_completion_tokens": 12, "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hard pass"}]}],
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), LOAD)
def test_the_requests_of_load_tools_are_answered(
    site: Site, path: str, body: dict[str, Any]
) -> None:
    with httpx2.Client(base_url=site.api.url, verify=PLAIN, timeout=120) as client:
        assert client.get("/health").status_code == 200
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        vector = {"model": "vectors", "input": "Hard pass", "truncate_prompt_tokens": -1}
        assert client.post("/v1/embeddings", json=vector).status_code == 200
    *chunks, last = [line for line in answer.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    sent = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    *_, ended, usage = sent
    assert ended["choices"][0]["finish_reason"] == "length"
    assert not usage["choices"]
    assert usage["usage"]["completion_tokens"] == 12


def test_neutral_fields_change_nothing(client: Any) -> None:
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "tools": [],
        "response_format": {"type": "text"}, "store": False, "logit_bias": None,
    }  # fmt: skip
    plain = client.chat.completions.create(**chat())
    assert client.chat.completions.create(**chat(), **neutral).choices == plain.choices
    assert plain.choices[0].logprobs is None


def test_a_failure_in_the_middle_ends_the_stream(client: Any) -> None:
    with pytest.raises(openai.APIError, match="failed in the middle") as error:
        list(client.chat.completions.create(**scripted(pieces=["a", "b"], fails=1), stream=True))
    assert not isinstance(error.value, openai.APIStatusError)


def test_a_model_that_cannot_go_on_ends_the_stream(client: Any, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / str(n)).touch()
    asked = scripted(pieces=["a", "b", "c"], kills=2, until=str(tmp_path))
    with pytest.raises(openai.APIError, match="process was lost"):
        list(client.chat.completions.create(**asked, stream=True))
    (tmp_path / "killed").unlink()
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "abc"
    assert answer.usage is None


def same_over_a_kill(client: Any, site: Site, asked: dict[str, Any]) -> None:
    """The answer is the same if its process is killed while it writes."""
    expected = client.chat.completions.create(**asked).choices[0].message.content
    for _ in range(10):
        with client.chat.completions.create(**asked, stream=True) as stream:
            chunks = [next(stream), next(stream)]
            (pid,) = site.worker.states()["docs"]["pids"]
            os.kill(pid, signal.SIGKILL)
            chunks += stream
        assert texts(chunks) == {0: expected}
        if site.shown(chunks[0].id)["attempts"] == 2:
            return  # else it had ended before the kill
    raise AssertionError("each of ten answers ended before the process was killed")


@pytest.mark.slow
def test_a_killed_process_does_not_change_the_answer(client: Any, site: Site) -> None:
    asked = chat("What is zip?", max_tokens=400, **PENALTIES)
    same_over_a_kill(client, site, asked)


SHAPE = {
    "type": "object",
    "properties": {"words": {"type": "array", "minItems": 40, "items": {"enum": ["a", "b"]}}},
    "required": ["words"],
    "additionalProperties": False,
}


def shaped() -> dict[str, Any]:
    """A chat whose answer must fit SHAPE."""
    shape = {"type": "json_schema", "json_schema": {"name": "words", "schema": SHAPE}}
    asked = chat(max_tokens=600, response_format=shape)
    asked["extra_body"] = {"seed": 1}
    return asked


@pytest.mark.slow
def test_a_killed_process_leaves_an_answer_that_fits_its_schema(client: Any, site: Site) -> None:
    same_over_a_kill(client, site, shaped())


def test_an_answer_fits_its_schema(client: Any) -> None:
    (choice,) = client.chat.completions.create(**shaped()).choices
    words = json.loads(choice.message.content)["words"]
    assert len(words) >= 40
    assert set(words) <= {"a", "b"}
    answer = client.responses.create(
        model="docs", input="zip?", text={"format": {"type": "json_schema", "name": "c",
        "schema": {"enum": ["red", "blue"]}}},
    )  # fmt: skip
    assert json.loads(answer.output_text) in ("red", "blue")
    assert answer.text.format.type == "json_schema"
    with pytest.raises(openai.BadRequestError, match="Invalid type"):
        client.chat.completions.create(
            **chat(extra_body={"structured_outputs": {"json": {"type": "nonsense"}}})
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("key", [False, True])
def test_a_hang_up_cancels_unless_the_client_may_ask_again(
    site: Site, tmp_path: Path, stream: bool, key: bool
) -> None:
    (tmp_path / "0").touch()
    asked = {**scripted(pieces=["a", "b"], until=str(tmp_path)), "stream": stream, "n": 2}
    headers = {"Idempotency-Key": str(tmp_path)} if key else {}
    with httpx2.Client(base_url=site.api.url, verify=PLAIN, timeout=60) as http:
        if stream:
            with http.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                http.post("/v1/chat/completions", json=asked, headers=headers, timeout=0.5)
        if not key:
            wait_until(lambda: not wanted(site), "the jobs are cancelled")
        (tmp_path / "1").touch()
        if not key:
            return
        again = http.post("/v1/chat/completions", json={**asked, "stream": False}, headers=headers)
    assert [one["message"]["content"] for one in again.json()["choices"]] == ["ab", "ab"]


def test_a_submit_on_its_way_is_cancelled_too(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two jobs is refused while the submit of the other has not arrived yet."""
    queue, ids = site.api.services.queue, []
    submit, cancel = queue.submit, queue.cancel_one
    cancelled = asyncio.Event()

    async def later(job: Any) -> Any:
        with suppress(TimeoutError):
            await asyncio.wait_for(cancelled.wait(), 1)
        return await submit(job)

    async def submitted(job: Any) -> Any:
        if not job.id.endswith(".1"):
            raise errors.QueueFull("the queue is full")
        ids.append(job.id)
        # As in a call with others, which goes on without this request.
        return await asyncio.shield(asyncio.ensure_future(later(job)))

    async def cancelling(*arguments: Any) -> Any:
        cancelled.set()
        return await cancel(*arguments)

    monkeypatch.setattr(queue, "submit", submitted)
    monkeypatch.setattr(queue, "cancel_one", cancelling)
    asked = {**scripted(pieces=["a"], until=str(tmp_path)), "n": 2}
    with httpx2.Client(base_url=site.api.url, verify=PLAIN, timeout=60) as http:
        assert http.post("/v1/chat/completions", json=asked).status_code == 429
    (job_id,) = ids
    shown = site.shown(job_id)
    assert shown.get("cancel_requested") or shown["status"] == "cancelled"
    (tmp_path / "0").touch()
    assert site.ended(job_id)["status"] == "cancelled"


def test_all_of_many_hang_ups_cancel(site: Site, tmp_path: Path) -> None:
    """More clients than the API process has connections to Redis."""
    body = json.dumps(scripted(pieces=["a", "b"], until=str(tmp_path))).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    request = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    place = urlsplit(site.api.url)
    with ExitStack() as connections:
        for _ in range(HANG_UPS):
            one = socket.create_connection((place.hostname, place.port), 60)
            connections.enter_context(one)
            one.sendall(request)
        wait_until(lambda: len(wanted(site)) == HANG_UPS, "all are submitted", 60)
    wait_until(lambda: not wanted(site), "all are cancelled", 60)
    (tmp_path / "0").touch()
    (tmp_path / "1").touch()


def wanted(site: Site) -> list[str]:
    """The jobs of `pieces` that neither have ended nor are cancelled."""
    jobs = site.api.http.get("/api/v1/jobs?model=pieces&limit=1000").json()["jobs"]
    return [
        one["id"]
        for one in jobs
        if one["status"] in ("queued", "running") and "cancel_requested" not in one
    ]


def test_an_address_without_v1_is_named(site: Site) -> None:
    with sdk(site.api.url) as wrong:
        without: Any = wrong.with_options(base_url=site.api.url)
        for call, asked in (
            (without.chat.completions.create, {"messages": [{"role": "user", "content": "a"}]}),
            (without.embeddings.create, {"input": "a"}),
            (without.responses.create, {"input": "a"}),
        ):
            with pytest.raises(openai.NotFoundError, match="/v1 at its end, as base_url"):
                call(model="docs", **asked)
        for read in (
            without.responses.retrieve, without.responses.cancel, without.files.retrieve,
            without.models.retrieve,
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError, match="/v1 at its end, as base_url"):
                read("an_id")
        with pytest.raises(openai.NotFoundError, match="/v1 at its end, as base_url"):
            without.models.list()
