"""The configuration of TorchServe's interfaces: its `config.properties` with the command line.

Only what Headrace has no setting for is kept here; the launcher turns the rest into settings
(docs/architecture/torchserve.md).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from extensions.torchserve.config.properties import read_properties, write_properties
from headrace.config.suggestions import did_you_mean
from headrace.config.values import convert, shown
from headrace.errors import ConfigError

logger = logging.getLogger(__name__)

#: The version whose interfaces these are.
TORCHSERVE_VERSION: Final = "0.12.0"
#: Keys of TorchServe that Headrace has other settings for; the launcher uses them.
LAUNCHER_KEYS: Final = frozenset(
    {
        "certificate_file", "enable_envvars_config", "keystore", "keystore_pass", "keystore_type",
        "model_snapshot", "model_store", "number_of_gpu", "private_key_file",
        "use_env_allowed_urls", "workflow_store",
    }
)  # fmt: skip
#: Keys of TorchServe that mean nothing here.
UNUSED_KEYS: Final = frozenset(
    {
        "async_logging", "cpp_log_config", "cpu_launcher_args", "cpu_launcher_enable", "debug",
        "grpc_inference_max_connection_age_grace_ms", "grpc_inference_max_connection_age_ms",
        "grpc_management_max_connection_age_grace_ms", "grpc_management_max_connection_age_ms",
        "initial_distribution_port", "initial_worker_port", "io_ratio",
        "ipex_enable", "ipex_gpu_enable", "model_server_home", "netty_client_threads",
        "number_of_netty_threads", "plugins_path", "prefer_direct_buffer", "system_metrics_cmd",
        "use_native_io", "vmargs",
    }
)  # fmt: skip


class TorchServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `config.properties` that the API and the model processes read, with defaults.

    Attributes:
        inference_address, management_address, metrics_address: URLs; two equal ones share a port.
        grpc_inference_address, grpc_management_address: the hosts of gRPC.
        grpc_inference_port, grpc_management_port: its ports; 0: it is not served.
        enable_grpc_ssl: gRPC has the certificate of HTTPS.
        metrics_mode: `log` writes metrics to the log files; `prometheus` serves them too; `legacy`
            serves the `ts_` counters only.
        metrics_config: the metrics.yaml of the user; None for TorchServe's own set.
        metric_time_interval: seconds between two samples of the host.
        default_workers_per_model: model processes of a registration that gives no number.
        default_response_timeout: seconds for which a request may run.
        default_startup_timeout: seconds for which a model may load.
        unregister_model_timeout: seconds for which an unregistration waits.
        job_queue_size: the most requests that wait for one version.
        max_request_size, max_response_size: bytes.
        limit_max_image_pixels: keep Pillow's limit on the size of images.
        service_envelope: the envelope of all handlers: body, json, kserve or kservev2.
        allowed_urls: regular expressions, separated by commas; one must match a model's URL.
        blacklist_env_vars: a regular expression for variables that no model process receives.
        token_expiration_min: minutes for which the tokens of key_file.json hold.
        enable_model_api: models may be registered and unregistered over HTTP.
        ts_open_inference_protocol: serve the paths below `/v2`.
        load_models: the models that are loaded at the start: `all`, or names and `name=archive`.
        models: the settings of models by name and version, as `models` has them.
        snapshot_folder: where snapshots of the configuration are written; None for no snapshots.
    """

    inference_address: str = "http://127.0.0.1:8080"
    management_address: str = "http://127.0.0.1:8081"
    metrics_address: str = "http://127.0.0.1:8082"
    grpc_inference_address: str = "127.0.0.1"
    grpc_inference_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    grpc_management_address: str = "127.0.0.1"
    grpc_management_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    enable_grpc_ssl: bool = False
    enable_metrics_api: bool = True
    metrics_mode: Literal["log", "prometheus", "legacy"] = "log"
    metrics_config: Path | None = None
    model_metrics_auto_detect: bool = False
    disable_system_metrics: bool = False
    metric_time_interval: int = 60
    default_workers_per_model: int = 0
    default_response_timeout: int = 120
    default_startup_timeout: int = 120
    unregister_model_timeout: int = 120
    job_queue_size: int = 100
    max_request_size: int = 6_553_500
    max_response_size: int = 6_553_500
    limit_max_image_pixels: bool = True
    decode_input_request: bool = True
    default_service_handler: str = ""
    service_envelope: Literal["", "body", "json", "kserve", "kservev2"] = ""
    install_py_dep_per_model: bool = False
    allowed_urls: str = "file://.*|http(s)?://.*"
    cors_allowed_origin: str = ""
    cors_allowed_methods: str = ""
    cors_allowed_headers: str = ""
    blacklist_env_vars: str = ""
    disable_token_authorization: bool = False
    token_expiration_min: float = 60.0
    key_file: Path = Path("key_file.json")
    enable_model_api: bool = False
    ts_open_inference_protocol: bool = False
    ts_header_key_sequence_id: str = "ts_request_sequence_id"
    ts_header_key_sequence_start: str = "ts_request_sequence_start"
    ts_header_key_sequence_end: str = "ts_request_sequence_end"
    log_location: Path = Path("logs")
    metrics_location: Path = Path("logs")
    load_models: str = ""
    models: dict[str, Any] = {}
    snapshot_folder: Path | None = None


