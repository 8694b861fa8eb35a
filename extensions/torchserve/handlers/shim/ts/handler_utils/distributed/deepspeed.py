"""The engine of DeepSpeed for a model, in one process."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError


def get_ds_engine(model: Any, ctx: Any) -> Any:
    """Return DeepSpeed's inference engine for a model.

    Args:
        ctx: the handler's context. Its `model_yaml_config` has `handler.model_path` and the section
            `deepspeed`. In it, `config` is a JSON file of the archive. If there is `checkpoint`, it
            is the file into which the paths of the weights are written.

    Raises:
        ConfigError: DeepSpeed is not installed, or the configuration lacks a key or a file.
    """
    section = ctx.model_yaml_config.get("deepspeed")
    if not isinstance(section, dict):
        raise ConfigError(
            f"{ctx.model_name}: the model's configuration has no section `deepspeed`",
            hint="name the file of DeepSpeed's configuration as deepspeed.config",
        )
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise ConfigError(
            f"get_ds_engine needs the package deepspeed, which cannot be imported: {error}",
            hint="install deepspeed where the worker runs, or name it in the archive's "
            "requirements and set install_requirements",
        ) from error
    folder = Path(ctx.system_properties["model_dir"])
    weights = ctx.model_yaml_config.get("handler", {}).get("model_path")
    config = folder / section["config"] if "config" in section else None
    if config is not None and not config.is_file():
        raise ConfigError(
            f"{ctx.model_name}: deepspeed: config: there is no file {config}",
            hint="pack it into the archive, as an extra file",
        )
    checkpoint = folder / section["checkpoint"] if "checkpoint" in section else None
    if checkpoint is not None:
        create_checkpoints_json(weights, str(checkpoint))
    return deepspeed.init_inference(
        model,
        config=None if config is None else str(config),
        base_dir=weights,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def create_checkpoints_json(model_path: str, checkpoints_json: str) -> None:
    """Write the paths of the weights below a folder into a file, as DeepSpeed reads them."""
    files = sorted(
        str(file)
        for file in Path(model_path).rglob("*")
        if file.suffix in (".bin", ".pt") and file.is_file()
    )
    found = {"type": "ds_model", "checkpoints": files, "version": 1.0}
    Path(checkpoints_json).write_text(json.dumps(found), encoding="utf-8")
