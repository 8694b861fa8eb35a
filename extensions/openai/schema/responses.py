"""OpenAI's responses: a request as a job, and the job as a response.

What a response repeats of its request is in the metadata of its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta
from typing_extensions import override

from extensions.openai.schema.answers import ChosenToken, Generation, Part
from extensions.openai.schema.conversations import RESPONSE_PREFIX, as_items, message_id
from extensions.openai.schema.errors import BAD_INPUT, BadField, in_response
from extensions.openai.schema.formats import shape_of_format
from extensions.openai.schema.inputs import RequestInputs
from extensions.openai.schema.neutral import (
    ANY,
    HINTS,
    NEVER_MADE,
    NO_REASONING,
    Neutral,
    is_neutral,
)
from extensions.openai.schema.requests import (
    TEMPLATE_KWARGS,
    Counted,
    Likeliest,
    SampledRequest,
    StreamOptions,
    plain_role,
)
from extensions.openai.schema.tools import (
    CALL,
    CALL_OUTPUT,
    CHOICE,
    TOOLS,
    Choice,
    FunctionCall,
    add_item,
    item_of,
    tool_fields,
)
from handlers.generation.inputs import OTHER_PARTS
from headrace.errors import InvalidParameter
from headrace.jobs.job import Count, Job, State, error_of
from headrace.jobs.options import METADATA_MAX_BYTES, JobOptions
from headrace.redis.clock import US_PER_S

RESPONSES: Final = "/v1/responses"
#: The member of a job's metadata that makes the job a response.
ECHO: Final = "openai_response"
#: What a request includes for log probabilities.
LOGPROBS: Final = "message.output_text.logprobs"

#: The temperature and top_p of OpenAI's API if a request has none.
_USUAL: Final = 1.0
#: What OpenAI's types require of a tool.
_TOOL: Final[dict[str, Any]] = {"description": None, "parameters": None, "strict": None}
#: What Open Responses' types require of such a format. An answer always fits its schema.
_JSON_SCHEMA: Final[dict[str, Any]] = {"name": "", "description": None, "strict": True}
_TEXT_TYPES: Final = frozenset({"input_text", "output_text", "text"})


class ResponseRequest(SampledRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of a response."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        **HINTS,
        "access_programs": (),
        "background_options": ({},),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "max_tool_calls": ANY,
        "moderation": (),
        "prompt": (),
        "reasoning": (NO_REASONING,),
        # A prompt that is too long is refused, so nothing is silently cut.
        "truncation": ("disabled", "auto"),
    }
    defaults: ClassVar[Mapping[str, Neutral]] = {"max_output_tokens": (-1,)}
    id_prefix: ClassVar[str] = RESPONSE_PREFIX

    input: Annotated[
        str | list[dict[str, Any]],
        Meta(
            description="A text, or messages with a `role` and a text as `content`. An item of the "
            "type `item_reference` names one of an earlier response by its `id`. `function_call` "
            "and `function_call_output` are calls and their results."
        ),
    ]
    instructions: Annotated[str | None, Meta(description="A system message before the input.")] = (
        None
    )
    previous_response_id: Annotated[
        str | None, Meta(description="The response whose conversation goes on.")
    ] = None
    max_output_tokens: Counted | None = None
    include: Annotated[
        list[str] | None, Meta(description=f"`{LOGPROBS}` is the log probability of each token.")
    ] = None
    top_logprobs: Annotated[
        Likeliest | None,
        Meta(description="How many of the likeliest tokens come with log probabilities."),
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, TEMPLATE_KWARGS] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: Annotated[
        bool | None, Meta(description="Answer at once; the response goes on without a client.")
    ] = None
    store: Annotated[
        bool | None, Meta(description="False deletes the response once it is answered.")
    ] = None

    text: Annotated[
        dict[str, Any] | None,
        Meta(description="Its `format` is `text`, `json_object` or `json_schema`."),
    ] = None

    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: at most one call.")] = None

    def tool_fields(self) -> dict[str, Any]:
        """Return the members of a job's input with the tools."""
        return tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls, flat=True)

    def format(self) -> dict[str, Any] | None:
        """Return the format of the answer; None if the request names none."""
        given = {name: value for name, value in (self.text or {}).items() if value is not None}
        for name, value in given.items():
            if name != "format" and (name, value) != ("verbosity", "medium"):
                raise BadField(
                    f"text.{name[:64]} is not supported here", "text",
                    hint="Leave it out.", openai="unsupported_parameter",
                )  # fmt: skip
        form = given.get("format")
        if form is not None and not isinstance(form, dict):
            raise InvalidParameter("text.format is no object", "text", hint="Give its type.")
        return form

    def shape(self) -> dict[str, Any] | None:
        """Return what the answer must be; None for any text."""
        form = self.format()
        return None if form is None else shape_of_format(form, "text.format", None)

    @property
    @override
    def likeliest(self) -> int | None:
        wanted = self.top_logprobs or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    @override
    def check(self) -> None:
        super().check()
        self.shape()
        self.tool_fields()
        for included in self.include or ():
            if included != LOGPROBS and not is_neutral([included], (NEVER_MADE,)):
                raise BadField(
                    f"include: {included[:64]!r} is not supported here", "include",
                    hint="Leave it out.", openai="unsupported_parameter",
                )  # fmt: skip
        if self.background and self.store is False:
            raise InvalidParameter(
                "a response in the background is stored", "store", hint="Leave store out."
            )

    @override
    def inputs(self) -> RequestInputs:
        messages: list[dict[str, Any]] = []
        for place, item in enumerate(as_items(self.input)):
            _add_item(messages, place, item)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return self.inputs_of(
            [{"messages": messages, **self.tool_fields()}],
            self.max_output_tokens,
            structured=self.shape(),
            chat_template_kwargs=self.chat_template_kwargs,
        )

    @override
    def options(self) -> JobOptions:
        """Return the options of its job, which also has what the response repeats."""
        echo = Echo(
            model=self.model, background=bool(self.background), store=self.store is not False,
            instructions=self.instructions, max_output_tokens=self.max_output_tokens,
            temperature=self.temperature, top_p=self.top_p, service_tier=self.tier, user=self.user,
            previous_response_id=self.previous_response_id,
            format=self.format(), top_logprobs=self.top_logprobs or 0,
            frequency_penalty=self.frequency_penalty or 0,
            presence_penalty=self.presence_penalty or 0,
        )  # fmt: skip
        if self.tools:
            echo.tools, echo.tool_choice = self.tools, self.tool_choice or "auto"
            echo.parallel_tool_calls = self.parallel_tool_calls is not False
        metadata = {**(self.metadata or {}), ECHO: msgspec.to_builtins(echo)}
        if len(msgspec.json.encode(metadata)) > METADATA_MAX_BYTES:
            # They are in the input too; a response can do without them.
            metadata[ECHO]["instructions"] = None
            metadata[ECHO].pop("format", None)
            metadata[ECHO].pop("tools", None)
        return msgspec.structs.replace(super().options(), metadata=metadata)


