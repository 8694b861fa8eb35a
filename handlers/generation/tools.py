"""Tools of a request: checked, shown to the model, and the calls that an answer must have.

A template that knows tools shows them in the form that its model has learned. For other models
there is a plain system text, and calls and their results are ordinary messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from handlers.generation.calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallFormat,
    CallParser,
)
from handlers.generation.structure import Grammar, Shape, json_rule
from headrace.errors import InputError

#: The values of the option `tool_format`.
Format = Literal["auto", "hermes", "llama3_json", "mistral"]
_FORMATS: Final = {"hermes": HERMES, "llama3_json": LLAMA, "mistral": MISTRAL}
#: How many calls a `required` answer can have. A small model does not end by itself.
_CALLS_MAX: Final = 16
#: Mistral's templates take no longer ids, and no other characters.
_MISTRAL_ID_CHARS: Final = 9


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model can call; `parameters` is the JSON schema of its arguments."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """Return it as templates take it."""
        return {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.parameters or {"type": "object", "properties": {}},
        }


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class _Name(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    function: _Name
    type: Literal["function"] = "function"


class _Asked(msgspec.Struct):
    tools: list[_Tool]
    tool_choice: Literal["none", "auto", "required"] | _Named


class _CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _Call(msgspec.Struct):
    function: _CalledFunction
    type: Literal["function"] = "function"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        places: of those that can be called; a named one alone.
        forced: the answer must be a call.
        parallel: it can have several calls.
    """

    functions: Sequence[Function]
    places: Sequence[int]
    forced: bool
    parallel: bool

    def parser(self, form: CallFormat) -> CallParser:
        """Return a parser for an answer."""
        names = {self.functions[n].name for n in self.places}
        return CallParser(form, names, None if self.parallel else 1, calls_only=self.forced)

    def grammar(self, form: CallFormat, answer: Shape | None) -> Grammar | None:
        """Return what the answer must be; None for any text.

        Args:
            answer: what it must be if it has no calls.

        Raises:
            InputError: there is no grammar for both.
        """
        if not self.forced and answer is None:
            return None
        calls = f"{_literal(form.opening)}call"
        if self.parallel:
            calls += f" ({_literal(form.separator)}call){{0,{_CALLS_MAX - 1}}}"
        calls += _literal(form.closing)
        rules = [f"start: {calls}", "call: " + " | ".join(f"call{n}" for n in self.places)]
        rules += [f"call{n}: {_call_rule(form, self.functions[n])}" for n in self.places]
        fields = [("tools", "set of schemas")] * 2
        fields += [(f"tools[{n}].function.parameters", "JSON schema") for n in self.places]
        if not self.forced and answer is not None:
            name, value = answer.given()
            fields[0] = answer.as_grammar().fields[0]
            if name not in ("json", "json_object"):
                raise InputError(f"{fields[0][0]} and tools exclude each other; leave one out")
            rules[0] += f" | {json_rule(value, name)}"
        return Grammar("\n".join(rules), fields)


def _call_rule(form: CallFormat, function: Function) -> str:
    before, _, after = form.call(function.name, "\0").partition("\0")
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    return f"{_literal(before)}{json_rule(function.parameters or nothing)}{_literal(after)}"


def _literal(text: str) -> str:
    return f" {json.dumps(text)} " if text else ""


def read_tools(tools: Any, choice: Any, *, parallel: bool) -> Tools | None:
    """Return the tools of a request; None if the model must not call any.

    Args:
        tools: each as `{"type": "function", "function": {"name": ...}}`; None for none.
        choice: "none", "auto", "required", or `{"function": {"name": ...}}`; None for "auto".

    Raises:
        InputError: a tool or the choice is not valid.
    """
    try:
        asked = msgspec.convert({"tools": tools or [], "tool_choice": choice or "auto"}, _Asked)
    except msgspec.ValidationError as error:
        raise _misfit("", error) from None
    functions = [tool.function for tool in asked.tools]
    choice = asked.tool_choice
    if not functions:
        if choice in ("none", "auto"):
            return None
        raise InputError("tool_choice is only for requests with tools; give tools, or leave it out")
    places: dict[str, int] = {}
    for place, function in enumerate(functions):
        if places.setdefault(function.name, place) < place:
            raise InputError(
                f"tools[{place}].function.name is {function.name} again; give each its own name"
            )
        schema = function.parameters
        if schema and schema.get("type", "object" if "properties" in schema else "") != "object":
            raise InputError(
                f"tools[{place}].function.parameters is no schema of an object; give "
                '{"type": "object", "properties": {...}}'
            )
    if not isinstance(choice, _Named):
        tools = Tools(functions, range(len(places)), choice == "required", parallel)
        return None if choice == "none" else tools
    name = choice.function.name
    if name not in places:
        raise InputError(f"tool_choice.function.name: there is no tool {name!r}; name one of tools")
    return Tools(functions, [places[name]], forced=True, parallel=False)


def _misfit(place: str, error: msgspec.ValidationError) -> InputError:
    text, _, inner = str(error).partition(" - at `$")
    place = f"{place}{inner.rstrip('`')}".lstrip(".")
    return InputError(f"{place}: {text}; give functions, as OpenAI's API has them")


