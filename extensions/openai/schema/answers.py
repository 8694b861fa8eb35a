"""OpenAI's answers, made from the results of jobs: whole, or as the chunks of a stream."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from extensions.openai.schema.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    OpenAIRequest,
    SampledRequest,
)
from extensions.openai.schema.tools import (
    CallPart,
    ToolCall,
    ToolCallDelta,
    calls_of,
    deltas_of,
    joined,
)
from headrace.errors import HandlerError, InvalidParameter
from headrace.jobs.job import Count

Finish = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct):
    """The tokens of the prompt that the model had in its cache."""

    cached_tokens: Count = 0


class Usage(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails = msgspec.field(default_factory=PromptTokensDetails)


class TokenCounts(msgspec.Struct):
    """The tokens of a job, as its result has them."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    cached_tokens: Count = 0


class Token(msgspec.Struct, kw_only=True):
    """A token of the model."""

    token: str
    bytes: Annotated[
        list[Annotated[int, Meta(ge=0, le=255)]] | None,
        Meta(description="Its text in UTF-8; null for a part of a character."),
    ] = None


class LikelyToken(Token, kw_only=True):
    """A token that could have been chosen."""

    logprob: float


class ChosenToken(Token, kw_only=True):
    """A token of an answer, and the likeliest ones in its place."""

    logprob: Annotated[float | None, Meta(description="Null for the first token of a prompt.")]
    top_logprobs: list[LikelyToken] = []


class Part(msgspec.Struct):
    """A part of an answer, as one piece of a job holds it.

    Attributes:
        logprobs: the log probabilities of its tokens; None without log probabilities.
        tool_calls: parts of calls; in a result, the whole ones.
    """

    text: str
    logprobs: list[ChosenToken] | None = None
    tool_calls: list[CallPart] | None = None


class Generation(Part):
    """The result of a job that generates text, as `language_model` returns it.

    Attributes:
        finish_reason: why the text ended. Each value other than "length" counts as "stop", or with
            calls as "tool_calls".
        usage: how many tokens it has; None if the handler does not count them.
    """

    finish_reason: str = "stop"
    usage: TokenCounts | None = None

    @property
    def finish(self) -> Finish:
        """Why the text ended, as OpenAI names it."""
        if self.finish_reason == "length":
            return "length"
        return "tool_calls" if self.tool_calls else "stop"


class Answer(msgspec.Struct, kw_only=True):
    """The fields that all answers and chunks have."""

    id: Annotated[str, Meta(description="The id of its job; of the first one with `n`.")]
    created: Annotated[Count, Meta(description="Seconds since 1970.")]
    model: str
    service_tier: Annotated[str, Meta(extra_json_schema={"enum": ["default", "flex", "priority"]})]
    usage: Annotated[Usage | None, Meta(description="Null if the model does not count tokens.")]


class ChatMessage(msgspec.Struct, kw_only=True):
    """The message of the model."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[str | None, Meta(description="Null if there are only calls.")]
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """The log probabilities of the tokens of an answer to a chat."""

    content: list[ChosenToken]
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a chat."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish


class ChatCompletion(Answer, kw_only=True):
    """The answers to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """What a chunk adds to one answer."""

    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None


class ChatChunk(Answer, kw_only=True):
    """A chunk of the answers to a chat."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """The log probabilities of the tokens of a continuation."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        Meta(description="The likeliest tokens in the place of each, and the chosen one."),
    ]
    text_offset: Annotated[list[Count], Meta(description="Where each token begins in the text.")]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One continuation of a prompt, or a part of it."""

    text: str
    index: Count
    logprobs: CompletionLogprobs | None = None
    finish_reason: Finish | None


class Completion(Answer, kw_only=True):
    """Continuations of prompts, or a chunk of them."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: Count
    embedding: Annotated[
        list[float] | str,
        Meta(description="With `encoding_format` base64: float32 in little-endian order."),
    ]


class EmbeddingUsage(msgspec.Struct):
    """The tokens of the texts."""

    prompt_tokens: Count
    total_tokens: Count


