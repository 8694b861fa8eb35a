"""A causal language model from a folder, as transformers and the Hub write them.

An input is a text, which the model continues, or an object::

    {"messages": [{"role": "user", "content": "What is zip?"}], "max_tokens": 100, "temperature": 0}

with `messages`, or a `prompt` (a text, or a list of tokens). A result is `{"text": ...,
"finish_reason": "stop", "usage": {"prompt_tokens": 7, "cached_tokens": 0, ...}}`. With
`logprobs` it also has `logprobs`, and each piece is `{"text": ..., "logprobs": [...]}`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from typing_extensions import override

from handlers.common.items import ItemHandler
from handlers.generation import tools
from handlers.generation.answer_text import (
    AnswerLogprobs,
    Detokenizer,
    Echo,
    TokenTexts,
    result_of,
)
from handlers.generation.calls import MARKS, CallParser
from handlers.generation.chat import chat_tokens
from handlers.generation.engine import AHEAD, Engine, NewTokens, Prompt
from handlers.generation.inputs import (
    CONTEXT_LENGTH,
    GenerationInput,
    is_far_too_long,
    read_input,
    too_long,
)
from handlers.generation.sampling import PIECE_TOKENS, Penalties, PromptScores, Sampling
from handlers.generation.structure import Grammar, Mask, Shapes
from headrace.errors import ConfigError, InputError
from headrace.generator import Budget, Generator, Piece
from headrace.handler import Context

#: The model that comes with Headrace; examples/train_language_model.py makes it.
INCLUDED: Final = Path(__file__).parent / "weights" / "python_docs"
#: The share of the free memory of a GPU that the cache takes, and what it takes without one.
_CACHE_SHARE: Final = 0.6
_CACHE_BYTES: Final = 1 << 30
#: The share of the cache that is left free when a request joins others.
_MARGIN: Final = 0.1
#: The weight of the newest answer in the share of `max_tokens` that answers use.
_NEWEST_WEIGHT: Final = 1 / 16

_Count = Annotated[int, Meta(ge=1)]


class LanguageModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `language_model`; docs/handlers.md lists them."""

    folder: Annotated[str, Meta(min_length=1)] | None = None
    engine: Literal["auto", "continuous", "generate", "vllm"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    context: _Count | None = None
    max_tokens: _Count = 256
    cache_tokens: _Count | None = None
    tool_format: tools.Format = "auto"
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Prompt):
    """A checked input.

    Attributes:
        stop: texts before which the answer ends.
        seeded: the client has given the seed.
        compiled: what masks are made of; None for any text.
        tools: those that the answer can call.
        echo: the text of the prompt, if the answer repeats it first.
    """

    stop: Sequence[str]
    seeded: bool
    compiled: Future[Any] | None = None
    tools: tools.Tools | None = None
    echo: str | None = None


@dataclass(slots=True)
class _Answer:
    request: Request
    text: Detokenizer
    count: int = 0
    logprobs: AnswerLogprobs | None = None
    calls: CallParser | None = None
    echo: Echo | None = None

    @property
    def stop(self) -> str:
        """How it has ended, unless by its length."""
        return "tool_calls" if self.calls is not None and self.calls.count else "stop"

    def with_calls(self, delta: Any, text: str, finish: str | None) -> tuple[Any, str | None]:
        """Return a piece with the calls in its text, and why the answer has ended."""
        if self.calls is None:
            return delta, finish
        piece = self.calls.read(text, last=finish is not None)
        if isinstance(delta, dict):
            # Log probabilities are of all tokens, also of those that have made a call.
            piece["logprobs"] = delta["logprobs"]
        # A whole call needs no more tokens.
        ended = self.stop if finish == "stop" or (finish and self.calls.complete) else finish
        return piece if any(piece.values()) else None, ended


