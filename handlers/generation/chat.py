"""The messages of a chat, checked before the model's chat template makes them into tokens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

from jinja2 import TemplateError

from handlers.generation.calls import CallFormat
from handlers.generation.inputs import GenerationInput, plain_message, too_long
from handlers.generation.tools import Tools, knows_tools, plain_chat, tool_messages
from headrace.errors import InputError

#: A chat may have so many values besides roles and contents for each token that the model takes.
_VALUES_MAX: Final = 4
#: The most control tokens in the texts of a chat. Each takes as long as a thousand characters.
_CONTROL_TOKENS_MAX: Final = 1000
#: The most characters of a template's reason.
_REFUSAL_CHARS: Final = 500
#: What a template raises if it does not take the messages.
_REFUSALS: Final = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip


def chat_tokens(
    tokenizer: Any,
    asked: GenerationInput,
    context_tokens: int,
    check_length: Callable[[str], None],
    tools: Tools | None = None,
    form: CallFormat | None = None,
) -> list[int]:
    """Return the tokens of a chat. A control token in the text of a message is ordinary text.

    A template takes time for each message and each value, printed or not, and the other requests
    of the process wait meanwhile. So both are counted first, and what the template writes is
    measured before it is made into tokens.

    Args:
        context_tokens: how many tokens the model takes.
        check_length: raises an InputError if a text is far too long.
        tools: those that the model may call.
        form: the format of its calls; None if it is unknown.

    Raises:
        InputError: the chat is too long, or the template does not take it.
    """
    messages = asked.messages or []
    if tokenizer.chat_template is None:
        raise InputError("the model has no chat template; give prompt instead of messages")
    if not messages:
        raise InputError("messages is empty; give at least one")
    if len(messages) > context_tokens:
        raise too_long(f"{len(messages):,} messages", context_tokens, "send fewer messages")
    # Values and texts are measured before anything is made of them, such as arguments of a text.
    check_length(_texts(messages, context_tokens))
    chat = [
        plain_message(place, message) for place, message in enumerate(tool_messages(messages, form))
    ]
    functions = tools.functions if tools is not None else ()
    shown = [{"type": "function", "function": function.shown()} for function in functions]
    if form is not None and not knows_tools(tokenizer.chat_template):
        chat, shown = plain_chat(chat, functions, form), []
    make = tokenizer.apply_chat_template
    known = inspect.signature(make).parameters
    own = _template_options(asked, known)
    if shown:
        own["tools"] = shown
    texts = _texts([*chat, own], context_tokens)
    # Also a text that the template does not write is searched for control tokens.
    check_length(texts)
    _check_control_tokens(tokenizer, texts)
    # The tokenizer of Mistral needs no such option: it never reads control tokens in a text.
    sanitizes = "sanitize_control_tokens" in known
    options = {"sanitize_control_tokens": True} if sanitizes else {}
    try:
        check_length(make(chat, **own, tokenize=False))
        made = make(chat, **own, return_dict=True, **options)
    except _REFUSALS as error:
        # An error of a message that cannot go on has the whole chat.
        why = str(error)[:_REFUSAL_CHARS]
        raise InputError(f"the model's chat template refused the messages: {why}") from None
    return list(made["input_ids"])


def _template_options(asked: GenerationInput, known: Container[str]) -> dict[str, Any]:
    """Return what a chat template gets besides the messages."""
    for name in asked.chat_template_kwargs:
        if name in known:
            raise InputError(f"chat_template_kwargs: {name!r} is no variable of a template here")
    more = {"continue_final_message": True} if asked.continue_final_message else {}
    begins = asked.add_generation_prompt and not more
    return {**asked.chat_template_kwargs, **more, "add_generation_prompt": begins}


def _texts(chat: Sequence[dict[str, Any]], context_tokens: int) -> str:
    """Return the texts in the messages, a line for each."""
    values_max = _VALUES_MAX * context_tokens + 3 * len(chat)  # a message, its role and its content
    texts: list[str] = []
    for count, value in enumerate(_values(chat), 1):
        if count > values_max:
            advice = "send fewer messages, or fewer fields in them"
            raise too_long("far more values", context_tokens, advice)
        if isinstance(value, str):
            texts.append(value)
    return "\n".join(texts)


def _check_control_tokens(tokenizer: Any, texts: str) -> None:
    marks = _control_tokens(tokenizer)
    if sum(1 for _ in marks.finditer(texts)) > _CONTROL_TOKENS_MAX:
        raise InputError(
            "the messages contain control tokens of the model more than "
            f"{_CONTROL_TOKENS_MAX:,} times; leave them out"
        )


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """Return what finds the tokens with which a template marks messages."""
    texts = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        # As transformers chooses those that it takes for ordinary text.
        if token.special
        or (token.content.strip() and token.content in str(tokenizer.chat_template))
    ]
    # Of two tokens with the same beginning, the longer one counts.
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _values(value: Any) -> Iterator[Any]:
    """Yield all values in a list or an object, at any depth; nulls do not reach a template."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            for one in inner:
                if one is not None:
                    yield one
                    waiting.append(one)
