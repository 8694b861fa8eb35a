"""What this extension adds."""

from __future__ import annotations

from typing import Final

from headrace.config.extensions import Extension


def _api() -> object:
    from extensions.openai.api.part import PART

    return PART


EXTENSION: Final = Extension(
    name="openai",
    summary="OpenAI's API: chat, completions, embeddings, responses, files and batches",
    api=_api,
)