class Embeddings(msgspec.Struct, kw_only=True):
    """The vectors of texts, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class _Vector(msgspec.Struct):
    embedding: list[float]
    usage: dict[str, int] = {}


_PART: Final = msgspec.json.Decoder(Part | str)
_GENERATION: Final = msgspec.json.Decoder(Generation | str)
_VECTOR: Final = msgspec.json.Decoder(_Vector | list[float])


def read_generation(result: bytes, model: str) -> Generation:
    """Decode the result of a job: a text, or an object with `text`.

    Raises:
        InvalidParameter: it is neither, so the model is no language model.
    """
    try:
        generation = _GENERATION.decode(result)
    except msgspec.MsgspecError:
        raise _wrong_model(
            model, "is no language model: its result is neither a text nor an object with text, "
            "finish_reason and usage",
        ) from None  # fmt: skip
    return Generation(generation) if isinstance(generation, str) else generation


def read_part(pieces: Sequence[msgspec.Raw], model: str) -> Part:
    """Decode pieces of a job and join them to one part.

    Each piece is a text, or an object with `text`.

    Raises:
        HandlerError: a piece is neither.
    """
    try:
        read = [_PART.decode(piece) for piece in pieces]
    except msgspec.MsgspecError:
        raise HandlerError(
            f"model {model} streams pieces that are no text; this endpoint needs text"
        ) from None
    parts = [Part(part) if isinstance(part, str) else part for part in read]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    text = "".join(part.text for part in parts)
    calls = joined(call for part in parts for call in part.tool_calls or ())
    return Part(text, list(chain.from_iterable(logprobs)) if logprobs else None, calls or None)


def check_logprobs(request: SampledRequest, part: Part) -> None:
    """Check that an answer has log probabilities if the request asks for them.

    Raises:
        InvalidParameter: the model returned none.
    """
    if request.likeliest is not None and part.logprobs is None:
        names = ("logprobs", "include", "top_logprobs", "best_of")
        given = [name for name in names if getattr(request, name, None) is not None]
        raise InvalidParameter(
            f"model {request.model} returns no logprobs", given[0], hint=f"Leave {given[0]} out."
        )


def answer(
    request: OpenAIRequest, answer_id: str, created: int, results: Sequence[bytes]
) -> Answer | Embeddings:
    """Return the answer to a request.

    Args:
        created: when the first job was submitted, in seconds since 1970.
        results: the results of the jobs as JSON, in the order of the inputs.

    Raises:
        InvalidParameter: the model's results are not what this kind of request needs.
    """
    if isinstance(request, EmbeddingRequest):
        return _embeddings(request, results)
    if not isinstance(request, GenerationRequest):
        raise TypeError(type(request).__name__)
    generations = [read_generation(result, request.model) for result in results]
    for generation in generations:
        check_logprobs(request, generation)
    head = {**_head(request, answer_id, created), "usage": usage_of(request, generations)}
    if isinstance(request, ChatRequest):
        return ChatCompletion(
            **head,
            choices=[
                ChatChoice(
                    index=index,
                    message=_chat_message(generation, _job_id(answer_id, index)),
                    logprobs=_chat_logprobs(generation.logprobs),
                    finish_reason=generation.finish,
                )
                for index, generation in enumerate(generations)
            ],
        )
    if isinstance(request, CompletionRequest) and request.ranked:
        generations = _best(request, generations)
    return Completion(
        **head,
        choices=[
            CompletionChoice(
                text=generation.text,
                index=index,
                logprobs=_completion_logprobs(generation.logprobs),
                finish_reason=generation.finish,
            )
            for index, generation in enumerate(generations)
        ],
    )


def _best(request: CompletionRequest, generations: Sequence[Generation]) -> list[Generation]:
    """Return the `n` answers to each prompt whose tokens are the likeliest, the best one first."""
    best: list[Generation] = []
    for first in range(0, len(generations), request.choices):
        of_prompt = generations[first : first + request.choices]
        best += sorted(of_prompt, key=_mean_logprob, reverse=True)[: request.n or 1]
    if request.logprobs is None:
        best = [msgspec.structs.replace(generation, logprobs=None) for generation in best]
    return best


def _mean_logprob(generation: Generation) -> float:
    # The tokens of a prompt come before those of its answer, and have no share in this.
    count = generation.usage.completion_tokens if generation.usage is not None else None
    tokens = generation.logprobs or []
    new = tokens[max(0, len(tokens) - (count or len(tokens))) :]
    own = [token.logprob or 0.0 for token in new]
    return sum(own) / len(own) if own else -math.inf


def _head(request: GenerationRequest, answer_id: str, created: int) -> dict[str, Any]:
    return {
        "id": answer_id, "created": created, "model": request.model,
        "service_tier": request.tier,
    }  # fmt: skip


def usage_of(request: GenerationRequest, generations: Sequence[Generation]) -> Usage | None:
    """Return the tokens of all answers together; None if one has no count.

    A prompt with several answers counts once.
    """
    usages = [generation.usage for generation in generations if generation.usage is not None]
    if len(usages) < len(generations):
        return None
    prompt = sum(usage.prompt_tokens for usage in usages[:: request.choices])
    cached = sum(usage.cached_tokens for usage in usages[:: request.choices])
    new = sum(usage.completion_tokens for usage in usages)
    return Usage(prompt, new, prompt + new, PromptTokensDetails(cached))


def _job_id(answer_id: str, index: int) -> str:
    """Return the id of the job of an answer, by which its calls are named."""
    return f"{answer_id}.{index}" if index else answer_id


def _chat_message(generation: Generation, job_id: str) -> ChatMessage:
    if not generation.tool_calls:
        return ChatMessage(content=generation.text)
    calls = calls_of(job_id, generation.tool_calls)
    return ChatMessage(content=generation.text or None, tool_calls=calls)


def _chat_logprobs(logprobs: list[ChosenToken] | None) -> ChatLogprobs | None:
    return None if logprobs is None else ChatLogprobs(content=logprobs)


def _completion_logprobs(
    logprobs: list[ChosenToken] | None, before: int = 0
) -> CompletionLogprobs | None:
    """Return log probabilities as a completion has them.

    Args:
        before: how many characters of the text come before the first token.
    """
    if logprobs is None:
        return None
    # A special token is no part of the text, and has no bytes.
    lengths = [0 if token.bytes == [] else len(token.token) for token in logprobs]
    return CompletionLogprobs(
        tokens=[token.token for token in logprobs],
        token_logprobs=[token.logprob for token in logprobs],
        top_logprobs=[_likely_texts(token) for token in logprobs],
        text_offset=list(accumulate(lengths[:-1], initial=before)) if lengths else [],
    )


def _likely_texts(token: ChosenToken) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    # Tokens can have the same text. The likeliest comes last, so it is kept.
    likely = {other.token: other.logprob for other in reversed(token.top_logprobs)}
    return {token.token: token.logprob, **likely}


class Chunks:
    """Makes the chunks of the answers to one request."""

    def __init__(self, request: GenerationRequest, answer_id: str, created: int) -> None:
        self._chat = isinstance(request, ChatRequest)
        self._head = _head(request, answer_id, created)

    def begin(self, index: int) -> Answer | None:
        """Return the first chunk of an answer; None for a completion, which has no such chunk."""
        return self._of_chat(index, ChatDelta("assistant", "")) if self._chat else None

    def text(self, index: int, part: Part, before: int) -> Answer:
        """Return a chunk with the next part of an answer.

        Args:
            before: how many characters the answer had before.
        """
        if self._chat:
            logprobs = _chat_logprobs(part.logprobs)
            delta = ChatDelta(content=part.text)
            if part.tool_calls:
                job_id = _job_id(self._head["id"], index)
                calls = deltas_of(job_id, part.tool_calls)
                delta = ChatDelta(content=part.text or None, tool_calls=calls)
            return self._of_chat(index, delta, logprobs=logprobs)
        of_tokens = _completion_logprobs(part.logprobs, before)
        return self._of_completion(index, part.text, logprobs=of_tokens)

    def end(self, index: int, finish: Finish) -> Answer:
        """Return the last chunk of an answer."""
        if self._chat:
            return self._of_chat(index, ChatDelta(), finish_reason=finish)
        return self._of_completion(index, "", finish_reason=finish)

    def usage(self, usage: Usage | None) -> Answer:
        """Return the chunk that has the usage and no part of an answer."""
        kind = ChatChunk if self._chat else Completion
        return kind(**self._head, usage=usage, choices=[])

    def _of_chat(self, index: int, delta: ChatDelta, **more: Any) -> Answer:
        choice = ChatChunkChoice(index=index, delta=delta, **more)
        return ChatChunk(**self._head, usage=None, choices=[choice])

    def _of_completion(self, index: int, text: str, **more: Any) -> Answer:
        choice = CompletionChoice(index=index, text=text, **{"finish_reason": None, **more})
        return Completion(**self._head, usage=None, choices=[choice])


def _embeddings(request: EmbeddingRequest, results: Sequence[bytes]) -> Embeddings:
    vectors = [_vector(result, request.model) for result in results]
    tokens = sum(vector.usage.get("prompt_tokens", 0) for vector in vectors)
    return Embeddings(
        data=[
            Embedding(index=n, embedding=_encoded(vector.embedding, request.encoding_format))
            for n, vector in enumerate(vectors)
        ],
        model=request.model,
        usage=EmbeddingUsage(tokens, tokens),
    )


def _vector(result: bytes, model: str) -> _Vector:
    try:
        vector = _VECTOR.decode(result)
    except msgspec.MsgspecError:
        raise _wrong_model(
            model, "makes no embeddings: its result is neither a list of numbers nor an object "
            "with embedding and usage",
        ) from None  # fmt: skip
    return _Vector(vector) if isinstance(vector, list) else vector


def _wrong_model(model: str, what: str) -> InvalidParameter:
    hint = f"Send its input to /api/v1/models/{model}/jobs instead."
    return InvalidParameter(f"model {model} {what}", "model", hint=hint)


def _encoded(vector: list[float], encoding: str) -> list[float] | str:
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
