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
from typing import Any, Final, Literal

import msgspec

from handlers.generation.calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallFormat,
    CallParser,
)
from handlers.generation.structure import COMPACT, Shape, Shapes, closed
from headrace.errors import InputError

#: The values of the option `tool_format`.
Format = Literal["auto", "hermes", "llama3_json", "mistral"]
_FORMATS: Final = {"hermes": HERMES, "llama3_json": LLAMA, "mistral": MISTRAL}
#: How many calls a `required` answer can have. A small model does not end by itself.
_CALLS_MAX: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Mistral's templates take no longer ids, and no other characters.
_MISTRAL_ID_CHARS: Final = 9


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model can call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its arguments; one without parameters has none."""
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters or nothing

    def shown(self) -> dict[str, Any]:
        """Return it as templates take it."""
        function = {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        choice: "auto", "required", or the name of the one to call.
        parallel: an answer can have several calls.
    """

    tools: Sequence[Tool]
    choice: str
    named: bool
    parallel: bool

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.named or self.choice == "required"

    def parser(self, form: CallFormat) -> CallParser:
        """Return a parser for an answer."""
        most = None if self.parallel and not self.named else 1
        return CallParser(form, {tool.name for tool in self.tools}, most)

    def shape(self, form: CallFormat, answer: Shape | None) -> Shape | None:
        """Return what the answer must be; None for any text.

        Args:
            answer: what it must be if it has no calls.

        Raises:
            InputError: there is no grammar for both.
        """
        if not self.forced and answer is None:
            return None
        called = [tool for tool in self.tools if not self.named or tool.name == self.choice]
        rules = [f"call{n}: {_call_rule(form, tool)}" for n, tool in enumerate(called)]
        rules.append("call: " + " | ".join(f"call{n}" for n in range(len(called))))
        start = f"start: {_literal(form.opening)}call"
        if self.parallel and not self.named:
            start += f" ({_literal(form.separator)}call){{0,{_CALLS_MAX - 1}}}"
        start += _literal(form.closing)
        if not self.forced and answer is not None:
            name, value = answer.given()
            if name not in ("json", "json_object"):
                raise InputError(f"structured.{name} and tools exclude each other; leave one out")
            rules.append(
                f"answer: %json {_schema(value if name == 'json' else {'type': 'object'})}"
            )
            rules.append(start.replace("start", "calls", 1))
            start = "start: calls | answer"
        return Shape(grammar="\n".join([start, *rules]))

    def check_shape(self, shapes: Shapes, shape: Shape) -> None:
        """Compile what the answer must be.

        Raises:
            InputError: a schema is one for which there are no masks.
        """
        try:
            shapes.mask(shape)
        except InputError as error:
            reason = str(error).removeprefix("structured").removeprefix(".grammar")
            for place, tool in enumerate(self.tools):
                try:
                    shapes.mask(Shape(json=tool.schema))
                except InputError as found:
                    name = f"tools[{place}].function.parameters"
                    reason = str(found).removeprefix("structured.json")
                    if reason != str(found):
                        raise InputError(name + reason) from None
            raise InputError(f"tools{reason}") from None


def _call_rule(form: CallFormat, tool: Tool) -> str:
    before, _, after = form.call(tool.name, "\0").partition("\0")
    return f"{_literal(before)}%json {_schema(tool.schema)}{_literal(after)}"


def _literal(text: str) -> str:
    return f" {json.dumps(text)} " if text else ""


def _schema(schema: Any) -> str:
    schema = closed(schema)
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": COMPACT}
    return msgspec.json.encode(schema).decode()


