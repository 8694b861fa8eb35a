"""The HTTP requests of Open Responses' compliance tests, but for images, and what they require.

The tests are published with the specification (openresponses.org, 2026). They send each request,
validate the answer or each event against the published schema, and then look at its output. A
request with tools has `tool_choice` here, because the small model would not choose a tool itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tests.harness.deployments.site import Site
from tests.harness.http.plain_http import PLAIN

Schema = dict[str, Any]


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def members(**schemas: Schema) -> Schema:
    """An object that must have each of these members, and may have others."""
    return {"type": "object", "required": list(schemas), "properties": schemas}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT, WHOLE, NUMBER, BOOL = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
TOKEN: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": array(WHOLE)}
LOGPROBS = array(members(**TOKEN, top_logprobs=array(members(**TOKEN))))
PART = members(
    type={"const": "output_text"}, text=TEXT, annotations=array({}), logprobs=LOGPROBS,
)  # fmt: skip
MESSAGE = members(
    type={"const": "message"}, id=TEXT, status=STATUS, content=array(PART),
    role={"const": "assistant"},
)  # fmt: skip
CALL = members(
    type={"const": "function_call"}, id=TEXT, call_id=TEXT, name=TEXT, arguments=TEXT,
    status=STATUS,
)  # fmt: skip
ITEM = either(MESSAGE, CALL)
TOOL = members(
    type={"const": "function"}, name=TEXT, description=nullable(TEXT),
    parameters=nullable({"type": "object"}), strict=nullable(BOOL),
)  # fmt: skip
FORMAT = either(
    members(type={"enum": ["text", "json_object"]}),
    members(type={"const": "json_schema"}, name=TEXT, description=nullable(TEXT), strict=BOOL),
)
USAGE = members(
    input_tokens=WHOLE, output_tokens=WHOLE, total_tokens=WHOLE,
    input_tokens_details=members(cached_tokens=WHOLE),
    output_tokens_details=members(reasoning_tokens=WHOLE),
)  # fmt: skip
RESPONSE = members(
    id=TEXT, object={"const": "response"}, created_at=WHOLE, completed_at=nullable(WHOLE),
    status=TEXT, incomplete_details=nullable(members(reason=TEXT)), model=TEXT,
    previous_response_id=nullable(TEXT), instructions=nullable(TEXT), output=array(ITEM),
    error=nullable(members(code=TEXT, message=TEXT)), tools=array(TOOL),
    tool_choice=either(
        {"enum": ["none", "auto", "required"]}, members(type={"const": "function"}, name=TEXT)
    ),
    truncation={"enum": ["auto", "disabled"]}, parallel_tool_calls=BOOL,
    text=members(format=FORMAT), top_p=NUMBER, presence_penalty=NUMBER, frequency_penalty=NUMBER,
    top_logprobs=WHOLE, temperature=NUMBER,
    reasoning=nullable(members(effort=nullable(TEXT), summary=nullable(TEXT))),
    usage=nullable(USAGE), max_output_tokens=nullable(WHOLE), max_tool_calls=nullable(WHOLE),
    store=BOOL, background=BOOL, service_tier=TEXT, metadata={}, safety_identifier=nullable(TEXT),
    prompt_cache_key=nullable(TEXT), user=nullable(TEXT),
)  # fmt: skip
_OF_ITEM: dict[str, Schema] = {"item_id": TEXT, "output_index": WHOLE}
_OF_PART: dict[str, Schema] = {**_OF_ITEM, "content_index": WHOLE}
EVENTS: dict[str, dict[str, Schema]] = {
    **{f"response.{name}": {"response": RESPONSE}
       for name in ("created", "queued", "in_progress", "completed", "incomplete", "failed")},
    **{f"response.output_item.{name}": {"output_index": WHOLE, "item": ITEM}
       for name in ("added", "done")},
    **{f"response.content_part.{name}": {**_OF_PART, "part": PART} for name in ("added", "done")},
    "response.output_text.delta": {**_OF_PART, "delta": TEXT, "logprobs": LOGPROBS},
    "response.output_text.done": {**_OF_PART, "text": TEXT, "logprobs": LOGPROBS},
    "response.function_call_arguments.delta": {**_OF_ITEM, "delta": TEXT},
    "response.function_call_arguments.done": {**_OF_ITEM, "arguments": TEXT},
}  # fmt: skip


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string", "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}  # fmt: skip
CALLING: dict[str, Any] = {
    "input": [message("user", "What's the weather like in San Francisco?")],
    "tools": [WEATHER],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    # Without a limit to its length, the small model would write one name of a place for ever.
    "max_output_tokens": 60,
}
CASES: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [message("user", "Say hello in exactly 3 words.")]},
    "system-prompt": {
        "input": [
            message("system", "You are a pirate. Always respond in pirate speak."),
            message("user", "Say hello."),
        ]
    },
    "multi-turn": {
        "input": [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
            message("user", "What is my name?"),
        ]
    },
    "assistant-phase": {
        "input": [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice!", phase="final_answer"),
            message("user", "What is my name?"),
        ]
    },
    "tool-calling": CALLING,
    "streaming-response": {"input": [message("user", "Count from 1 to 5.")], "stream": True},
    "tool-calling-streaming": {**CALLING, "stream": True},
    # Not of the tests: members that a response has only with these fields.
    "structured": {
        "input": "Paris?",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["yes"]}}},
        "include": ["message.output_text.logprobs"],
    },
    "structured-streaming": {
        "input": "Paris?", "stream": True, "top_logprobs": 1,
        "text": {"format": {"type": "json_object"}}, "max_output_tokens": 5,
    },
}  # fmt: skip


def check(value: Any, schema: Schema) -> None:
    errors = [f"{error.instance_path}: {error.message}"
              for error in jsonschema_rs.validator_for(schema).iter_errors(value)]  # fmt: skip
    assert not errors, (errors, value)


def events_of(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, each of which has its type as the name of the event."""
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields and fields["data"] != "[DONE]":
            event = json.loads(fields["data"])
            assert event["type"] == fields["event"]
            yield event


