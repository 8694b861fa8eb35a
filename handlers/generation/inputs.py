"""The input of a language model's job, checked before it is a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from handlers.generation.structure import Shape
from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import InputError
from headrace.generator import STOP_MAX_CHARS, STOPS_MAX

#: The most of the likeliest tokens, as in OpenAI's API.
LOGPROBS_MAX: Final = 20
#: Words in the error of a prompt that is too long, as in OpenAI's: clients look for them.
CONTEXT_LENGTH: Final = "this model's maximum context length is"
#: The parts of a message that are no text, as OpenAI's chats and responses name them.
OTHER_PARTS: Final = {
    "file": "files are", "image_url": "images are", "input_audio": "audio is",
    "input_file": "files are", "input_image": "images are", "refusal": "refusals are",
    "video_url": "videos are",
}  # fmt: skip
#: A text with at most so many characters for each token that the model takes is not called long.
CHARACTERS_MAX: Final = 16
#: A word that is cut can have so many tokens where the whole word has one: WordPiece knows no word
#: of more than 100 characters.
_CUT_TOKENS: Final = 128
#: Of a token, as a number.
_DIGITS_MAX: Final = 9

#: The most tokens with a bias, and the most that end an answer, as in vLLM.
BIASES_MAX: Final = 1024
STOP_TOKENS_MAX: Final = 128

_Token = Annotated[int, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
#: Beyond these the logits would be infinite, and excluded tokens could win.
Repetition = Annotated[float, Meta(ge=0.01, le=100)]
TopK = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
StopTokens = Annotated[list[_Token], Meta(max_length=STOP_TOKENS_MAX)]
Biases = Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=BIASES_MAX)]


class GenerationInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a job; docs/generation.md lists the fields."""

    prompt: str | list[_Token] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Repetition | None = None
    logit_bias: Biases = {}
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop_token_ids: StopTokens = []
    stop: str | list[str] = []
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    structured: Shape | None = None
    echo: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The texts before which the answer ends; raises InputError if they are not valid."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        if len(stop) > STOPS_MAX or not all(0 < len(text) <= STOP_MAX_CHARS for text in stop):
            raise InputError(
                f"stop takes up to {STOPS_MAX} texts, each with 1 to {STOP_MAX_CHARS:,} characters"
            )
        return stop

    @property
    def biases(self) -> dict[int, float]:
        """Return what is added to the logits of tokens; raise InputError if a key is no token."""
        for token in self.logit_bias:
            if not token.isascii() or not token.isdigit() or len(token) > _DIGITS_MAX:
                raise InputError(f"logit_bias: the key {token[:64]!r} is no token; give numbers")
        return {int(token): bias for token, bias in self.logit_bias.items()}


def read_input(value: Any) -> GenerationInput:
    """Return the input of a job; raise InputError for an unknown field or an unfit value."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InputError("the input is neither text nor JSON") from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise InputError("the input is no object; give prompt or messages")
    known = GenerationInput.__struct_fields__
    for name in value:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise InputError(f"unknown field {name!r}{hint}; known: {listing(known)}")
    try:
        return msgspec.convert(value, GenerationInput)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise InputError(f"{place.rstrip('`') or 'the input'}: {text}") from None


def plain_message(place: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with one text as content; raise InputError without a role or such a text."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InputError(f"messages[{place}] has no role; give one, such as user")
    if isinstance(content, list):
        for at, one in enumerate(content):
            _check_part(f"messages[{place}].content[{at}]", one)
        content = "".join(str(one.get("text", "")) for one in content)
    if not isinstance(content, str):
        raise InputError(f"messages[{place}].content is no text")
    return {**message, "content": content}


def _check_part(place: str, part: Any) -> None:
    kind = str(part.get("type"))[:64] if isinstance(part, dict) else None
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise InputError(f"{place}.text is no text")
        return
    if kind in OTHER_PARTS:
        raise InputError(
            f"{place}: {OTHER_PARTS[kind]} not supported by this model; give parts of type text"
        )
    raise InputError(f"{place}: a part of a message has the type text here, not {kind!r}")


def too_long(what: str, context_tokens: int, advice: str = "make the prompt shorter") -> InputError:
    """Return the error for a prompt that has `what`."""
    return InputError(
        f"the prompt is too long: it has {what}, and {CONTEXT_LENGTH} {context_tokens:,} tokens "
        f"with the answer; {advice}"
    )


def is_far_too_long(text: str, context_tokens: int, tokens: Callable[[str], Sized]) -> bool:
    """Return whether a text has far more tokens than the model takes, by its beginning alone.

    The tokens of 10 MB take ten seconds, in which the other requests of the process wait.

    Args:
        context_tokens: how many tokens the model takes.
    """
    length = CHARACTERS_MAX * context_tokens
    while length < len(text):
        # The cut can change the last tokens of the beginning, so it must have many more.
        if len(tokens(text[:length])) > 2 * context_tokens + _CUT_TOKENS:
            return True
        length *= 2
    return False
