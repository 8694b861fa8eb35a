"""Requests of OpenAI's API: how they are read, and the inputs of the jobs that answer them.

A field that OpenAI's API or another server has, and this server does not, is refused by name,
unless its value changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import Meta
from typing_extensions import override

from extensions.openai.schema.errors import BadField
from extensions.openai.schema.formats import STRUCTURED_OUTPUTS, shape_of_format, shape_of_outputs
from extensions.openai.schema.inputs import RequestInputs
from extensions.openai.schema.neutral import (
    FOREIGN,
    HINTS,
    Neutral,
    is_neutral,
    listed,
    without_defaults,
)
from extensions.openai.schema.tools import CHOICE, TOOLS, Choice, tool_fields
from handlers.generation.inputs import Biases, MinP, Penalty, Repetition, StopTokens, TopK
from headrace.config.suggestions import did_you_mean, not_a_choice
from headrace.errors import InvalidParameter, InvalidRequest
from headrace.generator import STOP_MAX_CHARS, STOPS_MAX
from headrace.jobs.options import JobOptions
from headrace.jobs.values.encoding import why_not_json
from headrace.jobs.values.media_types import BOM
from headrace.redis.keys import STEPS

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"

#: The most answers to one prompt.
CHOICES_MAX: Final = 128
#: The most answers of which the best are returned, as OpenAI has it.
BEST_OF_MAX: Final = 20
#: The most texts of one request.
TEXTS_MAX: Final = 2048
#: The most new tokens of a completion that names no `max_tokens`, as OpenAI has it.
COMPLETION_TOKENS: Final = 16

Tier = Literal["auto", "default", "flex", "priority"]
#: The priority of a job by the tier of its request; offline work is "flex".
_PRIORITIES: Final = {"flex": STEPS[-1]}

_Token = Annotated[int, Meta(ge=0)]
Tokens = Annotated[list[_Token], Meta(min_length=1)]
_Texts = Annotated[list[str], Meta(min_length=1, max_length=TEXTS_MAX)]
_TokenLists = Annotated[list[Tokens], Meta(min_length=1, max_length=TEXTS_MAX)]
Counted = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
_Stop = Annotated[str, Meta(max_length=STOP_MAX_CHARS)]
_NOT_OPENAI: Final = Meta(description="Not in OpenAI's API.")
TEMPLATE_KWARGS: Final = Meta(description="Variables of the chat template. As in vLLM.")

_TOKENS_SCHEMA: Final = {
    "type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1,
}  # fmt: skip
_TEXTS_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": TEXTS_MAX},
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1, "maxItems": TEXTS_MAX},
    ]
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream has besides the answer."""

    include_usage: Annotated[bool, Meta(description="End with a chunk that has the usage.")] = False
    include_obfuscation: Annotated[
        bool | None, Meta(description="Chunks are never padded here.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="Not in OpenAI's API. The usage comes once, at the end.")
    ] = None


class OpenAIRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every request has.

    Attributes:
        unsupported: fields of OpenAI's API that this server does not have, with the values that
            change nothing.
        defaults: values of its fields that mean the default.
        id_prefix: how the ids of its answers begin.
        text_field: the field that has its texts.
    """

    unsupported: ClassVar[Mapping[str, Neutral]] = {}
    defaults: ClassVar[Mapping[str, Neutral]] = {}
    id_prefix: ClassVar[str] = ""
    text_field: ClassVar[str] = "input"

    model: Annotated[str, Meta(description="The name of a model of this server.")]
    service_tier: Annotated[
        Tier | None,
        Meta(description="`flex` is offline work: it runs when no other job waits."),
    ] = None
    metadata: Annotated[
        dict[str, str] | None, Meta(description="The client's own data, kept with the job.")
    ] = None
    user: Annotated[
        str | None, Meta(description="The end user, kept in the metadata of the job.")
    ] = None

    @property
    def tier(self) -> str:
        """The tier of its jobs, as the answer shows it."""
        return self.service_tier if self.service_tier in ("flex", "priority") else "default"

    @property
    def several(self) -> str:
        """The field because of which it has more than one job."""
        return self.text_field

    def place_of(self, index: int, jobs: int) -> str:
        """Return which text a job is for, such as `input[3]`; "" if there is only one."""
        return f"{self.several}[{index}]" if jobs > 1 else ""

    def options(self) -> JobOptions:
        """Return the options of its jobs."""
        metadata: dict[str, Any] = dict(self.metadata or {})
        if self.user is not None:
            metadata.setdefault("user", self.user)
        return JobOptions(priority=_PRIORITIES.get(self.tier, STEPS[0]), metadata=metadata or None)

    def inputs(self) -> RequestInputs:
        """Return the inputs of its jobs: all answers to the first prompt, then to the next one."""
        raise NotImplementedError

    def check(self) -> None:
        """Check that the fields fit each other.

        Raises:
            InvalidParameter: they do not.
        """


class SampledRequest(OpenAIRequest, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of answers are chosen."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: int | None = None
    stop: Annotated[
        _Stop | Annotated[list[_Stop], Meta(max_length=STOPS_MAX)] | None,
        Meta(description="The answer ends before the first of them."),
    ] = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[
        Biases | None, Meta(description="What is added to the logits of tokens, by their numbers.")
    ] = None
    top_k: Annotated[TopK | None, _NOT_OPENAI] = None
    min_p: Annotated[MinP | None, _NOT_OPENAI] = None
    repetition_penalty: Annotated[Repetition | None, _NOT_OPENAI] = None
    min_tokens: Annotated[Counted | None, _NOT_OPENAI] = None
    stop_token_ids: Annotated[StopTokens | None, _NOT_OPENAI] = None
    ignore_eos: Annotated[bool | None, _NOT_OPENAI] = None

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens come with log probabilities; None without these."""
        raise NotImplementedError

    def inputs_of(
        self, prompts: Sequence[Any], max_tokens: int | None, choices: int = 1, **more: Any
    ) -> RequestInputs:
        """Return the inputs of its jobs.

        Args:
            prompts: what differs between them, as members of an input.
            more: members that all of them have, besides those of sampling.
        """
        of_all = (*OpenAIRequest.__struct_fields__, "seed")
        names = [name for name in SampledRequest.__struct_fields__ if name not in of_all]
        sampling = {name: getattr(self, name) for name in names}
        shared = {"max_tokens": max_tokens, **sampling, "logprobs": self.likeliest, **more}
        return RequestInputs(prompts, shared, choices, self.seed)


class GenerationRequest(SampledRequest, kw_only=True, forbid_unknown_fields=True):
    """What a chat and a completion have in common."""

    n: Annotated[
        Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None,
        Meta(description="How many answers to make; each is a job."),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: Annotated[dict[str, Any] | None, STRUCTURED_OUTPUTS] = None

    @property
    def choices(self) -> int:
        """How many answers each prompt gets."""
        return self.n or 1

    @property
    @override
    def several(self) -> str:
        return "n" if self.choices > 1 else "prompt"

    @override
    def place_of(self, index: int, jobs: int) -> str:
        return f"prompt[{index // self.choices}]" if jobs > self.choices else ""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def shape(self) -> dict[str, Any] | None:
        """Return what an answer must be; None for any text."""
        return shape_of_outputs(self.structured_outputs)

    @override
    def check(self) -> None:
        super().check()
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter(
                "stream_options is only for streams", "stream_options", hint="Set stream to true."
            )


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of a chat completion."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        **HINTS,
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "reasoning_effort": ("none",),
        "store": (False,),
        "verbosity": ("medium",),
        "web_search_options": (),
    }
    defaults: ClassVar[Mapping[str, Neutral]] = {"max_tokens": (-1,)}
    id_prefix: ClassVar[str] = "chatcmpl-"
    text_field: ClassVar[str] = "messages"

    messages: Annotated[
        list[dict[str, Any]],
        Meta(min_length=1, description="Each has a `role` and, as `content`, a text."),
    ]
    max_tokens: Counted | None = None
    max_completion_tokens: Annotated[
        Counted | None, Meta(description="The newer name of max_tokens, which wins.")
    ] = None
    logprobs: Annotated[
        bool | None, Meta(description="Return the log probability of each token.")
    ] = None
    top_logprobs: Annotated[
        Likeliest | None,
        Meta(description="How many of the likeliest tokens come with each of them."),
    ] = None
    response_format: Annotated[
        dict[str, Any] | None, Meta(description="`text`, `json_object` or `json_schema`.")
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: at most one call.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, TEMPLATE_KWARGS] = None
    add_generation_prompt: Annotated[bool | None, _NOT_OPENAI] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="The answer goes on with the last message. As in vLLM.")
    ] = None

    def tool_fields(self) -> dict[str, Any]:
        """Return the members of a job's input with the tools."""
        return tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls, flat=False)

    @override
    def shape(self) -> dict[str, Any] | None:
        given = self.response_format
        shape = None if given is None else shape_of_format(given, "response_format", "json_schema")
        if shape is not None and super().shape() is not None:
            raise InvalidParameter(
                "response_format and structured_outputs exclude each other",
                "structured_outputs", hint="Leave one of them out.",
            )  # fmt: skip
        return super().shape() if shape is None else shape

    @override
    def check(self) -> None:
        super().check()
        self.shape()
        self.tool_fields()
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter(
                "top_logprobs is only for answers with logprobs",
                "top_logprobs",
                hint="Set logprobs to true.",
            )

    @property
    @override
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @override
    def inputs(self) -> RequestInputs:
        messages = [plain_role(message) for message in self.messages]
        newer = self.max_completion_tokens
        return self.inputs_of(
            [{"messages": messages, **self.tool_fields()}],
            self.max_tokens if newer is None else newer,
            self.choices,
            structured=self.shape(),
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of a completion."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        **HINTS,
        "suffix": ("",),
    }
    id_prefix: ClassVar[str] = "cmpl-"
    text_field: ClassVar[str] = "prompt"

    prompt: Annotated[
        Any,
        Meta(
            description="A text or its tokens, or a list of either.",
            extra_json_schema=_TEXTS_SCHEMA,
        ),
    ]
    max_tokens: Annotated[
        _Token, Meta(description="The most new tokens of each answer; 0 only with `echo`.")
    ] = COMPLETION_TOKENS
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=BEST_OF_MAX)] | None,
        Meta(description="Make so many answers, and return the `n` likeliest ones."),
    ] = None
    echo: Annotated[bool | None, Meta(description="Begin the answer with the prompt.")] = None
    logprobs: Annotated[
        Likeliest | None,
        Meta(description="Return the log probability of each token, and so many of the likeliest."),
    ] = None

    @property
    def ranked(self) -> bool:
        """Whether it makes more answers than it returns."""
        return (self.best_of or 1) > (self.n or 1)

    @property
    @override
    def choices(self) -> int:
        return max(self.best_of or 1, self.n or 1)

    @property
    @override
    def several(self) -> str:
        return "best_of" if self.ranked else super().several

    @override
    def check(self) -> None:
        super().check()
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise InvalidParameter("best_of is below n", "best_of", hint="Make it n or more.")
        if self.ranked and self.stream:
            raise InvalidParameter("best_of is not for streams", "best_of", hint="Leave it out.")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidParameter("max_tokens is 0 without echo", "max_tokens", hint="Give 1.")

    @property
    @override
    def likeliest(self) -> int | None:
        return 0 if self.logprobs is None and self.ranked else self.logprobs

    @override
    def inputs(self) -> RequestInputs:
        prompts = [{"prompt": prompt} for prompt in texts_of(self.prompt, "prompt")]
        return self.inputs_of(
            prompts, self.max_tokens, self.choices, structured=self.shape(), echo=self.echo
        )