def check_order(events: list[dict[str, Any]]) -> None:
    """Each item is added, gets its parts and is done, one after the other."""
    assert [event["sequence_number"] for event in events] == sorted(
        {event["sequence_number"] for event in events}
    )
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    inside = [kind for n, kind in enumerate(kinds[2:-1]) if kind != kinds[1 + n]]
    last = events[-1]["response"]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done"]  # fmt: skip
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"]  # fmt: skip
    expected = [call if item["type"] == "function_call" else text for item in last["output"]]
    assert inside == [kind for item in expected for kind in item]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    written = {item["id"]: "" for item in done}
    for event in events:
        if event["type"].endswith(".delta"):
            written[event["item_id"]] += event["delta"]
    texts = [item.get("arguments") or item["content"][0]["text"] for item in done]
    assert list(written.values()) == texts


@pytest.mark.parametrize("name", CASES)
def test_the_published_requests_get_what_their_schema_requires(site: Site, name: str) -> None:
    asked = {"model": "docs", "temperature": 0, **CASES[name]}
    answer = httpx2.post(f"{site.api.url}/v1/responses", json=asked, verify=PLAIN, timeout=60)
    assert answer.status_code == 200, answer.text
    if asked.get("stream"):
        events = list(events_of(answer))
        for event in events:
            check(event, members(sequence_number=WHOLE, **EVENTS[event["type"]]))
        check_order(events)
        response = events[-1]["response"]
    else:
        response = answer.json()
    check(response, RESPONSE)
    assert response["output"]
    if "tools" in asked:
        assert any(item["type"] == "function_call" for item in response["output"])
    elif "max_output_tokens" not in asked:
        assert response["status"] == "completed"
