"""Batches for OpenAI's endpoints, through a whole `headrace up` with its batch runner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.extensions.openai.harness.batches import Batches, batches_at
from tests.harness.servers.up import RunningUp, running_runner

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("batches")
    models: dict[str, dict[str, Any]] = {
        "docs": {"handler": "language_model", "max_batch_size": 4},
        "vectors": {"handler": "text_embedding", "max_batch_size": 8},
        "echo": {"handler": "echo"},
    }
    with running_runner(folder, models, OMP_NUM_THREADS="1") as running:
        yield running


@pytest.fixture
def batches(up: RunningUp) -> Iterator[Batches]:
    with batches_at(f"http://127.0.0.1:{up.port}") as found:
        yield found


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, content: str, **more: Any) -> dict[str, Any]:
    body = {"model": "docs", "max_tokens": 30, "temperature": 0, **more}
    return line(custom_id, CHAT, **body, messages=[{"role": "user", "content": content}])


def test_a_batch_of_chats_has_the_answers_of_single_ones(batches: Batches) -> None:
    names = ["zip", "json.loads", "random.choice", "the with statement"]
    lines = [chat(name, f"What is {name}?") for name in names]
    lines += [chat("long", "x", max_tokens=5000), chat("wrong", "x", model="echo")]
    lines.append(chat("likely", "What is zip?", logprobs=True, top_logprobs=2))
    ended = batches.ended(batches.create(lines, CHAT))
    assert ended.status == "completed"
    good, bad = batches.both(ended)
    for name in names:
        body = good[name]["response"]["body"]
        answer = ChatCompletion.model_validate(body)
        assert answer.service_tier == "flex"
        asked: Any = chat(name, f"What is {name}?")["body"]
        alone = batches.client.chat.completions.create(**asked)
        assert answer.choices == alone.choices
        assert answer.usage == alone.usage
    (choice,) = ChatCompletion.model_validate(good["likely"]["response"]["body"]).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
    assert bad.keys() == {"long", "wrong"}
    response = bad["long"]["response"]
    assert response["status_code"] == 400
    assert "set max_tokens to" in response["body"]["error"]["message"]
    assert "no language model" in bad["wrong"]["response"]["body"]["error"]["message"]


def test_a_batch_of_embeddings(batches: Batches) -> None:
    lines = [
        line(str(n), EMBEDDINGS, model="vectors", input=f"text {n}", encoding_format="float")
        for n in range(20)
    ]
    good, bad = batches.both(batches.ended(batches.create(lines, EMBEDDINGS)))
    assert not bad
    found = CreateEmbeddingResponse.model_validate(good["7"]["response"]["body"])
    alone = batches.client.embeddings.create(
        model="vectors", input="text 7", encoding_format="float"
    )
    assert found.data[0].embedding == pytest.approx(alone.data[0].embedding, abs=1e-5)
    assert found.usage == alone.usage


def test_rows_have_the_calls_of_single_answers(batches: Batches) -> None:
    schema = {
        "type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"],
    }  # fmt: skip
    function = {"name": "paint", "parameters": schema}
    more = {"max_tokens": 90, "tool_choice": "required", "parallel_tool_calls": False}
    asked = chat("a", "x", tools=[{"type": "function", "function": function}], **more)
    good, _ = batches.both(batches.ended(batches.create([asked], CHAT)))
    body = good["a"]["response"]["body"]
    (choice,) = ChatCompletion.model_validate(body).choices
    (alone,) = batches.client.chat.completions.create(**asked["body"]).choices
    assert choice.finish_reason == alone.finish_reason == "tool_calls"
    made: Any = choice.message.tool_calls
    (call,), (other,) = made, alone.message.tool_calls
    assert call.function == other.function
    assert call.id == f"call_{body['id']}"
    flat = {"model": "docs", "input": "x", "tools": [{"type": "function", **function}]}
    lines = [line("b", RESPONSES, **flat, tool_choice={"type": "function", "name": "paint"})]
    wrong = {"type": "function", "name": "paint", "parameters": {"type": "object", "not": {}}}
    asked = {"model": "docs", "input": "x", "tools": [wrong], "tool_choice": "required"}
    lines.append(line("wrong", RESPONSES, **asked))
    good, bad = batches.both(batches.ended(batches.create(lines, RESPONSES)))
    for error in (bad["wrong"]["error"], bad["wrong"]["response"]["body"]["error"]):
        assert error["message"].startswith("tools[0].parameters: the JSON schema is one")
    found = Response.model_validate(good["b"]["response"]["body"])
    assert [one.type for one in found.output] == ["function_call"]
    assert found.tools[0].type == "function"


def test_a_batch_of_responses(batches: Batches) -> None:
    asked = {"model": "docs", "input": "What is zip?", "temperature": 0, "max_output_tokens": 20}
    lines = [
        line("a", RESPONSES, **asked, instructions="be brief", metadata={"of": "me"}),
        line("b", RESPONSES, **asked, background=True),
        line("c", RESPONSES, model="docs", input=[{"type": "item_reference", "id": "msg_1"}]),
    ]
    good, bad = batches.both(batches.ended(batches.create(lines, RESPONSES)))
    found = Response.model_validate(good["a"]["response"]["body"])
    alone = batches.client.responses.create(**asked, instructions="be brief")
    assert (found.output_text, found.usage) == (alone.output_text, alone.usage)
    assert (found.instructions, found.metadata, found.service_tier) == (
        "be brief", {"of": "me"}, "flex",
    )  # fmt: skip
    params = {name: row["response"]["body"]["error"]["param"] for name, row in bad.items()}
    assert params == {"b": "background", "c": "input"}


def test_a_line_that_is_refused_fails_alone(batches: Batches) -> None:
    lines = [chat("a", "x"), chat("b", "x", n=2), chat("c", "x", tools=[{}]), chat("d", "x")]
    ended = batches.ended(batches.create(lines, CHAT))
    assert (ended.status, ended.request_counts.failed) == ("completed", 2)
    good, bad = batches.both(ended)
    assert (sorted(good), sorted(bad)) == (["a", "d"], ["b", "c"])
    alone = {}
    for name, more in (("b", {"n": 2}), ("c", {"tools": [{}]})):
        assert bad[name]["response"]["status_code"] == 400
        alone[name] = bad[name]["response"]["body"]["error"]
        assert alone[name]["param"] == next(iter(more))
    with pytest.raises(openai.BadRequestError) as error:
        batches.client.chat.completions.create(**chat("c", "x", tools=[{}])["body"])
    assert error.value.body == alone["c"]


def test_a_line_of_another_form_fails_the_batch_before_it_runs(batches: Batches) -> None:
    ended = batches.ended(batches.create([chat("a", "x"), chat("a", "y")], CHAT))
    assert ended.status == "failed"
    (error,) = ended.errors.data
    assert (error.line, error.code) == (2, "duplicate_custom_id")
    with pytest.raises(openai.BadRequestError, match="is not served here"):
        batches.create([], "/v1/images")