class EmbeddingRequest(OpenAIRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of embeddings."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {"dimensions": ()}
    id_prefix: ClassVar[str] = "embd-"

    input: Annotated[
        Any,
        Meta(
            description="A text or its tokens, or a list of either; each is a job.",
            extra_json_schema=_TEXTS_SCHEMA,
        ),
    ]
    encoding_format: Literal["float", "base64"] = "float"

    @override
    def inputs(self) -> RequestInputs:
        return RequestInputs(texts_of(self.input, "input"))


def texts_of(value: Any, param: str) -> list[Any]:
    """Return the texts, or the lists of tokens, of a field.

    Raises:
        InvalidParameter: it is something else, or empty.
    """
    if isinstance(value, str):
        return [value]
    for kind in (_Texts, _TokenLists):
        try:
            return list(msgspec.convert(value, kind))
        except msgspec.ValidationError:
            continue
    try:
        return [msgspec.convert(value, Tokens)]
    except msgspec.ValidationError:
        raise InvalidParameter(
            f"{param} is neither a text, nor a list of tokens, nor a list of these"
            f"{_misfit(value, param)}",
            param,
            hint=f"A list has 1 to {TEXTS_MAX} texts, and no list of tokens is empty.",
        ) from None


def _misfit(value: Any, param: str) -> str:
    """Return where a list has a value of another kind than its first one; "" if nowhere."""
    if not isinstance(value, list) or not value:
        return ""
    first = value[0]
    kind = str if isinstance(first, str) else Tokens if isinstance(first, list) else _Token
    for index, text in enumerate(value):
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return f": {param}[{index}] does not fit"
    return ""


Shape = TypeVar("Shape", bound=OpenAIRequest)


def read_request(body: bytes | msgspec.Raw, shape: type[Shape]) -> Shape:
    """Read the JSON of a request; null is as good as absent.

    Raises:
        InvalidRequest: it is no JSON object in UTF-8.
        InvalidParameter: a field is unknown or not supported, or its value is not valid.
    """
    if isinstance(body, bytes):
        body = body.removeprefix(BOM)
    try:
        fields = msgspec.json.decode(body)
        if isinstance(body, bytes):
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the body is not JSON: {why_not_json(error, body)}",
            hint="Send a JSON object in UTF-8.",
        ) from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body is no JSON object", hint='Send one, with "model".')
    given = without_defaults(fields, shape.defaults)
    for name in [name for name in given if name not in shape.__struct_fields__]:
        _check_unsupported(shape, name, given.pop(name))
    try:
        request = msgspec.convert(given, shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, shape) from None
    request.check()
    return request


