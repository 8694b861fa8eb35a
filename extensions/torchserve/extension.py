"""What this extension adds."""

from __future__ import annotations

from typing import Final

from headrace.config.extensions import Extension

EXTENSION: Final = Extension(
    name="torchserve", summary="TorchServe's URLs, handlers, archives, logs, metrics and command"
)