def format_of(template: Any, option: Format) -> CallFormat | None:
    """Return the format of a model's calls; None if it is unknown here.

    Args:
        template: the model's chat template; a dict of several, or None for no template.
        option: a format; "auto" for that of the template.
    """
    text = _text_of(template)
    if "[ARGS]" in text and option in ("auto", "mistral"):
        return MISTRAL_NAMED
    if option != "auto":
        return _FORMATS[option]
    if "[TOOL_CALLS]" in text:
        return MISTRAL
    if "<tool_call>" in text and "<function=" not in text and "<arg_key>" not in text:
        return HERMES
    if "<|python_tag|>" in text or ("<|start_header_id|>" in text and '"parameters": ' in text):
        return LLAMA
    return None if knows_tools(template) else HERMES


def unknown_format() -> InputError:
    """Return the error for a model whose format of calls is unknown here."""
    return InputError(
        "tools: the format of calls in the model's chat template is unknown here; set the model's "
        f"option tool_format to one of {', '.join(_FORMATS)}, or leave tools out"
    )


def knows_tools(template: Any) -> bool:
    """Return whether a chat template shows tools, calls and their results."""
    return re.search(r"\btools\b", _text_of(template)) is not None


def _text_of(template: Any) -> str:
    return "\n".join(template.values()) if isinstance(template, dict) else str(template or "")


def tool_messages(
    messages: Sequence[dict[str, Any]], form: CallFormat | None
) -> list[dict[str, Any]]:
    """Return the messages of a chat with calls and their results as templates take them.

    The arguments of a call become an object, the content of a message with calls a text, and the
    result of a call gets the name of its tool.

    Args:
        form: the format of the calls; None if it is unknown.

    Raises:
        InputError: a call or a result is not complete.
    """
    short = form is not None and form.mark == MISTRAL.mark
    names: dict[str, str] = {}
    return [
        _tool_message(f"messages[{place}]", message, names, short=short)
        for place, message in enumerate(messages)
    ]


def _tool_message(
    place: str, message: dict[str, Any], names: dict[str, str], *, short: bool
) -> dict[str, Any]:
    """Return a message; `names` has the tools of the calls so far, by the ids of these."""
    message = dict(message)
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = calls = _calls(f"{place}.tool_calls", calls, short=short)
        names |= {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        if message.get("content") is None:
            message["content"] = ""
    if message.get("role") == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            raise InputError(f"{place} has no tool_call_id; give the id of its call")
        message["tool_call_id"] = call_id = _short_id(call_id) if short else call_id
        if call_id in names:
            message.setdefault("name", names[call_id])
    return message


def _calls(place: str, given: Any, *, short: bool) -> list[dict[str, Any]]:
    try:
        calls = msgspec.convert(given, list[_Call])
    except msgspec.ValidationError as error:
        raise _misfit(place, error) from None
    checked = []
    for n, call in enumerate(calls):
        arguments = arguments_of(call.function.arguments)
        if arguments is None:
            raise InputError(f"{place}[{n}].function.arguments is no JSON object")
        function = {"name": call.function.name, "arguments": arguments}
        own_id = {} if call.id is None else {"id": _short_id(call.id) if short else call.id}
        checked.append({"type": "function", "function": function, **own_id})
    return checked


def arguments_of(given: Any) -> dict[str, Any] | None:
    """Return the arguments of a call, which may be JSON in a text; None if they are no object."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given) if given.strip() else {}
        except (msgspec.DecodeError, RecursionError):
            return None
    return given if isinstance(given, dict) else None


def _short_id(call_id: str) -> str:
    """Return an id that Mistral's templates take: the same for the same."""
    if len(call_id) == _MISTRAL_ID_CHARS and call_id.isalnum():
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:_MISTRAL_ID_CHARS]


def plain_chat(
    chat: Sequence[dict[str, Any]], functions: Sequence[Function], form: CallFormat
) -> list[dict[str, Any]]:
    """Return a chat for a template that knows no tools, with all of them in ordinary messages."""
    plain: list[dict[str, Any]] = []
    role = ""
    for message in chat:
        follows, role = role == "tool", message["role"]
        content = message["content"]
        if calls := message.get("tool_calls"):
            called = [call["function"] for call in calls]
            written = form.calls([(f["name"], _json(f["arguments"])) for f in called])
            content = "\n".join(filter(None, (content, written)))
            message = {"role": role, "content": content}
        elif role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if follows:
                plain[-1]["content"] += f"\n{content}"
                continue
            message = {"role": "user", "content": content}
        plain.append(message)
    if functions:
        text = _system_text(functions, form)
        if plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}
        else:
            plain.insert(0, {"role": "system", "content": text})
    return plain


def _system_text(functions: Sequence[Function], form: CallFormat) -> str:
    listed = "\n".join(_json(function.shown()) for function in functions)
    example = form.calls([("<name>", "<arguments as a JSON object>")])
    return f"You can call these functions:\n{listed}\nTo call one, write only:\n{example}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
