"""Loads weights from a file into a module. No code in the file is run: pickled code is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import nn

from headrace.errors import ConfigError

SAFETENSORS: Final = ".safetensors"
SUFFIXES: Final = (SAFETENSORS, ".pt", ".pth", ".bin")


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill the module from a state dict: .safetensors, or .pt, .pth, .bin read as weights only.

    Raises:
        ConfigError: the file does not exist, cannot be read, or does not fit the module.
    """
    state = _read(path)
    inner = state.get("state_dict")
    if isinstance(inner, Mapping):  # as training checkpoints have it
        state = inner
    try:
        module.load_state_dict(dict(state))
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"the weights in {path} do not fit the module: {error}",
            hint=f"it must be a state dict of {type(module).__name__}",
        ) from error


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"weights {path}: unknown kind of file {path.suffix!r}",
            hint=f"known: {', '.join(SUFFIXES)}",
        )
    if not path.is_file():
        raise ConfigError(f"there is no weights file {path}", hint="correct the model's `weights`")
    try:
        if path.suffix == SAFETENSORS:
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be read as weights: {error}",
            hint="save module.state_dict(), best as .safetensors; a pickled module is refused "
            "because reading it would run its code",
        ) from error
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"{path} holds a {type(state).__name__}, not a state dict",
            hint="save module.state_dict()",
        )
    return state
