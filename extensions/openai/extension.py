"""What this extension adds."""

from __future__ import annotations

from typing import Final

from headrace.config.extensions import Extension

EXTENSION: Final = Extension(
    name="openai",
    summary="OpenAI's API: chat, completions, embeddings, responses, files and batches",
)