class Echo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a response repeats of its request; the response has the same fields."""

    model: str
    background: bool = False
    store: bool = True
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    service_tier: str = "default"
    user: str | None = None
    previous_response_id: str | None = None
    top_logprobs: int = 0
    frequency_penalty: float = 0
    presence_penalty: float = 0
    format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Choice | None = None
    parallel_tool_calls: bool = True


class OutputText(msgspec.Struct, kw_only=True):
    """A text of the model."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[ChosenToken] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class TextConfig(msgspec.Struct):
    """How texts are written."""

    format: dict[str, Any]


class Reasoning(msgspec.Struct):
    """How a model thinks first; none here does."""

    effort: None = None
    summary: None = None


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class InputTokensDetails(msgspec.Struct):
    """The tokens of the input that were cached."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """The tokens of the output that are not shown."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """The tokens of a response."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: Count
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: Count


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Response(msgspec.Struct, kw_only=True):
    """A response, as OpenAI's API shows it."""

    id: Annotated[str, Meta(description="The id of its job.")]
    object: Literal["response"] = "response"
    created_at: Annotated[Count, Meta(description="Seconds since 1970.")]
    completed_at: Count | None
    status: Status
    background: bool
    error: ResponseError | None
    frequency_penalty: float = 0
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: Count | None
    max_tool_calls: None = None
    metadata: dict[str, Any]
    model: str
    output: list[OutputMessage | FunctionCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    presence_penalty: float = 0
    prompt_cache_key: None = None
    reasoning: Reasoning = msgspec.field(default_factory=lambda: Reasoning())
    safety_identifier: None = None
    service_tier: str
    store: bool
    temperature: Annotated[
        float, Meta(description="1 if the request has none; then the default of the model holds.")
    ]
    text: TextConfig
    tool_choice: Choice
    tools: list[Any]
    top_logprobs: Count = 0
    top_p: Annotated[float, Meta(description="As for temperature.")]
    truncation: Literal["disabled"] = "disabled"
    usage: Annotated[ResponseUsage | None, Meta(description="Null before its end.")]
    user: str | None


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


_RUNNING: Final[Mapping[State, Status]] = {
    State.QUEUED: "queued", State.SCHEDULED: "queued", State.RUNNING: "in_progress",
    State.CANCELLED: "cancelled",
}  # fmt: skip


def echo_of(job: Job) -> tuple[Echo, dict[str, Any]] | None:
    """Return what the response of a job repeats, and the client's metadata.

    None for a job that is no response.
    """
    if ECHO not in job.metadata_json:
        return None
    metadata: dict[str, Any] = msgspec.json.decode(job.metadata_json)
    try:
        return msgspec.convert(metadata.pop(ECHO, None), Echo), metadata
    except msgspec.ValidationError:
        return None


def calls_tools(job: Job) -> bool:
    """Return whether the response of a job can call tools."""
    repeated = echo_of(job)
    return repeated is not None and repeated[0].tool_choice is not None


def response_of(job: Job, found: Generation | None = None, wrong: str = "") -> Response:
    """Return a job as a response.

    Args:
        found: its result; None unless it has succeeded.
        wrong: why its result is no text.
    """
    echo, metadata = echo_of(job) or (Echo(model=job.model), {})
    error = ResponseError("invalid_prompt", wrong) if wrong else None
    status: Status = _RUNNING.get(job.state, "failed")
    if job.cancel_requested and not job.state.final:
        status = "cancelled"  # whatever it still does, its job ends as cancelled
    if found is not None:
        status = "incomplete" if found.finish == "length" else "completed"
    elif status == "failed" and (failure := error_of(job)) is not None:
        bad = failure.type in BAD_INPUT
        message = in_response(failure.message)
        error = ResponseError("invalid_prompt" if bad else "server_error", message)
    usage = None if found is None else found.usage
    repeated = {**msgspec.structs.asdict(echo), **_in_force(echo)}
    form = repeated.pop("format") or {"type": "text"}
    text = TextConfig({**_JSON_SCHEMA, **form} if form.get("type") == "json_schema" else form)
    repeated["tool_choice"] = echo.tool_choice or "auto"
    repeated["tools"] = [{**_TOOL, **tool} for tool in echo.tools]
    return Response(
        id=job.id,
        created_at=job.created_us // US_PER_S,
        completed_at=job.ended_us // US_PER_S if status == "completed" else None,
        status=status,
        error=error,
        incomplete_details=IncompleteDetails() if status == "incomplete" else None,
        metadata=metadata,
        output=[] if found is None else output_of(job.id, found),
        usage=None
        if usage is None
        else ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
        ),
        text=text,
        **repeated,
    )


