"""Makes a model process what TorchServe's handlers expect: environment, paths and their context."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from extensions.torchserve.config.manifest import read_manifest
from extensions.torchserve.config.settings import TorchServeConfig, read_config
from extensions.torchserve.handlers.entry import put_first
from headrace.config.model.handler_reference import HandlerReference
from headrace.errors import ConfigError
from headrace.handler import Context

if TYPE_CHECKING:
    import ts.context

#: The folder of the package `ts`.
SHIM: Final = Path(__file__).parent / "shim"


def settings_of_process() -> TorchServeConfig:
    """Return the settings of TorchServe with which this process runs."""
    path = os.environ.get("HEADRACE_TORCHSERVE")
    return read_config(Path(path)) if path else TorchServeConfig()


def prepare_process(config: TorchServeConfig, folder: Path, context: Context) -> None:
    """Make the process what TorchServe's handlers expect."""
    if config.blacklist_env_vars:
        hidden = re.compile(config.blacklist_env_vars)
        for name in [name for name in os.environ if hidden.fullmatch(name)]:
            del os.environ[name]
    os.environ["TS_DECODE_INPUT_REQUEST"] = str(config.decode_input_request).lower()
    os.environ["TS_REQUEST_SEQUENCE_ID"] = config.ts_header_key_sequence_id
    os.environ["TS_REQUEST_SEQUENCE_START"] = config.ts_header_key_sequence_start
    os.environ["TS_REQUEST_SEQUENCE_END"] = config.ts_header_key_sequence_end
    if not context.weights_only:
        # torch.load of a handler names no `weights_only`, and old files have pickled modules.
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    os.chdir(folder)
    put_first(folder, SHIM)


def as_only_rank() -> None:
    """Set what torchrun sets in the only process of a model: `init_process_group` needs it."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    # Any free port.
    for name, value in {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)


def context_of(
    context: Context,
    reference: HandlerReference,
    config: TorchServeConfig,
    folder: Path,
    metrics_file: str,
) -> ts.context.Context:
    """Return the context, which is the same until this process ends."""
    from ts.context import Context as TsContext
    from ts.metrics.metric_cache_yaml_impl import DEFAULT, MetricsCacheYamlImpl
    from ts.version import __version__

    manifest = _manifest(folder, context, reference)
    metrics = MetricsCacheYamlImpl(metrics_file or DEFAULT)
    metrics.initialize_cache()
    metrics.model_name = context.model_name
    found = TsContext(
        context.model_name,
        str(folder),
        manifest,
        context.max_batch_size,
        _gpu(context.device),
        __version__,
        config.limit_max_image_pixels,
        metrics,
        _yaml_config(folder, manifest),
    )
    found.header_key_sequence_id = config.ts_header_key_sequence_id
    found.header_key_sequence_start = config.ts_header_key_sequence_start
    found.header_key_sequence_end = config.ts_header_key_sequence_end
    return found


def _manifest(folder: Path, context: Context, reference: HandlerReference) -> dict[str, Any]:
    """Return the manifest; for a folder without one, the members that are known."""
    model = {
        "modelName": context.model_name,
        "modelVersion": context.version,
        "handler": ":".join(filter(None, (reference.target, reference.name))),
    }
    if context.weights is not None:
        model["serializedFile"] = os.path.relpath(context.weights, folder)
    return read_manifest(folder) or {"runtime": "python", "model": model}


def _yaml_config(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    name = manifest.get("model", {}).get("configFile")
    if not name:
        return {}
    path = folder / name
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the archive's configFile {path} cannot be read: {error.strerror}",
            hint="pack the archive again",
        ) from error
    except yaml.YAMLError as error:
        # Only the last line of an error is shown in some places.
        text = " ".join(str(error).split())
        raise ConfigError(f"the archive's configFile {path} is not YAML: {text}") from error
    return config if isinstance(config, dict) else {}


def _gpu(device: str) -> int | None:
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None
