"""The settings of the servers, typed and frozen.

A value comes from the command line, else the environment, else the YAML file, else its default.
The caller passes the environment: nothing here reads `os.environ`. What only a file or a rare
setting needs is imported in its function: health checks of containers read settings all the time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_origin, overload

import msgspec
from msgspec import Meta
from typing_extensions import override

from headrace.config.environment import is_service_link, server_root
from headrace.config.extensions import found, settings_types
from headrace.config.model.shared import Label
from headrace.config.suggestions import did_you_mean
from headrace.config.values import convert
from headrace.errors import ConfigError
from headrace.redis.url import SCHEMES, read_url, redact_url

if TYPE_CHECKING:
    from headrace.config.yaml_file import Document

ENV_PREFIX: Final = "HEADRACE_"
#: The variable with the path of the YAML file.
ENV_CONFIG: Final = "HEADRACE_CONFIG"
#: Many platforms set this; HEADRACE_REDIS_URL overrides it.
ENV_REDIS_URL: Final = "REDIS_URL"

#: HEADRACE_ variables that are not settings; their components read them.
OTHER_VARIABLES: Final = frozenset(
    {
        ENV_CONFIG,
        "HEADRACE_API_KEY",
        "HEADRACE_CA_FILE",
        "HEADRACE_INCARNATION",
        "HEADRACE_MODEL_CPUS",
        "HEADRACE_MODEL_LIFE",
        "HEADRACE_MODEL_PARENT",
        "HEADRACE_NODE",
        "HEADRACE_SPOOL_DIR",
        "HEADRACE_URL",
        "HEADRACE_USER_ENVIRONMENT",
        "HEADRACE_WORKER_SHARE",
    }
)

#: The models file if no setting names one: the first of these in the working directory. If it has
#: none, the last of these in the folder of the servers' code, as in a wheel.
MODELS_FILES: Final = (Path("models.yaml"), Path("configs/models.yaml"))

MIB: Final = 1024 * 1024
DAY_S: Final = 86_400

_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Text = Annotated[str, Meta(min_length=1)]
#: No `*`: without API keys, all pages in a browser on this machine could use the API.
_Origin = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")]

#: The log formats of the core.
LOG_FORMATS: Final = ("console", "json", "auto")
_Value = TypeVar("_Value")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one deployment; docs/configuration.md explains each, under "Settings"."""

    redis_url: _Text | None = None
    models_file: Path = MODELS_FILES[-1]
    state_dir: Path = Path(".headrace")
    host: _Text = "127.0.0.1"
    port: _Port = 8080
    api_processes: Annotated[int, Meta(ge=1, le=256)] = 1
    auth: Literal["auto", "on", "off"] = "auto"
    published_at: _Text | None = None
    auth_metrics: bool = True
    auth_docs: bool = False
    cors_origins: tuple[_Origin, ...] = ()
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    flower_host: _Text = "127.0.0.1"
    flower_port: _Port = 5555
    events_per_s: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    body_limit_bytes: Annotated[int, Meta(ge=1, le=1024 * MIB)] = 32 * MIB
    header_limit_bytes: Annotated[int, Meta(ge=1024, le=MIB)] = 32 * 1024
    header_limit_count: Annotated[int, Meta(ge=16, le=1000)] = 100
    stop_delay_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    request_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    bulk_limit_lines: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10_000_000
    max_wait_s: Annotated[float, Meta(ge=0, le=600)] = 60.0
    event_streams_max: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    event_streams_per_key: Annotated[int, Meta(ge=1, le=100_000)] = 100
    event_stream_max_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 3600.0
    bulk_hold_s: Annotated[float, Meta(ge=0, le=600)] = 30.0
    model_api: bool = False
    job_index_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    result_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] = DAY_S
    failed_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] = 7 * DAY_S
    failures_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    timeout_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 60.0
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    lease_ttl_s: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 3
    device_slots: Annotated[int, Meta(ge=0, le=256)] = 0
    worker_labels: tuple[Label, ...] = ()
    pin_cores: Literal["off", "cores", "numa"] = "off"
    max_loaded_models: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    loaded_memory_mb: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    load_turn_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 10.0
    drain_timeout_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 30.0
    inline_limit_bytes: Annotated[int, Meta(ge=0, le=16 * MIB)] = 16 * 1024
    payload_store: Literal["redis", "file", "s3"] = "redis"
    payload_dir: Path | None = None
    payload_bucket: _Text | None = None
    payload_prefix: str = "headrace/"
    payload_endpoint_url: _Text | None = None
    max_payload_memory_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] | None = None
    payload_bytes_per_key: Annotated[int, Meta(ge=1, le=1024**3 * MIB)] | None = None
    input_roots: tuple[Path, ...] = ()
    input_buckets: tuple[_Text, ...] = ()
    file_limit_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] = 512 * MIB
    file_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] = 30 * DAY_S
    batch_max_lines: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    batch_in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    runner_batches: Annotated[int, Meta(ge=1, le=64)] = 4
    model_store: Path | None = None
    allowed_urls: tuple[_Text, ...] = ()
    model_limit_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] = 32 * 1024 * MIB
    model_fetch_timeout_s: Annotated[float, Meta(ge=1, le=DAY_S)] = 1800.0
    install_requirements: bool = False
    webhook_secrets: tuple[str, ...] = ()
    webhook_allow_networks: tuple[_Text, ...] = ()
    webhook_allow_http: bool = False
    webhook_ca_file: Path | None = None
    webhook_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 20.0
    webhook_connect_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0
    webhook_retry_s: Annotated[int, Meta(ge=0, le=7 * DAY_S)] = DAY_S
    webhook_log_ttl_s: Annotated[int, Meta(ge=60, le=30 * DAY_S)] = DAY_S
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: str = "console"
    access_log: bool = False
    #: The values of extensions, by their names; `of` returns one.
    extensions: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @overload
    def of(self, extension: str, kind: type[_Struct]) -> _Struct: ...
    @overload
    def of(self, extension: str, kind: type[_Value]) -> _Value | None: ...
    def of(self, extension: str, kind: type[Any]) -> Any:
        """Return the value of an extension, of type `kind`; else a struct's defaults, or None."""
        value = self.extensions.get(extension)
        return kind() if value is None and issubclass(kind, msgspec.Struct) else value

    @property
    def public_host(self) -> str:
        """Return the address at which the API is reachable, which decides `auth: auto`."""
        return self.published_at or self.host

    @property
    def asks_for_keys(self) -> bool:
        """Return whether each request needs an API key."""
        return self.auth == "on" or (self.auth == "auto" and not is_loopback(self.public_host))

    def needed_redis_url(self, who: str) -> str:
        """Return `redis_url` for a component without Redis; raise ConfigError if it is not set."""
        if self.redis_url is None:
            raise ConfigError(
                f"{who} needs HEADRACE_REDIS_URL, which is not set",
                hint="set it, or start everything with `headrace up`",
            )
        return self.redis_url

    @property
    def failures_kept(self) -> str:
        """How failures are kept, as the scripts take it: seconds, and how many of a model."""
        return f"{self.failed_ttl_s} {self.failures_max}"

    @property
    def tls(self) -> bool:
        """Return whether the API serves HTTPS."""
        return self.tls_cert_file is not None

    @override
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields for rich's tracebacks, without passwords."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.redis_url is not None:
            shown["redis_url"] = redact_url(self.redis_url)
        shown["webhook_secrets"] = tuple("***" for _ in self.webhook_secrets)
        shown["extensions"] = tuple(self.extensions)  # what is secret in a value is unknown here
        return list(shown.items())

    @override
    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({inside})"


