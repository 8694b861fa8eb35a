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
#: The names of fields of other servers, by the values that change nothing: of vLLM, SGLang, TGI,
#: llama.cpp, LM Studio, Ollama and OpenRouter.
_ALIKE: Final[Sequence[tuple[Neutral, str]]] = (
    (ANY, """cache_prompt cache_salt extra_key guided_decoding_backend guided_whitespace_pattern
        id_slot include_reasoning keep_alive repeat_last_n request_id rid separate_reasoning
        stream_reasoning ttl"""),
    # Null alone.
    ((), """bootstrap_host chat_template custom_logit_processor data_parallel_rank guided_choice
        guided_json json_schema lora_path prompt_embeds prompt_logprobs structural_tag
        thinking_token_budget truncate use_activation"""),
    ((False,), """enable_response_messages include_stop_str_in_output include_usage no_stop_trim
        post_sampling_probs raw_request return_full_text return_hidden_states return_progress
        return_token_ids return_tokens_as_token_ids think timings_per_token use_beam_search
        watermark"""),
    ((True,), "add_special_tokens detokenize skip_special_tokens spaces_between_special_tokens"),
    ((0,), """dry_multiplier dynatemp_range min_keep mirostat n_keep n_probs priority
        xtc_probability"""),
    ((1,), "length_penalty repeat_penalty tfs_z typical typical_p"),
    # vLLM's -1 cuts a prompt that is too long. Here it is refused, so nothing is silently cut.
    ((-1,), "n_predict truncate_prompt_tokens"),
    (([],), "allowed_token_ids bad_words documents logits_processors plugins transforms"),
    (({},), """extra_body kv_transfer_params media_io_kwargs mm_processor_kwargs options provider
        session_params vllm_xargs"""),
    (("",), "adapter_id ebnf grammar guided_grammar guided_regex regex"),
)  # fmt: skip
FOREIGN: Final[dict[str, Neutral]] = {
    **_SOMETIMES,
    **{name: neutral for neutral, names in _ALIKE for name in names.split()},
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "reasoning_format": ("none", "auto"),
    "stop_regex": ([], ""),
    "thinking": ({"type": "disabled"},),
    "usage": (Members(include=ANY),),
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