def _check_unsupported(shape: type[OpenAIRequest], name: str, value: Any) -> None:
    """Refuse a field that this server does not have, unless its value changes nothing."""
    neutral = shape.unsupported.get(name, FOREIGN.get(name))
    if neutral is None:
        hint = did_you_mean(name[:64], shape.__struct_fields__)
        raise BadField(f"unknown field {name[:64]!r}{hint}", name[:64], openai="unknown_parameter")
    if is_neutral(value, neutral):
        return
    values = listed(neutral)
    raise BadField(
        f"{name} is not supported here", name, openai="unsupported_parameter",
        hint=f"Leave it out, or give {values}." if values else "Leave it out.",
    )  # fmt: skip


def _invalid(error: msgspec.ValidationError, shape: type[OpenAIRequest]) -> InvalidParameter:
    if choices := not_a_choice(error, shape):
        return BadField(choices, choices.partition(":")[0].partition(".")[0])
    text, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    text = text[:1].lower() + text[1:]
    if not place:
        # "Object missing required field `model`"
        name = text.partition("`")[2].rstrip("`")
        missing = f"{name} is missing" if name else text
        return BadField(missing, name, openai="missing_required_parameter")
    name = place.partition(".")[0].partition("[")[0]
    kind = "invalid_type" if ", got" in text else "invalid_value"
    return BadField(f"{place}: {text}", name, openai=kind)


def plain_role(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose role chat templates know: `developer` is OpenAI's new `system`."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message