#: The settings of the core.
FIELDS: Final = {
    item.name: item for item in msgspec.structs.fields(Settings) if item.name != "extensions"
}
#: Their variables.
VARIABLES: Final = {ENV_PREFIX + name.upper(): name for name in FIELDS}


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine. Names are not looked up."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Settings:
    """Build the settings.

    Args:
        file: a YAML file; None takes the file of HEADRACE_CONFIG, if it is set.
        overrides: values of the command line, by key; None means not given.

    Raises:
        ConfigError: keys or variables are unknown, or values do not fit; the message has them all.
    """
    if file is None and environ.get(ENV_CONFIG):
        file = Path(environ[ENV_CONFIG])
    problems: list[str] = []
    in_file, of_extensions = ({}, {}) if file is None else _from_file(file, problems)
    in_variables, others = _from_environ(environ, problems)
    values = {**in_file, **in_variables, **_from_overrides(overrides, problems)}
    _check_log_format(values.get("log_format", "console"), problems)
    _check_lists(values, problems)
    _check_hosts(values, problems)
    if of_extensions or others:
        values["extensions"] = _extension_values(of_extensions, others, problems)
    if problems:
        raise ConfigError("\n".join(problems), hint="see docs/configuration.md for all settings")
    here = next((path for path in MODELS_FILES if path.is_file()), None)
    models_file = here or server_root() / MODELS_FILES[-1]
    return Settings(**{"models_file": models_file, **values})


