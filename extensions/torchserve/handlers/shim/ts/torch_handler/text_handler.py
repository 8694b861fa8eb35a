"""The base class of handlers of texts."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typing_extensions import override

from handlers.common import text as texts
from handlers.common.explanations import importances_of, text_gradients
from headrace.errors import ConfigError
from ts.handler_utils.text_utils import get_tokenizer
from ts.torch_handler.base_handler import BaseHandler


class TextHandler(BaseHandler):
    """Loads the vocabulary of a text model, the ids by token, and cleans texts."""

    source_vocab: Any = None
    tokenizer: Any = staticmethod(get_tokenizer("basic_english"))
    input_text: Any = None

    @override
    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.initialized = False
        path = self.manifest["model"].get("sourceVocab") or self.get_source_vocab_path(context)
        # By it torch reads files with code in them; the option `weights_only` sets it.
        trusted = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD") == "1"
        self.source_vocab = texts.load_vocabulary(Path(path), weights_only=not trusted)
        self.initialized = True

    @functools.cached_property
    def lig(self) -> Any:
        """Captum's `LayerIntegratedGradients` of the model's layer `embedding`."""
        return text_gradients(self.model)

    def get_source_vocab_path(self, ctx: Any) -> str:
        """Return the path of the vocabulary in the archive.

        Raises:
            ConfigError: the archive has none.
        """
        path = os.path.join(ctx.system_properties.get("model_dir"), texts.VOCABULARY_FILE)
        if not os.path.isfile(path):
            raise ConfigError(
                f"the archive has no vocabulary {path}",
                hint=f"pack it with --extra-files {texts.VOCABULARY_FILE}",
            )
        return path

    def get_word_token(self, input_tokens: Iterable[str]) -> list[str]:
        """Return tokens without the mark for a space of byte-pair encoders."""
        return [token.replace("Ġ", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return attributions as shares of their row, over the length of all rows."""
        return importances_of(attributions)

    def _expand_contractions(self, text: str) -> str:
        return texts.expanded(text)

    def _remove_accented_characters(self, text: str) -> str:
        return texts.without_accents(text)

    def _remove_html_tags(self, text: str) -> str:
        return texts.without_tags(text)

    def _remove_puncutation(self, *args: Any, **kwargs: Any) -> str:
        # An old name of TorchServe's, with its mistake.
        return self._remove_punctuation(*args, **kwargs)

    def _remove_punctuation(self, text: str) -> str:
        return texts.without_punctuation(text)

    def _tokenize(self, text: str) -> Any:
        return self.tokenizer(text)