class LanguageModel(ItemHandler, Generator):
    """Continues texts and answers chats."""

    overlap = False
    options_kind = LanguageModelOptions
    options: LanguageModelOptions

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.folder = model_folder(context, self.options.folder)
        self._load(context)
        self._answers: dict[str, _Answer] = {}
        # Those that join the batch once their prompts have log probabilities, and the last such
        # prompt: several answers to one prompt need its own once.
        self._scoring: dict[str, PromptScores] = {}
        self._scored: tuple[Any, PromptScores] | None = None
        self._paused: Set[str] = frozenset()
        self._ended: list[Piece] = []
        self._share_used = 1.0

    def _load(self, context: Context) -> None:
        from transformers import GenerationConfig

        self.tokenizer = load_tokenizer(self.folder)
        self._backend: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        config: Any = GenerationConfig
        try:
            defaults = config.from_pretrained(self.folder, local_files_only=True)
        except OSError:  # a folder need not have it
            defaults = config()
        self.defaults = _defaults(defaults)
        self.default_repetition = float(getattr(defaults, "repetition_penalty", None) or 1.0)
        self.end_tokens = _end_tokens(defaults.eos_token_id, self.tokenizer.eos_token_id)
        self.shapes = Shapes(self.tokenizer, self.end_tokens)
        self.token_texts = TokenTexts(self._decode, self.tokenizer.convert_ids_to_tokens)
        self.call_format = tools.format_of(self.tokenizer.chat_template, self.options.tool_format)
        added = self.tokenizer.added_tokens_decoder.items()
        special = {number: token.content for number, token in added if token.special}
        # Decoding leaves special tokens out, also those that mark calls in some formats.
        self._hidden = {number for number, text in special.items() if text not in MARKS}
        self._marks_are_special = len(self._hidden) < len(special)
        self.engine, self.context_tokens = _engine(
            self.folder, self.options, context, self.end_tokens
        )

    @override
    def example_input(self) -> Any:
        return {"prompt": "Python", "max_tokens": 2}

    @override
    def item(self, data: Any) -> Request:
        asked = read_input(data)
        called = self._tools(asked)
        tokens = self._tokens(asked, called)
        room = self.context_tokens - len(tokens)
        if room < (0 if asked.max_tokens == 0 else 1):
            raise too_long(f"{len(tokens):,} tokens", self.context_tokens)
        wanted = asked.max_tokens
        if wanted is not None and wanted > room:
            raise InputError(
                f"the prompt has {len(tokens):,} tokens and max_tokens is {wanted:,}, but "
                f"{CONTEXT_LENGTH} {self.context_tokens:,} tokens; set max_tokens to {room:,} or "
                "less"
            )
        if asked.logprobs is not None and not self.engine.has_logprobs:
            raise InputError(f"logprobs: {self.options.engine} returns none here; leave it out")
        grammar = self._grammar(asked, called)
        forced = called is not None and called.forced
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k", "seed", "min_p")
            if (value := getattr(asked, name)) is not None
        }
        most = min(self.options.max_tokens, room) if wanted is None else wanted
        return Request(
            tokens=tokens,
            max_tokens=most,
            sampling=replace(self.defaults, **given),
            ignore_end=asked.ignore_eos,
            logprobs=asked.logprobs,
            # A stop text in the arguments of a call that must come would cut them.
            stop=() if forced else asked.stops,
            seeded=asked.seed is not None,
            grammar=grammar,
            compiled=None if grammar is None else self.shapes.compiled(grammar),
            tools=called,
            stop_tokens=() if forced else asked.stop_token_ids,
            penalties=self._penalties(asked, most),
            echo=self._echo(asked, tokens),
        )

    def _penalties(self, asked: GenerationInput, max_tokens: int) -> Penalties | None:
        if asked.min_tokens > max_tokens:
            raise InputError(
                f"min_tokens: it is {asked.min_tokens:,}, above the {max_tokens:,} tokens of the "
                "answer; set max_tokens too"
            )
        biases, repetition = asked.biases, asked.repetition_penalty
        self._check_tokens("logit_bias: it", biases)
        penalties = Penalties(
            asked.frequency_penalty,
            asked.presence_penalty,
            self.default_repetition if repetition is None else repetition,
            biases,
            asked.min_tokens,
        )
        return None if penalties.change_nothing else penalties

    def _echo(self, asked: GenerationInput, tokens: list[int]) -> str | None:
        if asked.max_tokens == 0 and not asked.echo:
            raise InputError("max_tokens: it is 0, which is only for echo; give at least 1")
        if not asked.echo:
            return None
        if asked.prompt is None:
            raise InputError("echo: it is only for a prompt; leave it out")
        if asked.logprobs is not None and not self.engine.has_prompt_scores:
            raise InputError("logprobs: this model has none of prompts; leave out echo")
        return asked.prompt if isinstance(asked.prompt, str) else self._decode(tokens)

    def _check_tokens(self, field: str, tokens: Iterable[int]) -> None:
        largest = len(self.tokenizer) - 1
        if any(token > largest for token in tokens):
            raise InputError(f"{field} has a token above {largest:,}, the model's last one")

    def _tools(self, asked: GenerationInput) -> tools.Tools | None:
        available = tools.read_tools(
            asked.tools, asked.tool_choice, parallel=asked.parallel_tool_calls is not False
        )
        if available is not None and asked.messages is None:
            raise InputError("tools are for chats; give messages, or leave tools out")
        if available is not None and self.call_format is None:
            raise tools.unknown_format()
        return available

    def _grammar(self, asked: GenerationInput, called: tools.Tools | None) -> Grammar | None:
        """Return what the answer must be; None for any text."""
        grammar = None if asked.structured is None else asked.structured.as_grammar()
        if called is not None and self.call_format is not None:
            grammar = called.grammar(self.call_format, asked.structured)
        if grammar is not None and asked.ignore_eos:
            raise InputError(f"{grammar.field} and ignore_eos exclude each other; leave one out")
        return grammar

    @override
    def preparation(self, request: Request) -> Future[Any] | None:
        return request.compiled

    def _tokens(self, asked: GenerationInput, called: tools.Tools | None) -> list[int]:
        if (asked.prompt is None) == (asked.messages is None):
            raise InputError("give either prompt or messages")
        if asked.messages is not None:
            tokens = chat_tokens(
                self.tokenizer, asked, self.context_tokens, self._check_length, called,
                self.call_format,
            )  # fmt: skip
        elif isinstance(asked.prompt, str):
            self._check_length(asked.prompt)
            tokens = self.tokenizer(asked.prompt).input_ids
        else:
            tokens = asked.prompt or []
            self._check_tokens("prompt", tokens)
        if not tokens:
            raise InputError("the prompt is empty; give at least one token")
        return list(tokens)

    def _check_length(self, text: str) -> None:
        if is_far_too_long(text, self.context_tokens, lambda part: self.tokenizer(part).input_ids):
            raise too_long("far more tokens", self.context_tokens)

    @override
    def budget(self) -> Budget:
        room = self.engine.budget()
        room = replace(room, slots=room.slots - len(self._scoring))
        if not self._answers:
            return room
        answers = self._answers.values()
        taken = sum(self.likely_cost(answer.request, answer.count) for answer in answers)
        return Budget(room.slots, int(room.tokens * (1 - _MARGIN)) - taken)

    @override
    def cost(self, request: Request) -> int:
        return self.engine.cost(len(request.tokens) + request.max_tokens)

    @override
    def likely_cost(self, request: Request, produced: int = 0) -> int:
        share = 1.0 if request.ignore_end else self._share_used
        likely = max(math.ceil(request.max_tokens * share), produced + AHEAD)
        return self.engine.cost(len(request.tokens) + min(likely, request.max_tokens))

    @override
    def lacks_memory(self) -> bool:
        return self.engine.lacks_memory()

    @override
    def pause(self, request_ids: Set[str]) -> None:
        self._paused = request_ids
        self.engine.pause(request_ids)

    @property
    @override
    def can_pause(self) -> bool:
        return self.engine.can_pause

    @override
    def add(self, request_id: str, request: Request, resume_from: Sequence[int] = ()) -> None:
        resumed = list(resume_from)
        decode = self._decode
        if request.tools is not None and self._marks_are_special:
            decode = self._decode_with_marks
        text = Detokenizer(decode, request.stop, resumed)
        answer = _Answer(request, text, len(resumed))
        if request.tools is not None and self.call_format is not None:
            answer.calls = request.tools.parser(self.call_format)
            answer.calls.read(decode(resumed))
        if request.logprobs is not None:
            special = request.echo is not None
            answer.logprobs = AnswerLogprobs(self.token_texts, special=special)
        if request.echo is not None and not resumed:
            # It comes with the first tokens, so an answer that goes on has had it.
            if request.logprobs is not None:
                self._answers[request_id] = answer
                self._scoring[request_id] = self._prompt_scores(request.tokens, request.logprobs)
                return
            answer.echo = Echo(request.echo)
        self._begin(request_id, answer, resumed)

    def _prompt_scores(self, tokens: Sequence[int], likeliest: int) -> PromptScores:
        key = (list(tokens), likeliest)
        if self._scored is None or self._scored[0] != key:
            self._scored = key, self.engine.prompt_scores(tokens, likeliest)
        return self._scored[1]

    def _begin(self, request_id: str, answer: _Answer, resumed: list[int]) -> None:
        """Let an answer join the batch, or end if it has ended."""
        request = answer.request
        if finish := self._finished(answer, resumed):
            self._answers.pop(request_id, None)
            delta = answer.echo and answer.echo.before(None)
            self._ended.append(Piece(request_id, delta, finish=finish, usage=_usage(answer)))
            return
        sampling = request.sampling
        if not request.seeded:
            # The same for a job in each process, so that it continues in the same way.
            sampling = replace(sampling, seed=zlib.crc32(request_id.encode()))
        self._answers[request_id] = answer
        try:
            prompt = replace(
                request,
                tokens=[*request.tokens, *resumed],
                max_tokens=request.max_tokens - len(resumed),
                sampling=sampling,
                position=len(resumed),
                mask=self._mask(request, resumed),
            )
            self.engine.add(request_id, prompt)
        except BaseException:
            del self._answers[request_id]
            raise

    def _mask(self, request: Request, resumed: list[int]) -> Mask | None:
        if request.grammar is None or request.compiled is None or not self.engine.has_masks:
            return None
        mask = Mask(request.compiled.result().deep_copy(), request.grammar)
        mask.read(resumed)
        return mask

    def _decode(self, tokens: Sequence[int]) -> str:
        if self._backend is not None:
            # For each token; the tokenizer itself looks at types first, which costs as much again.
            return str(self._backend.decode(list(tokens), skip_special_tokens=True))
        text = self.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def _decode_with_marks(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self._hidden]
        if self._backend is not None:
            return str(self._backend.decode(shown, skip_special_tokens=False))
        return str(self.tokenizer.decode(shown, clean_up_tokenization_spaces=False))

    def _finished(self, answer: _Answer, resumed: list[int]) -> str | None:
        """Return why an answer ended whose process died before it reported that."""
        request = answer.request
        if answer.text.stopped:
            return answer.stop
        if resumed and resumed[-1] in request.ends(self.end_tokens):
            return answer.stop
        if len(resumed) < request.max_tokens:
            return None
        return answer.stop if answer.calls is not None and answer.calls.complete else "length"

    @override
    def step(self) -> Iterable[Piece]:
        self._score()
        pieces, self._ended = self._ended, []
        if len(self._answers) > len(self._scoring):
            pieces += [piece for new in self.engine.step() if (piece := self._piece_or_error(new))]
        return pieces

    def _piece_or_error(self, new: NewTokens) -> Piece | None:
        try:
            return self._piece(new)
        except Exception as error:  # noqa: BLE001 - it ends this answer alone
            return self._failed(new.id, error)

    def _failed(self, request_id: str, error: Exception) -> Piece:
        """Return the last piece of an answer that has failed alone."""
        return Piece(request_id, error=error, usage=self.cancel(request_id))

    def _score(self) -> None:
        """Read the next tokens of prompts that want log probabilities."""
        left = PIECE_TOKENS
        for request_id, scores in list(self._scoring.items()):
            if request_id in self._paused:
                continue
            answer = self._answers[request_id]
            try:
                while left > 0 and not scores.done:
                    left -= scores.read()
                if not scores.done:
                    return
                answer.echo = Echo(answer.request.echo or "", self._shown(answer.request, scores))
                del self._scoring[request_id]
                self._begin(request_id, answer, [])
            except Exception as error:  # noqa: BLE001 - it ends this answer alone
                self._scored = None
                self._ended.append(self._failed(request_id, error))

    def _shown(self, request: Request, scores: PromptScores) -> list[dict[str, Any]]:
        """Return the tokens of a prompt with their log probabilities, as clients see them."""
        if scores.as_logprobs is None:
            show = self.token_texts.with_likelihood
            first, *others = request.tokens
            scores.as_logprobs = [show(first, None, [])]
            pairs = zip(others, scores.likelihoods, strict=True)
            scores.as_logprobs += [show(token, *likelihood) for token, likelihood in pairs]
            scores.likelihoods = []
        return scores.as_logprobs

    def _piece(self, new: NewTokens) -> Piece | None:
        answer = self._answers.get(new.id)
        if answer is None:
            return None
        # A token that the request has named as an end is no part of the text.
        end = [token for token in new.tokens[-1:] if token in answer.request.stop_tokens]
        read = new.tokens[: len(new.tokens) - len(end)]
        text, tokens = answer.text.add(read, last=bool(end) or new.finish is not None)
        tokens += end
        answer.count += len(new.tokens)
        finish = new.finish
        if answer.text.stopped:
            if finish is None:
                self.engine.cancel(new.id)
            finish = "stop"
        if finish and not answer.request.ignore_end:
            used = answer.count / answer.request.max_tokens
            self._share_used += _NEWEST_WEIGHT * (used - self._share_used)
        if finish or new.error:
            del self._answers[new.id]
        usage = _usage(answer) if finish or new.error else None
        delta: Any = text or None
        if answer.logprobs is not None:
            answer.logprobs.add(new.likelihoods)
            delta = answer.logprobs.delta(text, tokens) if tokens or finish else None
        if answer.echo is not None and (tokens or finish):
            delta, answer.echo = answer.echo.before(delta), None
        delta, finish = answer.with_calls(delta, text, finish)
        if answer.request.grammar is not None and not self.engine.has_masks:
            tokens = []  # it cannot go on after them
        return Piece(new.id, delta, tokens, finish, usage, new.error)

    @override
    def postprocess(self, outputs: list[Any]) -> list[Any]:
        return [result_of(output) for output in outputs]

    @override
    def cancel(self, request_id: str) -> dict[str, int] | None:
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            if self._scoring.pop(request_id, None) is None:
                self.engine.cancel(request_id)
            return _usage(answer)
        ended = [piece for piece in self._ended if piece.id == request_id]
        self._ended = [piece for piece in self._ended if piece.id != request_id]
        return ended[0].usage if ended else None