def _check_log_format(chosen: str, problems: list[str]) -> None:
    known = [*LOG_FORMATS]
    if chosen not in known:
        # An extension may have a format of its own name.
        known += [one.name for one in found().extensions.values() if one.logs is not None]
    if chosen not in known:
        *most, last = sorted(known)
        problems.append(f"log_format: expected {', '.join(most)} or {last}, got {chosen!r}")


def _check_hosts(values: Mapping[str, Any], problems: list[str]) -> None:
    for name in ("host", "flower_host"):
        host: str = values.get(name, "")
        try:
            _ = host and host.encode("idna")  # as for every connection
        except UnicodeError:
            problems.append(
                f"{name}: {host!r} is no name of a host; between its dots are 1 to 63 characters"
            )


#: The lists whose items have a form of their own.
_CHECKED: Final = ("allowed_urls", "webhook_secrets", "webhook_allow_networks")


def _check_lists(values: Mapping[str, Any], problems: list[str]) -> None:
    if not any(map(values.get, _CHECKED)):
        return
    from headrace.config.allowed_urls import read_prefix
    from headrace.webhooks.allowed_addresses import read_networks
    from headrace.webhooks.signing import read_secret

    for text in values.get("allowed_urls", ()):
        try:
            read_prefix(text)
        except ValueError as error:
            problems.append(f"allowed_urls: {error}")
    for place, text in enumerate(values.get("webhook_secrets", ()), 1):
        try:
            read_secret(text)
        except ValueError as error:
            problems.append(f"webhook_secrets: number {place}: {error}")
    try:
        read_networks(values.get("webhook_allow_networks", ()))
    except ValueError as error:
        problems.append(f"webhook_allow_networks: {error}")