class ReadConfig(NamedTuple):
    """A configuration, and what its file has besides.

    Attributes:
        launcher: the keys that only the launcher uses, as text.
        unused: the keys of TorchServe that mean nothing here.
        unknown: the keys that TorchServe does not have, each with a hint or "".
    """

    config: TorchServeConfig
    launcher: dict[str, str]
    unused: list[str]
    unknown: dict[str, str]


def read_config(path: Path) -> TorchServeConfig:
    """Return the configuration in a file of `write_config`.

    Raises:
        ConfigError: the file cannot be read, or a value does not fit.
    """
    return parse_config(read_properties(path), str(path)).config


def write_config(path: Path, config: TorchServeConfig) -> None:
    """Write a configuration as a properties file, which appears when it is complete."""
    write_properties(path, config_values(config))


def config_values(config: TorchServeConfig) -> dict[str, str]:
    """Return the values that differ from the defaults, as a properties file has them."""
    default = TorchServeConfig()
    return {
        name: _text(getattr(config, name))
        for name in TorchServeConfig.__struct_fields__
        if getattr(config, name) != getattr(default, name)
    }


def parse_config(values: Mapping[str, str], where: str) -> ReadConfig:
    """Return the configuration of the keys and values of a properties file.

    Raises:
        ConfigError: values do not fit; the message has one line per key.
    """
    fields = {item.name: item for item in msgspec.structs.fields(TorchServeConfig)}
    found: dict[str, Any] = {}
    launcher, unknown, problems = {}, {}, []
    for key, text in values.items():
        if key in fields:
            try:
                found[key] = _value(key, text.strip(), fields[key].type)
            except ValueError as error:
                problems.append(f"{where}: {key}: {error}")
        elif key in LAUNCHER_KEYS:
            launcher[key] = text.strip()
        elif key not in UNUSED_KEYS:
            unknown[key] = did_you_mean(key, [*fields, *LAUNCHER_KEYS])
    if problems:
        raise ConfigError("\n".join(problems), hint="correct the values, or remove the keys")
    unused = [key for key in values if key in UNUSED_KEYS]
    return ReadConfig(TorchServeConfig(**found), launcher, unused, unknown)


def _value(key: str, text: str, kind: Any) -> Any:
    if key == "models":
        try:
            return msgspec.json.decode(text or "{}", type=dict[str, dict[str, dict[str, Any]]])
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise ValueError(f"expected JSON of models and versions: {error}") from error
    if key == "ts_open_inference_protocol" and text.lower() == "oip":
        text = "true"  # as TorchServe takes it
    if get_origin(kind) is Literal:
        text = text.lower()
        *some, last = filter(None, get_args(kind))
        if text not in get_args(kind):
            raise ValueError(f"expected {', '.join(some)} or {last}, got {shown(text)}")
    if kind == Path | None and not text:
        return None
    return convert(text, kind, strict=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return "" if value is None else str(value)


def is_allowed(url: str, allowed: str) -> bool:
    """Return whether one of the expressions, separated by commas, matches a whole URL."""
    for text in filter(None, map(str.strip, allowed.split(","))):
        try:
            if re.fullmatch(text, url, re.IGNORECASE):
                return True
        except (re.error, OverflowError, RecursionError) as error:
            logger.warning("allowed_urls: %r is no regular expression: %s", text, error)
    return False
