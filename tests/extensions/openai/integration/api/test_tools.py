"""Tools through OpenAI's SDK: forced and free calls, whole, streamed, resumed, over a kill."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from headrace.redis import keys
from tests.harness.deployments.site import Site
from tests.harness.http.plain_http import PLAIN


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)


#: Long enough to kill its process meanwhile.
WORDS = {
    "type": "object",
    "properties": {"words": {"type": "array", "minItems": 40, "items": {"enum": ["a", "b"]}}},
    "required": ["words"],
    "additionalProperties": False,
}
TOOL = openai.pydantic_function_tool(Weather)
LIST: Any = {"type": "function", "function": {"name": "list", "parameters": WORDS}}
FLAT = {"type": "function", **LIST["function"]}
NAMED = {"type": "function", "function": {"name": "list"}}
CALLS = [
    {"text": "I "}, {"text": "look."},
    {"text": "", "tool_calls": [{"index": 0, "name": "a", "arguments": ""}]},
    {"text": "", "tool_calls": [{"index": 0, "arguments": '{"b":'}]},
    {"text": "", "tool_calls": [
        {"index": 0, "arguments": " 1}"}, {"index": 1, "name": "c", "arguments": "{}"}]},
]  # fmt: skip


def chat(content: str = "Weather?", **more: Any) -> dict[str, Any]:
    return {
        "model": "docs", "messages": [{"role": "user", "content": content}], "max_tokens": 100,
        "temperature": 0, **more,
    }  # fmt: skip


def joined(chunks: Any) -> tuple[str, list[dict[str, str]], str]:
    """The text, the calls and the end of a stream."""
    text, calls, finish = "", list[dict[str, str]](), ""
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            # Some clients read the first one alone.
            assert len(choice.delta.tool_calls or ()) <= 1
            for one in choice.delta.tool_calls or ():
                if one.id:
                    assert one.index == len(calls)
                    calls.append({"id": one.id, "name": one.function.name, "arguments": ""})
                calls[one.index]["arguments"] += one.function.arguments
            finish = choice.finish_reason or finish
    return text, calls, finish


def shown(message: Any) -> list[dict[str, str]]:
    return [
        {"id": one.id, "name": one.function.name, "arguments": one.function.arguments}
        for one in message.tool_calls or ()
    ]


def test_a_forced_call_fits_its_schema(site: Site) -> None:
    with openai.OpenAI(
        base_url=f"{site.api.url}/v1", api_key="none", _strict_response_validation=True,
        http_client=openai.DefaultHttpxClient(verify=PLAIN),
    ) as strict:  # fmt: skip
        client: Any = strict
        for choice in ("required", {"type": "function", "function": {"name": "Weather"}}):
            (made,) = client.chat.completions.parse(
                **chat(), tools=[TOOL], tool_choice=choice
            ).choices
            assert (made.finish_reason, made.message.content) == ("tool_calls", None)
            for call in made.message.tool_calls:
                assert isinstance(call.function.parsed_arguments, Weather)
        asked = chat(tools=[TOOL, LIST], tool_choice="required", n=2, temperature=1, seed=3)
        whole = client.chat.completions.create(**asked, logprobs=True)
        calls = [shown(one.message) for one in whole.choices]
        assert len({one["id"] for several in calls for one in several}) >= 2
        with client.chat.completions.stream(
            **chat(), tools=[TOOL], tool_choice="required"
        ) as stream:
            (call, *_) = stream.get_final_completion().choices[0].message.tool_calls
            assert isinstance(call.function.parsed_arguments, Weather)
        several = chat(tools=[TOOL, LIST], tool_choice="required", n=2, logprobs=True)
        calls = [shown(one.message) for one in client.chat.completions.create(**several).choices]
        assert len({one["id"] for some in calls for one in some}) >= 2


def test_the_next_turn_gets_the_result(client: Any) -> None:
    asked = chat(tools=[TOOL])
    (made,) = client.chat.completions.create(**asked, tool_choice="required").choices
    result = {"role": "tool", "tool_call_id": made.message.tool_calls[0].id, "content": "12"}
    asked["messages"] += [made.message, result]
    (after,) = client.chat.completions.create(**asked).choices
    assert after.message.content
    assert after.message.tool_calls is None
    del result["tool_call_id"]
    with pytest.raises(openai.BadRequestError, match=r"messages\[2\] has no tool_call_id") as error:
        client.chat.completions.create(**asked)
    assert error.value.param == "messages"


def test_chunks_are_the_same_calls(client: Any) -> None:
    scripted = chat(json.dumps({"pieces": CALLS}), model="calls")
    chunks = list(client.chat.completions.create(**scripted, stream=True))
    text, calls, finish = joined(chunks)
    assert (text, finish) == ("I look.", "tool_calls")
    assert [(one["name"], one["arguments"]) for one in calls] == [("a", '{"b": 1}'), ("c", "{}")]
    bare = chunks[0].id.removeprefix("chatcmpl-")
    assert [one["id"] for one in calls] == [f"call_{bare}", f"call_{bare}.c1"]


@pytest.mark.slow
def test_a_killed_process_does_not_change_the_call(client: Any, site: Site) -> None:
    asked = chat(max_tokens=600, tools=[LIST], tool_choice=NAMED)
    (expected,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert len(json.loads(expected.function.arguments)["words"]) >= 40
    for _ in range(10):
        with client.chat.completions.create(**asked, stream=True) as stream:
            chunks = [next(stream) for _ in range(3)]
            (pid,) = site.worker.states()["docs"]["pids"]
            os.kill(pid, signal.SIGKILL)
            chunks += stream
        _, (call,), finish = joined(chunks)
        assert (call["arguments"], finish) == (expected.function.arguments, "tool_calls")
        if site.shown(chunks[0].id)["attempts"] == 2:
            return  # else it had ended before the kill
    raise AssertionError("each of ten answers ended before the process was killed")


def test_a_conversation_goes_on_behind_a_call(client: Any) -> None:
    asked: dict[str, Any] = {"model": "docs", "temperature": 0, "tools": [FLAT]}
    made = client.responses.create(**asked, input="Words?", tool_choice="required",
                                   parallel_tool_calls=False, max_output_tokens=600)  # fmt: skip
    (call,) = made.output
    assert (made.status, call.type, call.name) == ("completed", "function_call", "list")
    assert len(json.loads(call.arguments)["words"]) >= 40
    assert (made.tool_choice, made.parallel_tool_calls, made.tools[0].name) == (
        "required", False, "list",
    )  # fmt: skip
    assert client.responses.retrieve(made.id) == made
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    asked["max_output_tokens"] = 5
    after = client.responses.create(**asked, input=[result], previous_response_id=made.id)
    assert after.output[0].type == "message"
    items = client.responses.input_items.list(after.id, order="asc").data
    assert [one.type for one in items] == ["message", "function_call", "function_call_output"]
    assert items[1].id == call.id
    reference = {"type": "item_reference", "id": call.id}
    again = client.responses.create(**asked, input=[items[0].to_dict(), reference, result])
    assert again.output_text == after.output_text
    given = [items[0].to_dict(), call.to_dict(), result]
    assert client.responses.create(**asked, input=given).output_text == after.output_text


@pytest.mark.parametrize(
    ("more", "message", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\].type: .*'web_search'", "tools"),
        ({"tools": [{"type": "function", "name": "a b"}]},
         r"tools\[0\].name: Expected `str` matching", "tools"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "b"}}, "no tool 'b'",
         "tool_choice"),
        ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
         "'allowed_tools'", "tool_choice"),
        ({"tool_choice": "required"}, "only for requests with tools", "tool_choice"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]},
         r"input\[0\].arguments is no text", "input"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "output is no text",
         "input"),
    ],
)  # fmt: skip
def test_a_bad_tool_is_named(client: Any, more: Any, message: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.responses.create(**{"model": "docs", "input": "x", **more})
    assert error.value.param == param


def test_a_schema_without_masks_is_named(client: Any) -> None:
    bad: dict[str, Any] = {
        "type": "function",
        "function": {"name": "a", "parameters": {"properties": {"b": {"type": 1}}}},
    }
    with pytest.raises(openai.BadRequestError, match=r"tools\[1\].function.parameters: ") as error:
        client.chat.completions.create(**chat(tools=[LIST, bad], tool_choice="required"))
    assert error.value.param == "tools"
    flat = {"type": "function", **bad["function"]}
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\].parameters: the JSON") as error:
        client.responses.create(model="docs", input="x", tools=[flat], tool_choice="required")
    assert error.value.param == "tools"


def test_the_events_of_calls_are_numbered_alike_each_time(client: Any, site: Site) -> None:
    scripted = {"model": "calls", "input": json.dumps({"pieces": CALLS}), "tools": [FLAT]}
    events = list(client.responses.create(**scripted, stream=True))
    assert [one.sequence_number for one in events] == [*range(len(events))]
    assert [one.type.removeprefix("response.") for one in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    done = [one.item for one in events if one.type == "response.output_item.done"]
    assert done == events[-1].response.output
    bare = events[0].response.id.removeprefix("resp_")
    assert [one.id for one in done] == [f"msg_{bare}", f"fc_{bare}", f"fc_{bare}.c1"]
    assert [one.arguments for one in done[1:]] == ['{"b": 1}', "{}"]
    # The events of the begin show the response as it is now.
    for after in range(1, len(events)):
        rest = client.responses.retrieve(done[0].id.replace("msg_", "resp_"), stream=True,
                                         starting_after=after)  # fmt: skip
        assert list(rest) == events[after + 1 :]
    with pytest.raises(openai.APIError, match="cannot go on with the answer"):
        list(client.responses.retrieve(f"resp_{bare}", stream=True, starting_after=10_000))
    # Without its pieces, a stream has the items of the result.
    site.client.redis.delete(keys.pieces(f"resp_{bare}"))
    again = list(client.responses.retrieve(f"resp_{bare}", stream=True))
    assert [one.item for one in again if one.type == "response.output_item.done"] == done
    assert again[-1].response == events[-1].response


def test_calls_whose_pieces_are_not_kept_come_at_the_end(
    client: Any, site: Site, tmp_path: Path
) -> None:
    given = json.dumps({"pieces": CALLS, "until": str(tmp_path)})
    made = client.responses.create(model="calls", input=given, tools=[FLAT], background=True)
    marks = ["text.delta", "text.delta", "item.added", "arguments.delta", "arguments.delta"]
    with client.responses.retrieve(made.id, stream=True) as stream:
        for n, mark in enumerate(marks):  # each in an entry of its own
            (tmp_path / str(n)).touch()
            next(one for one in stream if one.type.endswith(mark))
        whole = list(stream)[-1].response
    assert len(whole.output) == 3
    site.client.redis.xtrim(keys.pieces(made.id), minid="3-0", approximate=False)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert [one.sequence_number for one in events] == [*range(len(events))]
    done = [one.item for one in events if one.type == "response.output_item.done"]
    assert done == events[-1].response.output == whole.output
    # A client with a part gets the last events.
    (*_, last) = client.responses.retrieve(made.id, stream=True, starting_after=7)
    assert last.response.output == whole.output
    assert last.sequence_number > 7


def test_a_response_without_calls_is_a_message(client: Any) -> None:
    asked: Any = {"model": "docs", "input": "What does zip do?", "temperature": 0}
    events = list(client.responses.create(**asked, tools=[FLAT], stream=True))
    (message,) = events[-1].response.output
    assert message.content[0].text
    assert events[2].type == "response.output_item.added"
    assert events[2].item.id == message.id
