"""Arguments that these commands share: a model of the models file, and files to write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.cli.shared.options import parsed_seconds
from headrace.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from headrace.config.model.catalog import Catalog, ModelConfig


def own_model(catalog: Catalog, model: str, verb: str) -> ModelConfig:
    """Return a model of the catalog; `verb` is what the command does with it.

    Raises:
        ConfigError: it is a pipeline.
        ModelNotFound: the catalog does not have it.
    """
    config = catalog.get(model)
    if model not in catalog.models:
        stages = ", ".join(dict.fromkeys(catalog.pipelines[model].models))
        raise ConfigError(f"{model} is a pipeline", hint=f"{verb} its models: {stages}")
    return config


def budget_seconds(text: str) -> float:
    """Return the seconds of `--budget`, such as 20m.

    Raises:
        InvalidRequest: it is no time.
    """
    found = parsed_seconds(text) or (int(text) if text.isascii() and text.isdecimal() else 0)
    if not found:
        raise InvalidRequest(f"--budget: {text[:64]!r} is no time", hint="Give 20m, 90s or 2h.")
    return float(found)


def check_folder(path: Path | None) -> None:
    """Check before a measurement that a file can be written after it.

    Raises:
        ConfigError: its folder does not exist, or it is a folder.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: its folder does not exist", hint="create the folder"
        )
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder", hint="name a file in it")


def json_text(document: msgspec.Struct) -> str:
    """Return a document as JSON with line breaks."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def write_file(path: Path, text: str) -> None:
    """Write a file that an option names.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
