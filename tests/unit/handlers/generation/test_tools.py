"""Tools of requests: what is refused, and how templates of each kind show them."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from handlers.generation.calls import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat
from handlers.generation.chat import chat_tokens
from handlers.generation.inputs import GenerationInput
from handlers.generation.structure import closed
from handlers.generation.tools import Tools, format_of, read_tools
from handlers.language_model import INCLUDED, load_tokenizer
from headrace.errors import InputError

NOW = {"type": "function", "function": {"name": "now"}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": CITY},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "12"}]},
]

#: As those of models: each shows what its model has learned.
QWEN = """{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or () %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}{% if m.role == "tool" %}{{ "=" ~ m["name"] }}{% endif %}{% endfor %}"""
LLAMA_3 = """{% for tool in tools %}<|start_header_id|>{"name": , "parameters": }{% endfor %}"""
MISTRAL_3 = """{% for m in messages %}{% for call in m.tool_calls or () %}
{% if call.id | length != 9 %}{{ raise_exception("bad id") }}{% endif %}
[TOOL_CALLS] [{{ call.id }}]{% endfor %}
{% if m.role == "tool" %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}{% if tools %}{% endif %}"""


def read(*tools: Any, choice: Any = None) -> Tools | None:
    return read_tools(tools, choice, parallel=True)


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([NOW, {"type": "web_search"}], None, r"^tools\[1\].type: .*'web_search'; give functions"),
        (["now"], None, r"^tools\[0\]: Expected `object`, got `str`"),
        ([{"type": "function", "function": {}}], None, r"^tools\[0\].function: .*missing.*`name`"),
        ([named(7)], None, r"^tools\[0\].function.name: Expected `str`"),
        ([NOW, named("a b")], None, r"^tools\[1\].function.name: Expected `str` matching regex"),
        ([NOW, WEATHER, NOW], None, r"^tools\[2\].function.name is now again"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}],
            None, r"^tools\[0\].function.parameters is no schema of an object",
        ),
        ([named("a\n")], None, r"^tools\[0\].function.name: Expected `str` matching regex"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": {"enum": ["a"]}}}],
            None, r"^tools\[0\].function.parameters is no schema of an object; give",
        ),
        ([NOW], named("then"), r"^tool_choice.function.name: there is no tool 'then'"),
        ([NOW], named([1]), r"^tool_choice.function.name: Expected `str`"),
        ([NOW], {"type": "custom"}, r"^tool_choice.type: .*'custom'"),
        ([NOW], "always", "^tool_choice: Invalid enum value 'always'"),
        ([], "required", "tool_choice is only for requests with tools"),
    ],
)  # fmt: skip
def test_bad_tools_are_named(tools: list[Any], choice: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(*tools, choice=choice)


def test_a_choice_says_whether_the_answer_is_a_call() -> None:
    assert read() is None
    assert read(NOW, choice="none") is None
    for choice, forced in (
        (None, False),
        ("auto", False),
        ("required", True),
        (named("now"), True),
    ):
        found = read(NOW, WEATHER, choice=choice)
        assert found is not None
        assert found.forced is forced
    # A tool can have the name of a choice.
    found = read(named("none"), choice=named("none"))
    assert found is not None
    assert found.forced


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN, HERMES), (LLAMA_3, LLAMA), (MISTRAL_3, MISTRAL), (None, HERMES), ("{{ x }}", HERMES),
        ({"default": "", "tool_use": LLAMA_3}, LLAMA),
        (MISTRAL_3 + "[ARGS]", MISTRAL_NAMED),
        ("{% if tools %}<tool_call><function=a>{% endif %}", None),
        ("{% if tools %}[a(b=1)]{% endif %}", None),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_template(template: Any, form: CallFormat | None) -> None:
    assert format_of(template, "auto") is form
    assert format_of(template, "llama3_json") is LLAMA


@pytest.fixture(scope="module")
def included() -> Any:
    return load_tokenizer(INCLUDED)


@pytest.fixture
def tokenizer(included: Any) -> Any:
    return deepcopy(included)


def shown(tokenizer: Any, messages: list[dict[str, Any]], tools: Tools | None = None) -> str:
    """What the model reads of a chat."""
    form = format_of(tokenizer.chat_template, "auto")
    tokens = chat_tokens(
        tokenizer, GenerationInput(messages=messages), 4096, lambda _: None, tools, form
    )
    return str(tokenizer.decode(tokens, skip_special_tokens=False))


def test_a_template_that_knows_tools_gets_them(tokenizer: Any) -> None:
    tokenizer.chat_template = QWEN
    text = shown(tokenizer, CHAT, read(NOW, WEATHER))
    assert '{"name": "now", "arguments": {"a": 1}}' in text
    assert "assistant: <tool_call>" in text
    assert text.endswith("tool: 12=now")
    listed = text[text.index("<tools>") + 7 : text.index("</tools>")]
    assert json.dumps(WEATHER["function"]) in listed
    assert '"name": "now", "description": "", "parameters": {"type": "object"' in listed
    assert "<tools>" not in shown(tokenizer, CHAT)


def test_templates_of_mistral_get_short_ids(tokenizer: Any) -> None:
    tokenizer.chat_template = MISTRAL_3
    _, call_id, result_id = shown(tokenizer, CHAT).replace(" ", "").rsplit("[", 2)
    assert call_id == result_id
    assert len(call_id.rstrip("]")) == 9


def test_other_templates_get_ordinary_messages(tokenizer: Any) -> None:
    results = [*CHAT, {"role": "tool", "tool_call_id": "x", "content": "13 <|end|>"}]
    text = shown(tokenizer, results, read(NOW, WEATHER))
    assert text.startswith("<|system|>You can call these functions:\n{")
    assert '<|assistant|><tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>' in text
    assert text.count("<|user|>") == 2
    assert "<tool_response>\n12\n</tool_response>\n<tool_response>\n13" in text
    with_system = [{"role": "system", "content": "Be brief."}, *CHAT]
    assert shown(tokenizer, with_system, read(NOW)).startswith("<|system|>Be brief.\n\nYou can")
    assert shown(tokenizer, with_system).startswith("<|system|>Be brief.<|end|>")
    # A control token in a result, or in a description, is ordinary text.
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    tokens = chat_tokens(
        tokenizer, GenerationInput(messages=results), 4096, lambda _: None, read(NOW), HERMES
    )
    assert tokens.count(end) == 4


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "tool", "content": "12"}, r"messages\[0\] has no tool_call_id"),
        ({"role": "tool", "tool_call_id": "a"}, r"messages\[0\].content is no text"),
        (
            {"role": "assistant", "tool_calls": [CALL, {"type": "custom"}]},
            r"^messages\[0\].tool_calls\[1\].type: .*'custom'; give functions",
        ),
        ({"role": "assistant", "tool_calls": "a"}, r"^messages\[0\].tool_calls: Expected `array`"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "now", "arguments": '{"a": '}}],
            },
            r"tool_calls\[0\].function.arguments is no JSON object",
        ),
    ],
)  # fmt: skip
def test_calls_and_results_are_complete(tokenizer: Any, message: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        shown(tokenizer, [message])


def test_objects_have_only_the_members_that_their_schema_names() -> None:
    inner = {"type": "object", "properties": {"properties": {"$ref": "#/$defs/a"}}}
    shut = {**inner, "additionalProperties": False}
    assert closed({"properties": {"a": inner, "b": {"items": inner}}, "$defs": {"a": inner}}) == {
        "properties": {"a": shut, "b": {"items": shut}}, "$defs": {"a": shut},
        "additionalProperties": False,
    }  # fmt: skip
    assert closed({"anyOf": [inner, {"type": "null"}]}) == {"anyOf": [shut, {"type": "null"}]}
    same: list[Any] = [
        True, {"type": "object"}, {"properties": {}, "additionalProperties": True},
        {"properties": {}, "patternProperties": {"x": {}}}, {"allOf": [inner, inner]},
        {"properties": {"a": {}}, "anyOf": [inner, inner]}, {"const": inner},
    ]  # fmt: skip
    assert [closed(one) for one in same] == same
