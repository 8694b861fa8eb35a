"""`headrace try`: runs a handler on inputs, one verb after the other, without a server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from headrace.cli.shared.inputs import Sources
from headrace.client.inputs import encode_input
from headrace.config.environment import launch_command, with_packages, with_server_path
from headrace.config.inputs.parameters import check_parameters, with_defaults
from headrace.config.model.catalog import ModelConfig
from headrace.config.model.handler_reference import BUILTIN_HANDLERS
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.archive import is_archive
from headrace.models.catalog import load_models, with_source
from headrace.models.requirements import installed
from headrace.models.source import SourceReader
from headrace.server.packages import require_extras


def run_trial(
    target: str,
    inputs: Sources | None,
    settings: Settings,
    device: str | None,
    options: str | None,
    parameters: dict[str, Any],
    environ: Mapping[str, str],
) -> NoReturn:
    """Replace this process by one that runs the handler, with the same terminal.

    Args:
        target: a handler as in the models file, the name of a model in it, or a folder or archive
            of a model.
        inputs: the inputs, which make one batch; None for the handler's `example_input`.
        parameters: the model's parameters, as text.

    Raises:
        ConfigError: the target, the models file or the installation is wrong.
        InvalidRequest: an input cannot be read, or a parameter is not valid.
    """
    require_extras("try", "worker")
    config, folder = _model(target, settings)
    own_device = "cpu" if config.device == "auto" else config.device
    frame = config.init_frame(folder, device or own_device)
    frame["options"] = {**frame["options"], **_object(options)}
    free = config.handler == target
    if inputs is None and not parameters:
        frame["parameters"] = frame["example_parameters"]
    else:
        frame["parameters"] = _values(config, parameters, free=free)
    frame["inputs"] = [_encoded(one.value) for one in inputs or ()]
    with tempfile.NamedTemporaryFile(prefix="headrace-try-", delete=False) as file:
        file.write(msgspec.json.encode(frame))
    command = launch_command("workers.model_process.trial", file.name)
    variables = with_server_path(environ)
    if config.requirements is not None:
        wanted = config.requirements
        packages = installed(Path(wanted.file), Path(wanted.environments))
        variables = with_packages(variables, packages)
    os.execve(command[0], command, variables)  # noqa: S606


def _model(target: str, settings: Settings) -> tuple[ModelConfig, Path]:
    """Return the model, and the folder to which its paths refer."""
    if target in BUILTIN_HANDLERS or target.endswith(".py") or ":" in target:
        return ModelConfig(name=Path(target.partition(":")[0]).stem, handler=target), Path.cwd()
    if is_archive(target) or ("/" in target and Path(target).is_dir()):
        reader = SourceReader(settings, Path.cwd())
        model = ModelConfig(name="model", source=target, timeout_s=settings.timeout_s)
        return with_source(reader, model, settings), Path.cwd()
    catalog = load_models(settings)
    return catalog.get(target), catalog.base_dir


def _values(config: ModelConfig, given: dict[str, Any], *, free: bool) -> dict[str, Any]:
    """Return the values of parameters; those of a handler without a models file as JSON or text."""
    if config.parameters or not free:
        checked = check_parameters(config.parameters, given, config.name)
        return with_defaults(config.parameters, checked)
    return {name: _json_or_text(text) for name, text in given.items()}


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return text


def _object(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"--options is not a JSON object: {error}") from None


def _encoded(value: Any) -> str:
    if isinstance(value, Exception):
        raise value
    return encode_input(value).decode()
