"""The handler of an archive, for the loader of model processes."""

from __future__ import annotations

from pathlib import Path

from headrace.config.handler_reference import HandlerReference
from headrace.handler import Handler
from headrace.torchserve.manifest import read_manifest, read_settings
from headrace.torchserve.model_config import is_continuous


def load(spec: HandlerReference, folder: Path) -> Handler:
    """Return the handler of the archive in a folder."""
    if is_continuous(read_settings(folder, read_manifest(folder))):
        from handlers.torchserve.continuous import ContinuousHandler

        return ContinuousHandler(spec)
    from handlers.torchserve.handler import TorchServeHandler

    return TorchServeHandler(spec)
