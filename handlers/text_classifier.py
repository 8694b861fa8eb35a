"""Text classification with a torch module that takes tokens and offsets, such as an EmbeddingBag.

`options.model` and `weights` are as for `image_classifier`. The module is called with the ids of
all texts' tokens in one row (T), and the place (N) at which each text begins. It returns logits
(N, classes). Explanations need its layer `embedding`.

A result is `{"sports": 0.9, ...}` with the probability of every class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from handlers.common import text
from handlers.common.explanations import (
    ExplainingHandler,
    importances_of,
    read_target,
    text_attributions,
    text_gradients,
)
from handlers.common.modules import ModuleOptions, load_module, load_names
from headrace.errors import InputError
from headrace.handler import Context, Exportable


class TextOptions(ModuleOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `text_classifier`; docs/handlers.md lists them."""

    index_to_name: str | None = None
    vocabulary: Annotated[str, Meta(min_length=1)] = text.VOCABULARY_FILE
    ngrams: Annotated[int, Meta(ge=1, le=10)] = text.NGRAMS


class TextClassifier(ExplainingHandler):
    """Returns the probability of each class of a text."""

    preprocess_per_item = True
    options_kind = TextOptions
    options: TextOptions
    forward: Callable[[Tensor, Tensor], Tensor]

    @override
    def initialize(self, context: Context) -> None:
        self.initialize_preprocess(context)
        self.names = load_names(context, self.options.index_to_name)
        self.model = load_module(context, self.options).to(context.device).eval()
        self.use(self.model)

    def use(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Run this for probabilities. Explanations need the module itself."""
        self.forward = forward

    @override
    def exportable(self) -> Exportable:
        dims = ({0: "tokens"}, {0: "batch"})
        return Exportable(self.model, self.use, lambda logits: logits, dims)

    @override
    def initialize_preprocess(self, context: Context) -> None:
        super().initialize_preprocess(context)
        path = context.model_dir / Path(self.options.vocabulary).expanduser()
        self.vocabulary = text.load_vocabulary(path, weights_only=context.weights_only)

    @override
    def example_input(self) -> str | None:
        """Return a word of the vocabulary; None if it cannot be listed."""
        known = self.vocabulary if isinstance(self.vocabulary, Mapping) else {}
        return next((word for word in known if text.tokens(str(word)) == [word]), None)

    @override
    def item(self, data: Any) -> Tensor:
        """Return the ids of the tokens of a text, (T)."""
        return text.token_ids(self.vocabulary, self._words(data), self.options.ngrams)

    @override
    def predict(self, items: Sequence[Tensor]) -> Any:
        with torch.inference_mode():
            return self._logits(self.forward, items).float().softmax(dim=1).tolist()

    @override
    def results(self, outputs: Any) -> list[Any]:
        return [
            {self.names.get(n, str(n)): probability for n, probability in enumerate(row)}
            for row in outputs
        ]

    @override
    def to_explain(self, item: Tensor, data: Any) -> Any:
        return item, self._words(data)

    @override
    def explain(self, item: Any, target: Any) -> Any:
        ids, words = item
        gradients = text_gradients(self.model)
        if target is None:
            with torch.inference_mode():
                target = int(self._logits(self.model, [ids]).argmax())
        ids = ids.to(self.context.device)
        found = text_attributions(gradients, ids, read_target(target))
        return {"importances": importances_of(found).tolist(), "words": words}

    def _words(self, data: Any) -> list[str]:
        return text.tokens(read_text(data))

    def _logits(
        self, forward: Callable[[Tensor, Tensor], Tensor], items: Sequence[Tensor]
    ) -> Tensor:
        lengths = torch.tensor([0, *(len(ids) for ids in items[:-1])])
        device = self.context.device
        return forward(torch.cat(list(items)).to(device), lengths.cumsum(0).to(device))


def read_text(data: object) -> str:
    """Return an input as text; raise InputError if it is neither text nor UTF-8."""
    if isinstance(data, (bytes, bytearray)):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"expected text in UTF-8: {error}") from None
    if not isinstance(data, str):
        raise InputError("expected text; send it as the body, with Content-Type: text/plain")
    return data