def _from_file(file: Path, problems: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the core and those of extensions."""
    from headrace.config.yaml_file import load_yaml, read_fields

    document = load_yaml(file, what="settings file")
    level = document.data.get("log_level")
    if isinstance(level, str):
        document.data["log_level"] = level.lower()
    for key in ("auth", "pin_cores"):
        if isinstance(document.data.get(key), bool):
            # YAML reads on and off without quotes as true and false.
            document.data[key] = "on" if document.data[key] else "off"
    url = document.data.pop("redis_url", None)
    others = [key for key in document.data if key not in FIELDS]
    values = read_fields(document, (), Settings, leave=others)
    of_extensions = _extensions_in_file(document, others) if others else {}
    if url is not None:
        try:
            values["redis_url"] = _redis_url(url)
        except ValueError as error:
            document.report(("redis_url",), str(error))
    problems.extend(document.problems)
    # As in the models file: a relative path refers to the folder of its file.
    folder = file.absolute().parent
    return _in_folder(folder, values), _in_folder(folder, of_extensions)


def _in_folder(folder: Path, value: Any) -> Any:
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, dict):
        return {key: _in_folder(folder, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_in_folder(folder, item) for item in value)
    return value


def _from_environ(
    environ: Mapping[str, str], problems: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the core and those of extensions."""
    values: dict[str, Any] = {}
    others: dict[str, str] = {}
    mistakes: list[str] = []
    if environ.get(ENV_REDIS_URL) and not environ.get(f"{ENV_PREFIX}REDIS_URL"):
        _take(values, "redis_url", environ[ENV_REDIS_URL], ENV_REDIS_URL, mistakes)
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(ENV_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if is_service_link(variable, text):
            continue
        if variable not in VARIABLES:
            others[variable] = text
        elif text:  # a Compose file writes `NAME=` for an unset variable
            name = VARIABLES[variable]
            _take(values, name, text, f"environment: {variable}", mistakes, strict=False)
    # Extensions are looked up only if a value may be theirs.
    of_extensions = _extensions_in_variables(others, mistakes) if others else {}
    problems.extend(sorted(mistakes))
    return values, of_extensions


def _from_overrides(overrides: Mapping[str, object], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in FIELDS:
            near = did_you_mean(name, FIELDS)
            problems.append(f"command line: {name}: unknown setting{near}")
        elif value is not None:
            _take(values, name, value, f"command line: {name}", problems)
    return values


def _take(
    values: dict[str, Any],
    name: str,
    value: object,
    where: str,
    problems: list[str],
    *,
    strict: bool = True,
) -> None:
    if name == "log_level" and isinstance(value, str):
        value = value.lower()
    try:
        if name == "redis_url":
            values[name] = _redis_url(value)
        else:
            kind = FIELDS[name].type
            values[name] = convert(_items(value, kind), kind, strict=strict)
    except ValueError as error:
        problems.append(f"{where}: {error}")


def _items(value: object, kind: Any) -> object:
    """Return the items of a list that is a text with commas; another value as it is."""
    if not isinstance(value, str) or get_origin(kind) not in (list, tuple):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def _redis_url(value: object) -> str:
    """Return a valid URL. Messages never contain its password."""
    url: str = convert(value, _Text, secret=True)
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        near = did_you_mean(scheme, SCHEMES) if separator else ""
        raise ValueError(f"expected a URL that begins with one of {known}{near}")
    try:
        read_url(url)
    except ConfigError as error:
        raise ValueError(error.message_with_hint) from None
    return url


def extension_variables() -> dict[str, tuple[str, str, Any]]:
    """Return the extension, the field ("" if it has none) and the type of each variable."""
    result: dict[str, tuple[str, str, Any]] = {}
    for name, kind in settings_types().items():
        if _is_struct(kind):
            for item in msgspec.structs.fields(kind):
                result[f"{ENV_PREFIX}{name}_{item.name}".upper()] = (name, item.name, item.type)
        else:
            result[f"{ENV_PREFIX}{name}".upper()] = (name, "", kind)
    return result


def _extensions_in_file(document: Document, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values at these keys, a struct as its fields; report what does not fit.

    Values of extensions that cannot be used are left alone: such an extension stops nothing.
    """
    from headrace.config.yaml_file import read_fields, read_value

    types, values = settings_types(), dict[str, Any]()
    for key in keys:
        if _is_struct(types.get(key)):
            values[key] = read_fields(document, (key,), types[key])
        elif key in types:
            read_value(document, (key,), document.data[key], types[key], values)
        elif key not in found().problems:
            near = did_you_mean(str(key), [*FIELDS, *types])
            document.report((key,), f"unknown key{near}")
    return values


def _extensions_in_variables(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """Return the values that these variables have, as `_extensions_in_file` does."""
    known, values = extension_variables(), dict[str, Any]()
    others = {name for extension in found().extensions.values() for name in extension.variables}
    unusable = tuple(ENV_PREFIX + name.upper() for name in found().problems)
    for variable, text in environ.items():
        if variable not in known:
            if variable not in others and not variable.startswith(unusable):
                near = did_you_mean(variable, [*VARIABLES, *OTHER_VARIABLES, *known, *others])
                problems.append(f"environment: {variable}: unknown variable{near}")
        elif text:
            name, key, kind = known[variable]
            into, place = (values.setdefault(name, {}), key) if key else (values, name)
            try:
                into[place] = convert(_items(text, kind), kind, strict=False)
            except ValueError as error:
                problems.append(f"environment: {variable}: {error}")
    return values


def _extension_values(
    in_file: Mapping[str, Any], in_variables: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Return the value of each extension that has one."""
    result = {**in_file, **in_variables}
    for name in result:
        kind = settings_types()[name]
        if _is_struct(kind):
            try:
                result[name] = kind(**{**in_file.get(name, {}), **in_variables.get(name, {})})
            except ValueError as error:
                problems.append(f"{name}: {error}")
    return result


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