def read_tools(tools: Sequence[Any] | None, choice: Any, *, parallel: bool) -> Tools | None:
    """Return the tools of a request; None if the model must not call any.

    Args:
        tools: each as `{"type": "function", "function": {"name": ...}}`.
        choice: "none", "auto", "required", or `{"function": {"name": ...}}`.

    Raises:
        InputError: a tool or the choice is not valid.
    """
    if not tools:
        if choice in (None, "none", "auto"):
            return None
        raise InputError("tool_choice is only for requests with tools; give tools, or leave it out")
    found: dict[str, Tool] = {}
    for place, one in enumerate(tools):
        tool = _tool(f"tools[{place}]", one)
        if tool.name in found:
            raise InputError(
                f"tools[{place}].function.name is {tool.name} again; give each tool its own name"
            )
        found[tool.name] = tool
    named = isinstance(choice, dict) and choice.get("type", "function") == "function"
    if named:
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, dict) else None
        if not isinstance(choice, str) or choice not in found:
            raise InputError(
                f"tool_choice.function.name: there is no tool {choice!r} in tools; name one of them"
            )
    elif choice not in (None, "none", "auto", "required"):
        kind = choice.get("type") if isinstance(choice, dict) else choice
        raise InputError(
            f"tool_choice: {kind!r} is not supported here; give none, auto, required, or a "
            "function and its name"
        )
    if choice == "none" and not named:
        return None
    return Tools(list(found.values()), choice or "auto", named, parallel)


def _tool(place: str, given: Any) -> Tool:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "function":
        raise InputError(
            f"{place}: the type {kind!r} is not supported here; give tools of the type function"
        )
    try:
        tool = msgspec.convert(given.get("function"), Tool)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        raise InputError(f"{place}.function{inner.rstrip('`')}: {text}") from None
    if not _NAME.fullmatch(tool.name):
        raise InputError(
            f"{place}.function.name is {tool.name[:80]!r}; give 1 to 64 letters, digits, _, - and ."
        )
    if tool.parameters and tool.parameters.get("type", "object") != "object":
        raise InputError(
            f"{place}.function.parameters is no schema of an object; give "
            '{"type": "object", "properties": {...}}'
        )
    return tool


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
    calls = message.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list):
            raise InputError(f"{place}.tool_calls is no list")
        found = [_call(f"{place}.tool_calls[{n}]", one, short=short) for n, one in enumerate(calls)]
        names |= {one["id"]: one["function"]["name"] for one in found if "id" in one}
        message["tool_calls"] = found
        if message.get("content") is None:
            message["content"] = ""
    if message.get("role") == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            raise InputError(
                f"{place} has no tool_call_id; give the id of the call that it answers"
            )
        message["tool_call_id"] = call_id = _short_id(call_id) if short else call_id
        if call_id in names:
            message.setdefault("name", names[call_id])
    return message


def _call(place: str, given: Any, *, short: bool) -> dict[str, Any]:
    given = given if isinstance(given, dict) else {}
    function = given.get("function")
    function = function if isinstance(function, dict) else {}
    name = function.get("name")
    if not isinstance(name, str) or given.get("type", "function") != "function":
        raise InputError(f"{place} is no call of a function; give its function.name")
    arguments = arguments_of(function.get("arguments"))
    if arguments is None:
        raise InputError(f"{place}.function.arguments is no JSON object; give one as a text")
    found = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(call_id := given.get("id"), str):
        found["id"] = _short_id(call_id) if short else call_id
    return found


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
    chat: Sequence[dict[str, Any]], tools: Sequence[Tool], form: CallFormat
) -> list[dict[str, Any]]:
    """Return a chat for a template that knows no tools, with all of them in ordinary messages."""
    found: list[dict[str, Any]] = []
    role = ""
    for message in chat:
        follows, role = role == "tool", message["role"]
        content = message["content"]
        if calls := message.get("tool_calls"):
            functions = [one["function"] for one in calls]
            written = form.calls([(one["name"], _json(one["arguments"])) for one in functions])
            content = "\n".join(filter(None, (content, written)))
            message = {"role": role, "content": content}
        elif role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if follows:
                found[-1]["content"] += f"\n{content}"
                continue
            message = {"role": "user", "content": content}
        found.append(message)
    if tools:
        text = _system_text(tools, form)
        if found[0]["role"] == "system":
            found[0] = {**found[0], "content": f"{found[0]['content']}\n\n{text}"}
        else:
            found.insert(0, {"role": "system", "content": text})
    return found


def _system_text(tools: Sequence[Tool], form: CallFormat) -> str:
    listed = "\n".join(_json(tool.shown()["function"]) for tool in tools)
    example = form.calls([("<name>", "<arguments as a JSON object>")])
    return f"You can call these functions:\n{listed}\nTo call one, write only:\n{example}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
