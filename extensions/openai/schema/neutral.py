"""Values that change nothing: of fields that this server does not have, and of those it has.

Clients send defaults that they need not send, also those of other servers. Such a value is
accepted. Any other one is refused by name: ignored, it would change the answer without any notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec


class Anything:
    """Each value is neutral."""

    def fits(self, _: Any) -> bool:
        """Return True."""
        return True


class Only:
    """A list is neutral that has only these values."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def fits(self, value: Any) -> bool:
        """Return whether a value is such a list."""
        return isinstance(value, list) and all(member in self._values for member in value)


class Members:
    """An object is neutral that has only these members, each with a neutral value."""

    def __init__(self, **members: Neutral) -> None:
        self._members = members

    def fits(self, value: Any) -> bool:
        """Return whether a value is such an object."""
        return isinstance(value, dict) and all(
            is_neutral(member, self._members.get(name, ())) for name, member in value.items()
        )


#: The neutral values of a field: plain ones, and rules for others.
Neutral: TypeAlias = Sequence[Any]

ANY: Final[Neutral] = (Anything(),)


def is_neutral(value: Any, neutral: Neutral) -> bool:
    """Return whether a value changes nothing; null never does."""
    return value is None or any(
        rule.fits(value) if isinstance(rule, Anything | Only | Members) else value == rule
        for rule in neutral
    )


def listed(neutral: Neutral) -> str:
    """Return the plain values, for people; "" without one."""
    plain = [value for value in neutral if not isinstance(value, Anything | Only | Members)]
    return " or ".join(msgspec.json.encode(value).decode() for value in plain)


#: Fields of OpenAI's API with which a server can be faster, and which change no answer.
HINTS: Final[dict[str, Neutral]] = {
    "prediction": ANY,  # the text that the answer may have: it makes OpenAI's answer faster
    "prompt_cache_key": ANY,
    "prompt_cache_options": ANY,
    "prompt_cache_retention": ANY,
    "safety_identifier": ANY,
}
#: What a response can include of things that no model here makes.
NEVER_MADE: Final = Only(
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "reasoning.encrypted_content",
    "web_search_call.action.sources", "web_search_call.results",
)  # fmt: skip
#: Also a summary of what a model thinks, which none here makes.
NO_REASONING: Final = Members(effort=("none",), summary=ANY, generate_summary=ANY)

#: Fields of generation, which some requests have. Their defaults are left out, so that they reach
#: no handler that does not know them.
_SOMETIMES: Final[dict[str, Neutral]] = {
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "top_k": (-1,),
}
#: Fields of other servers: vLLM, SGLang, TGI, llama.cpp, LM Studio, Ollama, OpenRouter.
FOREIGN: Final[dict[str, Neutral]] = {
    **_SOMETIMES,
    "adapter_id": ("",),
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "bootstrap_host": (),
    "cache_prompt": ANY,
    "cache_salt": ANY,
    "chat_template": (),
    "custom_logit_processor": (),
    "data_parallel_rank": (),
    "detokenize": (True,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": ("",),
    "embed_dtype": ("float32",),
    "enable_response_messages": (False,),
    "endianness": ("native", "little"),
    "extra_body": ({},),
    "extra_key": ANY,
    "grammar": ("",),
    "guided_choice": (),
    "guided_decoding_backend": ANY,
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_whitespace_pattern": ANY,
    "id_slot": ANY,
    "include_reasoning": ANY,
    "include_stop_str_in_output": (False,),
    "include_usage": (False,),
    "json_schema": (),
    "keep_alive": ANY,
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "media_io_kwargs": ({},),
    "min_keep": (0,),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "no_stop_trim": (False,),
    "options": ({},),
    "plugins": ([],),
    "post_sampling_probs": (False,),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "provider": ({},),
    "raw_request": (False,),
    "reasoning_format": ("none", "auto"),
    "regex": ("",),
    "repeat_last_n": ANY,
    "repeat_penalty": (1,),
    "request_id": ANY,
    "return_full_text": (False,),
    "return_hidden_states": (False,),
    "return_progress": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "rid": ANY,
    "separate_reasoning": ANY,
    "session_params": ({},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([], ""),
    "stream_reasoning": ANY,
    "structural_tag": (),
    "tfs_z": (1,),
    "think": (False,),
    "thinking": ({"type": "disabled"},),
    "thinking_token_budget": (),
    "timings_per_token": (False,),
    "transforms": ([],),
    "truncate": (),
    # vLLM's -1 cuts a prompt that is too long. Here it is refused, so nothing is silently cut.
    "truncate_prompt_tokens": (-1,),
    "ttl": ANY,
    "typical": (1,),
    "typical_p": (1,),
    "usage": (Members(include=ANY),),
    "use_activation": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "xtc_probability": (0,),
}
#: Values of fields that this server has, by which other servers mean the default.
DEFAULTS: Final[dict[str, Neutral]] = {**_SOMETIMES, "max_completion_tokens": (-1,)}


def without_defaults(fields: Mapping[str, Any], more: Mapping[str, Neutral]) -> dict[str, Any]:
    """Return the fields without nulls, also in objects, and without values that mean the default.

    Args:
        more: further values that mean the default, by field.
    """
    defaults = {**DEFAULTS, **more}
    return {
        name: _without_nulls(value)
        for name, value in fields.items()
        if not is_neutral(value, defaults.get(name, ()))
    }


def _without_nulls(value: Any) -> Any:
    """Return an object without its null members; what they hold in turn may be a schema."""
    if not isinstance(value, dict):
        return value
    return {name: member for name, member in value.items() if member is not None}
