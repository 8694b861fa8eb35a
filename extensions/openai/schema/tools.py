"""Tools in OpenAI's API: of requests, as a job has them, and calls of them in answers and items.

The ids of calls follow from the id of their job, so each process gives a call the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from extensions.openai.schema.errors import BadField
from handlers.generation.tools import read_tools
from headrace.errors import InputError
from headrace.jobs.job import Count

CALL: Final = "function_call"
CALL_OUTPUT: Final = "function_call_output"
_PREFIXES: Final = ("chatcmpl-", "resp_")

Choice = str | dict[str, Any]

TOOLS: Final = Meta(description="Functions that the model can call. No other types are supported.")
CHOICE: Final = Meta(
    description="`none`, `auto`, `required`, or one function. The last two make each call fit its "
    "schema."
)


class CallPart(msgspec.Struct):
    """A part of a call, as a piece of a job has it; as a result has it, the whole call.

    Attributes:
        name: the tool, in the first part of a call.
    """

    index: int = 0
    name: str = ""
    arguments: str = ""


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """The function of a call; in a chunk, a part of its arguments."""

    arguments: Annotated[str, Meta(description="JSON, as the model has written it.")]
    name: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds to a call; its first one has the id and the name."""

    index: Count
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag=CALL):
    """A call of a function, as an item of a response."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: Annotated[str, Meta(description="JSON, as the model has written it.")]


def _bare(job_id: str, number: int) -> str:
    for prefix in _PREFIXES:
        job_id = job_id.removeprefix(prefix)
    # Further answers to a chat, and what a response was given, are numbered without a letter.
    return f"{job_id}.c{number}" if number else job_id


def calls_of(job_id: str, calls: Sequence[CallPart]) -> list[ToolCall]:
    """Return the calls of an answer to a chat."""
    return [
        ToolCall(
            id=f"call_{_bare(job_id, number)}", function=CalledFunction(call.arguments, call.name)
        )
        for number, call in enumerate(calls)
    ]


def deltas_of(job_id: str, parts: Sequence[CallPart]) -> list[ToolCallDelta]:
    """Return parts of calls as a chunk has them."""
    deltas = []
    for part in parts:
        delta = ToolCallDelta(index=part.index, function=CalledFunction(part.arguments, part.name))
        if part.name:
            delta.id, delta.type = f"call_{_bare(job_id, part.index)}", "function"
        deltas.append(delta)
    return deltas


def joined(parts: Iterable[CallPart]) -> list[CallPart]:
    """Return parts of calls, one for each call."""
    calls: list[CallPart] = []
    for part in parts:
        if calls and not part.name and calls[-1].index == part.index:
            calls[-1].arguments += part.arguments
        else:
            calls.append(part)
    return calls


def item_of(
    job_id: str, number: int, call: CallPart,
    status: Literal["in_progress", "completed", "incomplete"] = "completed",
) -> FunctionCall:  # fmt: skip
    """Return a call as an item of a response."""
    bare = _bare(job_id, number)
    return FunctionCall(
        id=f"fc_{bare}", call_id=f"call_{bare}", name=call.name, arguments=call.arguments,
        status=status,
    )  # fmt: skip


class SentCalls:
    """Counts what a client has of the calls of an answer."""

    def __init__(self) -> None:
        self._lengths: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def add(self, parts: Sequence[CallPart]) -> None:
        """Count parts that are sent."""
        for part in parts:
            if part.name or not self._lengths:
                self._lengths.append(0)
            self._lengths[-1] += len(part.arguments)

    def rest(self, calls: Sequence[CallPart]) -> list[CallPart]:
        """Return the parts of these calls that are not sent."""
        sent = [*self._lengths, *(-1 for _ in calls)]
        return [
            CallPart(number, call.name if length < 0 else "", call.arguments[max(length, 0) :])
            for number, (call, length) in enumerate(zip(calls, sent, strict=False))
            if length < len(call.arguments)
        ]


def tool_fields(
    tools: list[dict[str, Any]] | None, choice: Choice | None, parallel: bool | None, *, flat: bool
) -> dict[str, Any]:
    """Return the members of a job's input with the tools of a request.

    Args:
        flat: as in responses, where the members of a function are those of its tool.

    Raises:
        BadField: a tool or the choice is not valid.
    """
    given = [_nested(tool) if flat else tool for tool in tools or ()]
    choice = _nested(choice) if flat else choice
    try:
        read_tools(given, choice, parallel=True)
    except InputError as error:
        message = str(error).replace(".function", "") if flat else str(error)
        text, _, hint = message.partition("; ")
        param = "tool_choice" if text.startswith("tool_choice") else "tools"
        raise BadField(text, param, hint=hint) from None
    if not given:
        return {}
    fields: dict[str, Any] = {"tools": given}
    if choice is not None:
        fields["tool_choice"] = choice
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    return fields


def _nested(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def add_item(messages: list[dict[str, Any]], place: str, item: dict[str, Any], text: str) -> None:
    """Add an item of a response to a chat: a call, or the output of one.

    Args:
        text: the output.

    Raises:
        BadField: it is not complete.
    """
    names = ("call_id",) if item["type"] == CALL_OUTPUT else ("call_id", "name", "arguments")
    for name in names:
        if not isinstance(item.get(name), str):
            raise BadField(f"{place}.{name} is no text", "input", hint="Give one.")
    if item["type"] == CALL_OUTPUT:
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        return
    try:
        # Without making anything of the members: they may be many.
        msgspec.json.decode(item["arguments"].strip() or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise BadField(
            f"{place}.arguments is no JSON object", "input", hint="Give one as a text."
        ) from None
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)
