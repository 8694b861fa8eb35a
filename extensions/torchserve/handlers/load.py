"""The handler of an archive, for the loader of model processes."""

from __future__ import annotations

from pathlib import Path

from extensions.torchserve.config.manifest import read_manifest, read_settings
from extensions.torchserve.config.model_config import is_continuous
from headrace.config.model.handler_reference import HandlerReference
from headrace.handler import Handler


def load(spec: HandlerReference, folder: Path) -> Handler:
    """Return the handler of the archive in a folder."""
    if is_continuous(read_settings(folder, read_manifest(folder))):
        from extensions.torchserve.handlers.continuous import ContinuousHandler

        return ContinuousHandler(spec)
    from extensions.torchserve.handlers.handler import TorchServeHandler

    return TorchServeHandler(spec)