def _in_force(echo: Echo) -> dict[str, float]:
    """Return the sampling of a response, as numbers: clients require them."""
    given = {"temperature": echo.temperature, "top_p": echo.top_p}
    return {name: _USUAL if value is None else value for name, value in given.items()}


def text_of_part(part: Part) -> OutputText:
    """Return the text of a message, or of a part of it."""
    return OutputText(text=part.text, logprobs=[*map(_with_bytes, part.logprobs or ())])


def _with_bytes(token: ChosenToken) -> ChosenToken:
    """Return a token whose bytes are a list, as clients require."""
    top = [msgspec.structs.replace(other, bytes=other.bytes or []) for other in token.top_logprobs]
    return msgspec.structs.replace(token, bytes=token.bytes or [], top_logprobs=top)


def output_of(job_id: str, found: Generation) -> list[OutputMessage | FunctionCall]:
    """Return the items of a response: its text, and its calls."""
    calls = found.tool_calls or []
    items: list[OutputMessage | FunctionCall] = []
    if found.text or not calls:
        message = OutputMessage(
            id=message_id(job_id), status="completed", content=[text_of_part(found)]
        )
        items.append(message)
    items += [item_of(job_id, number, call) for number, call in enumerate(calls)]
    if found.finish == "length":
        items[-1].status = "incomplete"
    return items


def _add_item(messages: list[dict[str, Any]], place: int, item: dict[str, Any]) -> None:
    """Add an item to the messages of a chat."""
    kind = item.get("type") or "message"
    if kind in (CALL, CALL_OUTPUT):
        output = _joined_text(f"input[{place}].output", item.get("output"))
        if kind == CALL_OUTPUT and not isinstance(output, str):
            raise BadField(f"input[{place}].output is no text", "input", hint="Give one.")
        add_item(messages, f"input[{place}]", item, str(output))
        return
    if kind != "message":
        raise BadField(
            f"input[{place}]: the type {kind!r} is not supported here", "input",
            hint="Give messages with texts, function_call and function_call_output.",
        )  # fmt: skip
    role = item.get("role")
    content = _joined_text(f"input[{place}].content", item.get("content"))
    if not isinstance(role, str) or not isinstance(content, str):
        missing = "role" if not isinstance(role, str) else "content"
        raise BadField(
            f"input[{place}] has no {missing}", "input", hint="Give a role and a text as content."
        )
    messages.append(plain_role({"role": role, "content": content}))


def _joined_text(place: str, content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return "".join(_text_of(f"{place}[{at}]", part) for at, part in enumerate(content))


def _text_of(place: str, part: Any) -> str:
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    text = part.get("text") if kind in _TEXT_TYPES else None
    if isinstance(text, str):
        return text
    what = OTHER_PARTS.get(kind, "a part that is no text is")
    raise BadField(
        f"{place}: {what} not supported here", "input", hint="Give parts of the type input_text."
    )
