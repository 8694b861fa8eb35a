"""How a server is started: the command line, the environment and `config.properties`, merged.

The file is that of `TS_CONFIG_FILE`, else of `--ts-config`, else the last snapshot, else
`config.properties` in the working directory. A `TS_` variable wins over the command line, which
wins over the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import structs

from extensions.torchserve.config import snapshot
from extensions.torchserve.config.properties import read_properties, with_variables
from extensions.torchserve.config.settings import (
    LAUNCHER_KEYS,
    ReadConfig,
    TorchServeConfig,
    parse_config,
)
from headrace.config.environment import is_service_link
from headrace.errors import ConfigError

CONFIG_NAME: Final = "config.properties"
KEY_FILE: Final = "key_file.json"
LOGS: Final = "logs"
ALL: Final = "all"
_ENV_PREFIX: Final = "TS_"
#: Fields of TorchServeConfig that are no keys of config.properties.
_OURS: Final = frozenset({"key_file", "log_location", "metrics_location", "snapshot_folder"})
_PORTS: Final = {"http": 80, "https": 443}


class Flags(NamedTuple):
    """The command line of a start."""

    ts_config: str = ""
    model_store: str = ""
    workflow_store: str = ""
    models: tuple[str, ...] = ()
    no_snapshots: bool = False
    disable_token_auth: bool = False
    enable_model_api: bool = False
    log_config: str = ""
    plugins_path: str = ""


class Address(NamedTuple):
    """Where one interface listens.

    Attributes:
        scheme: `http`, `https` or `unix`.
        host: its address; the path of a Unix socket.
        port: 0 for a Unix socket.
    """

    key: str
    scheme: str
    host: str
    port: int


class StartModel(NamedTuple):
    """A model that the server starts with.

    Attributes:
        name: its name; "" for that of its archive.
        source: its archive: a name in the model store, a path or a URL.
    """

    name: str
    source: str


class Launch(NamedTuple):
    """What a server is started with.

    Attributes:
        config: what the API and the model processes read.
        others: the values of the keys that only the launcher uses.
        values: all keys and values, for snapshots.
        addresses: the addresses to listen on, each once; the first is the inference address.
        notices: what has no effect, and why: one line each.
    """

    config: TorchServeConfig
    others: dict[str, str]
    values: dict[str, str]
    file: Path | None
    is_snapshot: bool
    model_store: Path | None
    workflow_store: Path | None
    addresses: tuple[Address, ...]
    notices: list[str]

    @property
    def revision(self) -> str:
        """Return the state of the registry of which a snapshot was made; "" without one."""
        return self.values.get(snapshot.REVISION_KEY, "") if self.is_snapshot else ""

    @property
    def restored(self) -> list[snapshot.SnapshotModel] | None:
        """Return the models of a snapshot; None if the file has no snapshot.

        Raises:
            ConfigError: they are not readable.
        """
        text = self.others.get(snapshot.MODELS_KEY)
        return None if not text else snapshot.read_models(text, str(self.file))

    @property
    def named_models(self) -> list[StartModel]:
        """Return the models that `load_models` names; those of `all` are not among them."""
        if self.loads_all:
            return []
        texts = (part.strip() for part in self.config.load_models.split(","))
        return [_named(text) for text in texts if text.rpartition("=")[2]]

    @property
    def loads_all(self) -> bool:
        """Return whether all archives of the model store are loaded."""
        return self.config.load_models.strip().lower() == ALL


def merge(flags: Flags, environ: Mapping[str, str], folder: Path) -> Launch:
    """Return what a server is started with.

    Args:
        folder: the working directory.

    Raises:
        ConfigError: a file is missing, or a value does not fit.
    """
    log_location = folder / (environ.get("LOG_LOCATION") or LOGS)
    snapshots = None if flags.no_snapshots else log_location / snapshot.FOLDER
    file, is_snapshot = _config_file(flags, environ, folder, snapshots)
    where = str(file) if file is not None else "the command line"
    values = with_variables(read_properties(file), environ, where) if file is not None else {}
    extra = {key: value for key, value in values.items() if key in snapshot.KEYS}
    values = {key: value for key, value in values.items() if key not in extra.keys() | _OURS}
    values |= _from_flags(flags)
    if _is_true(values.get("enable_envvars_config", "")):
        values |= _from_environ(environ, values)
    if oip := environ.get("TS_OPEN_INFERENCE_PROTOCOL", ""):
        values["ts_open_inference_protocol"] = oip
    read = parse_config(values, where)
    metrics = read.config.metrics_config
    config = structs.replace(
        read.config,
        metrics_config=folder / metrics if metrics is not None else None,
        key_file=folder / KEY_FILE,
        log_location=log_location,
        metrics_location=folder / (environ.get("METRICS_LOCATION") or LOGS),
        snapshot_folder=snapshots,
    )
    others = {**read.launcher, **extra}
    stores: dict[str, Path | None] = {"model_store": None, "workflow_store": None}
    for key in stores.keys() & others.keys():
        stores[key] = path = folder / Path(others[key]).expanduser()
        values[key] = str(path)
    return Launch(
        config,
        others,
        {key: text for key, text in {**values, **extra}.items() if key != "keystore_pass"},
        file,
        is_snapshot,
        stores["model_store"],
        stores["workflow_store"],
        _addresses(config, where),
        [*_flag_notices(flags), *([] if is_snapshot else _notices(read, where))],
    )


def _flag_notices(flags: Flags) -> list[str]:
    found = []
    if flags.log_config:
        found.append(
            f"--log-config {flags.log_config}: no effect: log4j is not there. HEADRACE_LOG_LEVEL "
            "and HEADRACE_LOG_FORMAT choose what is logged, LOG_LOCATION and METRICS_LOCATION where"
        )
    if flags.plugins_path:
        found.append(
            f"--plugins-path {flags.plugins_path}: no effect: plugins in Java cannot run. A "
            "handler reads further paths as url_path, and the models are kept in Redis"
        )
    return found


def _notices(read: ReadConfig, where: str) -> list[str]:
    found = [f"{where}: no effect here: {', '.join(read.unused)}"] if read.unused else []
    for key, near in read.unknown.items():
        found.append(f"{where}: {key}: TorchServe has no such key{near}")
    return found


def _config_file(
    flags: Flags, environ: Mapping[str, str], folder: Path, snapshots: Path | None
) -> tuple[Path | None, bool]:
    """Return the file with the configuration, and whether it is a snapshot that was found."""
    named = environ.get("TS_CONFIG_FILE") or flags.ts_config
    if named:
        path = folder / Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"--ts-config file not found: {named}")
        return path, False
    last = snapshot.last_snapshot(snapshots) if snapshots is not None else None
    if last is not None:
        return last, True
    path = folder / CONFIG_NAME
    return (path, False) if path.is_file() else (None, False)


def _from_flags(flags: Flags) -> dict[str, str]:
    given = {
        "model_store": flags.model_store,
        "workflow_store": flags.workflow_store,
        "load_models": ",".join(flags.models),
        "disable_token_authorization": "true" if flags.disable_token_auth else "",
        "enable_model_api": "true" if flags.enable_model_api else "",
    }
    return {key: value for key, value in given.items() if value}


def _from_environ(environ: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    keys = {*TorchServeConfig.__struct_fields__, *LAUNCHER_KEYS} - _OURS - snapshot.KEYS
    if not _is_true(values.get("use_env_allowed_urls", "")):
        keys.discard("allowed_urls")
    found = {key: environ.get(f"{_ENV_PREFIX}{key.upper()}") for key in sorted(keys)}
    # A Compose file writes `NAME=` for an unset variable.
    return {
        key: value
        for key, value in found.items()
        if value and not is_service_link(f"{_ENV_PREFIX}{key.upper()}", value)
    }


def _addresses(config: TorchServeConfig, where: str) -> tuple[Address, ...]:
    """Return the addresses to listen on; equal ones once."""
    keys = ["inference_address", "management_address"]
    keys += ["metrics_address"] if config.enable_metrics_api else []
    found: dict[tuple[str, int], Address] = {}
    for key in keys:
        address = address_of(key, getattr(config, key), where)
        first = found.setdefault((address.host, address.port), address)
        if first.scheme != address.scheme:
            raise ConfigError(
                f"{where}: {key}: {first.key} has the same port, but begins with {first.scheme}:",
                hint="write the same address, or another port",
            )
    return tuple(found.values())


def address_of(key: str, text: str, where: str) -> Address:
    """Return the address that a key of the configuration has.

    Raises:
        ConfigError: it is no such address.
    """
    try:
        url = urlsplit(text)
        if url.scheme == "unix" and url.path:
            return Address(key, "unix", url.path, 0)
        if url.scheme in _PORTS and url.hostname:
            return Address(key, url.scheme, url.hostname, url.port or _PORTS[url.scheme])
    except ValueError:
        pass
    raise ConfigError(
        f"{where}: {key}: {text!r} is not an address",
        hint="write one such as http://127.0.0.1:8080 or https://0.0.0.0:8443",
    )


def _named(text: str) -> StartModel:
    name, equals, source = text.partition("=")
    # A URL may have an equals sign in its query.
    return StartModel(name, source) if equals and "/" not in name else StartModel("", text)


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"
