"""TorchServe's handler of text classifiers."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

from handlers.common.explanations import read_target, text_attributions
from handlers.common.text import NGRAMS, token_ids
from handlers.text_classifier import read_text
from ts.torch_handler.text_handler import TextHandler
from ts.torch_handler.vision_handler import value_of
from ts.utils.util import map_class_to_label


class TextClassifier(TextHandler):
    """Returns the probability of each class of a text.

    Its steps take one text, as those of TorchServe do, so each request of a batch runs alone.
    """

    ngrams: int = NGRAMS

    @override
    def handle(self, data: Any, context: Any) -> Any:
        """Run each request alone, and return one result for each."""
        if len(data) < 2:
            return super().handle(data, context)
        return [
            result for row in data for result in super(TextClassifier, self).handle([row], context)
        ]

    @override
    def preprocess(self, data: Any) -> Any:
        """Return the ids of the first text's tokens, and its words."""
        text = self._remove_html_tags(read_text(value_of(data[0]))).lower()
        text = self._remove_accented_characters(self._expand_contractions(text))
        words = self._tokenize(self._remove_punctuation(text))
        return token_ids(self.source_vocab, words, self.ngrams).to(self.device), words

    @override
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model on one text."""
        tokens, _ = data
        return super().inference(tokens, torch.tensor([0], device=self.device))

    @override
    def postprocess(self, data: Any) -> Any:
        """Return `{label: probability}` of all classes."""
        return map_class_to_label(data.softmax(dim=-1).tolist(), self.mapping)

    def get_insights(self, text_preprocess: Any, _: Any, target: Any = 0) -> Any:
        """Return the importances of a text at the model's embedding, and its words."""
        tokens, words = text_preprocess
        found = text_attributions(self.lig, tokens, read_target(target))
        importances = self.summarize_attributions(found).tolist()
        return [{"importances": importances, "words": self.get_word_token(words)}]
