"""Vectors of texts, from a folder with an encoder or a language model of transformers.

An input is a text, or a list of the model's tokens. A result is `{"embedding": [0.12, ...],
"usage": {"prompt_tokens": 7, "total_tokens": 7}}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from handlers.common.items import ItemHandler
from handlers.generation.inputs import CONTEXT_LENGTH, is_far_too_long
from handlers.language_model import context_of, dtype_on, load_tokenizer, model_folder
from headrace.errors import InputError
from headrace.handler import Context

#: Decimals of a vector's numbers: as many as float32 has for numbers up to 1.
_DECIMALS: Final = 7
#: In a folder of sentence-transformers: how vectors of tokens become one.
_POOLING_FILE: Final = Path("1_Pooling", "config.json")
_POOLING: Final = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}


class TextEmbeddingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `text_embedding`; docs/handlers.md lists them."""

    folder: Annotated[str, Meta(min_length=1)] | None = None
    pooling: Literal["auto", "mean", "first", "last"] = "auto"
    normalize: bool = True
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    context: Annotated[int, Meta(ge=1)] | None = None


class TextEmbedding(ItemHandler):
    """Returns a vector of each text."""

    options_kind = TextEmbeddingOptions
    options: TextEmbeddingOptions

    @override
    def initialize(self, context: Context) -> None:
        from transformers import AutoModel

        self.initialize_preprocess(context)
        dtype = dtype_on(context.device, self.options.dtype)
        model: Any = AutoModel.from_pretrained(
            self.folder, dtype=dtype, local_files_only=True, use_safetensors=True
        )
        self.model = model.to(context.device).eval()

    @override
    def initialize_preprocess(self, context: Context) -> None:
        from transformers import AutoConfig

        super().initialize_preprocess(context)
        self.folder = model_folder(context, self.options.folder)
        self.pooling = self.options.pooling
        if self.pooling == "auto":
            self.pooling = _pooling(self.folder)
        self.tokenizer = load_tokenizer(self.folder)
        config: Any = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        self.context_tokens = context_of(config, self.options.context)

    @override
    def example_input(self) -> str:
        return "Python"

    @override
    def inference(self, items: Any) -> list[Any]:
        lengths = torch.tensor([len(tokens) for tokens in items])
        ids = torch.zeros(len(items), int(lengths.max()), dtype=torch.long)
        for row, tokens in zip(ids, items, strict=True):
            row[: len(tokens)] = torch.tensor(tokens)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        device = self.context.device
        with torch.inference_mode():
            states = self.model(ids.to(device), attention_mask=mask.to(device)).last_hidden_state
            vectors = self._pooled(states.float(), lengths.to(device), mask.to(device))
            if self.options.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return [
            {
                "embedding": [round(number, _DECIMALS) for number in vector],
                "usage": {"prompt_tokens": len(tokens), "total_tokens": len(tokens)},
            }
            for vector, tokens in zip(vectors.tolist(), items, strict=True)
        ]

    def _pooled(self, states: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        """Return one vector for each text, (N, D), from those of its tokens, (N, T, D)."""
        if self.pooling == "first":
            return states[:, 0]
        if self.pooling == "last":
            return states[torch.arange(len(states), device=states.device), lengths - 1]
        return (states * mask[:, :, None]).sum(1) / lengths[:, None]

    @override
    def item(self, data: Any) -> list[int]:
        """Return the tokens of an input."""
        if isinstance(data, bytes):
            try:
                data = data.decode()
            except UnicodeDecodeError:
                raise InputError("the input is no text in UTF-8") from None
        if isinstance(data, str):
            most = self.context_tokens
            if is_far_too_long(data, most, lambda part: self.tokenizer(part).input_ids):
                raise InputError(
                    f"the text is too long: it has far more tokens, and {CONTEXT_LENGTH} {most:,} "
                    "tokens; split the text"
                )
            tokens = list(self.tokenizer(data).input_ids)
        elif isinstance(data, list) and all(type(one) is int and one >= 0 for one in data):
            tokens = data
            largest = len(self.tokenizer) - 1
            if any(token > largest for token in tokens):
                raise InputError(f"a token is above {largest:,}, the model's last one")
        else:
            raise InputError(
                "the input is neither a text nor a list of tokens; this model makes only embeddings"
            )
        if not tokens:
            raise InputError("the text is empty; give at least one token")
        if len(tokens) > self.context_tokens:
            raise InputError(
                f"the text is too long: it has {len(tokens):,} tokens, and {CONTEXT_LENGTH} "
                f"{self.context_tokens:,} tokens; split the text"
            )
        return tokens


def _pooling(folder: Path) -> Literal["mean", "first", "last"]:
    """Return the pooling of a folder of sentence-transformers; the mean for others."""
    try:
        config = json.loads((folder / _POOLING_FILE).read_text())
    except FileNotFoundError:
        return "mean"
    for name, pooling in _POOLING.items():
        if config.get(name):
            return pooling  # type: ignore[return-value]
    return "mean"