def _usage(answer: _Answer) -> dict[str, int]:
    prompt = len(answer.request.tokens)
    return {
        "prompt_tokens": prompt,
        # Tokens of the answer, which was resumed, may have been there too.
        "cached_tokens": min(answer.request.cached.count or 0, prompt),
        "completion_tokens": answer.count,
        "total_tokens": prompt + answer.count,
    }


def model_folder(context: Context, option: str | None) -> Path:
    """Return the option `folder`, else the included one; raise ConfigError without config.json."""
    if option is None:
        return INCLUDED
    folder = context.model_dir / Path(option).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model {context.model_name}: options.folder: {folder} has no config.json",
            hint="give a folder with config.json, tokenizer.json and *.safetensors",
        )
    return folder


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder; its type changes from version to version."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_warning()
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def dtype_on(device: str, option: str) -> str:
    """Return the type of weights that the option `dtype` names, for transformers."""
    return "float32" if option == "auto" and device.startswith("cpu") else option


def context_of(config: Any, option: int | None) -> int:
    """Return the most tokens that a model takes, by its configuration and the option `context`."""
    allowed = getattr(config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    return min(option or allowed, allowed)


def _defaults(config: Any) -> Sampling:
    """Return the parameters of a generation_config.json, for requests that set none."""
    if config.do_sample is False:
        return Sampling()

    def given(name: str, otherwise: float) -> Any:
        value = getattr(config, name, None)
        return otherwise if value is None else value

    return Sampling(
        float(given("temperature", 1.0)), float(given("top_p", 1.0)), int(given("top_k", 0)),
        min_p=float(given("min_p", 0.0)),
    )  # fmt: skip


def _end_tokens(*sources: Any) -> list[int]:
    """Return the end tokens of the first source that has any."""
    for source in sources:
        if source is not None:
            return list(source) if isinstance(source, list) else [source]
    return []


def _engine(
    folder: Path, options: LanguageModelOptions, context: Context, end_tokens: list[int]
) -> tuple[Engine, int]:
    """Load the model; return its engine, and the most tokens of a prompt with its answer."""
    slots = context.max_batch_size
    if options.engine == "vllm":
        from handlers.generation.vllm import VllmEngine

        vllm = VllmEngine(
            folder,
            options.dtype,
            options.context,
            slots,
            end_tokens,
            prefix_cache=options.prefix_cache,
        )
        return vllm, vllm.context
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype_on(context.device, options.dtype),
        local_files_only=True,
        use_safetensors=True,
        attn_implementation="sdpa",
    )
    model = model.to(context.device).eval()
    most = context_of(model.config, options.context)
    continuous = options.engine == "continuous" or (
        options.engine == "auto" and not getattr(model, "_is_stateful", False)
    )
    if not continuous:
        from handlers.generation.plain import PlainEngine

        return PlainEngine(model, end_tokens, most), most
    from handlers.generation.continuous import ContinuousEngine

    cache = options.cache_tokens or _cache_tokens(model, slots * most)
    engine = ContinuousEngine(model, end_tokens, cache, slots, prefix_cache=options.prefix_cache)
    return engine, most


def _cache_tokens(model: Any, useful: int) -> int:
    """Return for how many tokens there is memory, but no more than are useful."""
    import torch

    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * heads * head * model.dtype.itemsize
    free = _CACHE_BYTES
    if model.device.type == "cuda":
        free = int(torch.cuda.mem_get_info(model.device)[0] * _CACHE_SHARE)
    return max(1, min(useful, free // size))
