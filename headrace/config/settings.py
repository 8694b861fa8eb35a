"""The settings of the servers, typed and frozen.

A value comes from the command line, else the environment, else the YAML file, else its default.
The caller passes the environment: nothing here reads `os.environ`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from typing_extensions import override

from headrace.config.paths import server_root
from headrace.config.suggestions import did_you_mean
from headrace.config.yaml_file import convert, load_yaml, read_fields
from headrace.errors import ConfigError
from headrace.redis.connection import SCHEMES, parse_sentinel, redact_url
from headrace.webhooks.allowed_addresses import read_networks
from headrace.webhooks.signing import read_secret

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
        "HEADRACE_MODEL_LIFE",
        "HEADRACE_MODEL_PARENT",
        "HEADRACE_NODE",
        "HEADRACE_SPOOL_DIR",
        "HEADRACE_URL",
    }
)

#: In the working directory, else in the folder of the servers' code, as in a wheel.
MODELS_FILE: Final = Path("configs/models.yaml")

#: Settings that are lists; in a variable their items are separated by commas.
LISTS: Final = frozenset(
    {"input_roots", "input_buckets", "cors_origins", "webhook_secrets", "webhook_allow_networks"}
)

MIB: Final = 1024 * 1024
DAY_S: Final = 86_400

_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Text = Annotated[str, Meta(min_length=1)]
#: No `*`: without API keys, all pages in a browser on this machine could use the API.
_Origin = Annotated[str, Meta(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one deployment.

    Attributes:
        redis_url: Redis or Valkey; None lets `headrace up` start its own.
        models_file: the models file.
        state_dir: where `headrace up` keeps the embedded server's data and Flower's history.
        host: the address that the API listens on.
        port: its port.
        api_processes: how many processes the API has on that port.
        auth: whether the API asks for keys; auto: where others than this machine can reach it.
        published_at: the address at which a container publishes the API's port, by which auto goes.
        auth_metrics: whether /metrics wants a key, where keys are asked for.
        auth_docs: whether the documentation pages want one.
        cors_origins: the web origins whose pages may call the API from a browser.
        tls_cert_file: the certificate (and chain, PEM) with which the API speaks HTTPS.
        tls_key_file: its private key; None if it is in the same file.
        flower_host: the address that Flower listens on.
        flower_port: its port.
        events_per_s: for how many jobs per second a worker sends all events to Celery's monitors,
            per model whose `events` are sampled.
        body_limit_bytes: the largest request body that the API takes.
        header_limit_bytes: the longest line and headers of a request.
        header_limit_count: the most headers.
        request_timeout_s: how long a request's head may take, and its body may pause.
        bulk_limit_lines: the most lines of a bulk request.
        max_wait_s: the longest that a request may wait for a result.
        event_streams_max: how many event streams one API process has open at most.
        event_streams_per_key: ... and of one API key.
        event_stream_max_s: how long one is open; then its client comes back for the rest.
        bulk_hold_s: how long a line of a bulk request waits for room in its queue or in the store.
        job_index_max: how many of a model's newest jobs can be listed; 0 switches lists off.
        result_ttl_s: how long a job's record and result are kept after its end.
        timeout_s: how long a job may run, if neither it nor its model has a timeout.
        max_retries: retries after a retryable error, if neither the job nor its model has a number.
        lease_ttl_s: after how long the jobs of a host that was lost are handed out again.
        max_deliveries: crashes of the model process, alone with a job, until the job fails.
        device_slots: how many batches run at once on a worker's device; 0: as its models need.
        drain_timeout_s: how long a worker that is asked to stop may finish what it runs.
        inline_limit_bytes: longer inputs and results are kept in the payload store.
        payload_store: the payload store.
        payload_dir: the folder of the store `file`, which all hosts share.
        payload_bucket: the bucket of the store `s3`.
        payload_prefix: how the names of its objects begin.
        payload_endpoint_url: an S3 server other than AWS' own; also for input_buckets.
        max_payload_memory_bytes: the limit of inputs in the store `redis`; None is half of Redis'
            maxmemory, or 1 GiB without maxmemory.
        input_roots: the folders whose files clients may name as `input_ref`.
        input_buckets: the buckets whose objects clients may name.
        file_limit_bytes: the largest file that may be uploaded.
        file_ttl_s: how long a file is kept by default, and a batch after its end.
        batch_max_lines: the most lines of a batch.
        batch_in_flight: how many jobs of one batch are in flight.
        runner_batches: how many batches one runner runs at a time.
        webhook_secrets: the secrets that sign webhooks, the newest first; empty: none are sent.
        webhook_allow_networks: private networks that webhooks may be sent to.
        webhook_allow_http: whether they may be sent over plain HTTP.
        webhook_ca_file: more certificate authorities (PEM) for receivers.
        webhook_timeout_s: how long one attempt of a webhook may take.
        webhook_connect_timeout_s: how long its connection may take.
        webhook_retry_s: how long after an event its webhook is retried; 0: it is not retried.
        webhook_log_ttl_s: how long deliveries are kept after the last attempt.
        log_level: the least severe level that is logged.
        log_format: how lines look; auto: for people on a terminal, JSON elsewhere.
        access_log: whether the API logs a line for each request.
    """

    redis_url: _Text | None = None
    models_file: Path = MODELS_FILE
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
    request_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    bulk_limit_lines: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10_000_000
    max_wait_s: Annotated[float, Meta(ge=0, le=600)] = 60.0
    event_streams_max: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    event_streams_per_key: Annotated[int, Meta(ge=1, le=100_000)] = 100
    event_stream_max_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 3600.0
    bulk_hold_s: Annotated[float, Meta(ge=0, le=600)] = 30.0
    job_index_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    result_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] = DAY_S
    timeout_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 60.0
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    lease_ttl_s: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 3
    device_slots: Annotated[int, Meta(ge=0, le=256)] = 0
    drain_timeout_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 30.0
    inline_limit_bytes: Annotated[int, Meta(ge=0, le=16 * MIB)] = 16 * 1024
    payload_store: Literal["redis", "file", "s3"] = "redis"
    payload_dir: Path | None = None
    payload_bucket: _Text | None = None
    payload_prefix: str = "headrace/"
    payload_endpoint_url: _Text | None = None
    max_payload_memory_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] | None = None
    input_roots: tuple[Path, ...] = ()
    input_buckets: tuple[_Text, ...] = ()
    file_limit_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] = 512 * MIB
    file_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] = 30 * DAY_S
    batch_max_lines: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    batch_in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    runner_batches: Annotated[int, Meta(ge=1, le=64)] = 4
    webhook_secrets: tuple[str, ...] = ()
    webhook_allow_networks: tuple[_Text, ...] = ()
    webhook_allow_http: bool = False
    webhook_ca_file: Path | None = None
    webhook_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 20.0
    webhook_connect_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0
    webhook_retry_s: Annotated[int, Meta(ge=0, le=7 * DAY_S)] = DAY_S
    webhook_log_ttl_s: Annotated[int, Meta(ge=60, le=30 * DAY_S)] = DAY_S
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json", "auto"] = "console"
    access_log: bool = False

    @property
    def public_host(self) -> str:
        """Return the address at which the API is reachable, which decides `auth: auto`."""
        return self.published_at or self.host

    @property
    def asks_for_keys(self) -> bool:
        """Return whether each request needs an API key."""
        return self.auth == "on" or (self.auth == "auto" and not is_loopback(self.public_host))

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
        return list(shown.items())

    @override
    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({inside})"


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
        environ: the environment, such as `os.environ`.
        overrides: values of the command line, by key; None means not given.

    Raises:
        ConfigError: keys or variables are unknown, or values do not fit; the message has them all.
    """
    if file is None and environ.get(ENV_CONFIG):
        file = Path(environ[ENV_CONFIG])
    problems: list[str] = []
    values = {
        **(_from_file(file, problems) if file is not None else {}),
        **_from_environ(environ, problems),
        **_from_overrides(overrides, problems),
    }
    _check_webhooks(values, problems)
    if problems:
        raise ConfigError("\n".join(problems), hint="see docs/configuration.md for all settings")
    return Settings(**{"models_file": _default_models_file(), **values})


def _check_webhooks(values: Mapping[str, Any], problems: list[str]) -> None:
    for place, text in enumerate(values.get("webhook_secrets", ()), 1):
        try:
            read_secret(text)
        except ValueError as error:
            problems.append(f"webhook_secrets: number {place}: {error}")
    try:
        read_networks(values.get("webhook_allow_networks", ()))
    except ValueError as error:
        problems.append(f"webhook_allow_networks: {error}")


def _default_models_file() -> Path:
    here = MODELS_FILE
    return here if here.is_file() else server_root() / here


def _from_file(file: Path, problems: list[str]) -> dict[str, Any]:
    document = load_yaml(file, what="settings file")
    level = document.data.get("log_level")
    if isinstance(level, str):
        document.data["log_level"] = level.lower()
    if isinstance(document.data.get("auth"), bool):
        # YAML reads on and off without quotes as true and false.
        document.data["auth"] = "on" if document.data["auth"] else "off"
    url = document.data.pop("redis_url", None)
    values = read_fields(document, (), Settings)
    if url is not None:
        try:
            values["redis_url"] = _redis_url(url)
        except ValueError as error:
            document.report(("redis_url",), str(error))
    problems.extend(document.problems)
    # As in the models file: a relative path refers to the folder of its file.
    folder = file.absolute().parent
    for key in (
        "models_file",
        "state_dir",
        "payload_dir",
        "tls_cert_file",
        "tls_key_file",
        "webhook_ca_file",
    ):
        if values.get(key) is not None:
            values[key] = folder / values[key]
    if "input_roots" in values:
        values["input_roots"] = tuple(folder / root for root in values["input_roots"])
    return values


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    known = {ENV_PREFIX + name.upper(): name for name in Settings.__struct_fields__}
    values: dict[str, Any] = {}
    if environ.get(ENV_REDIS_URL) and not environ.get(f"{ENV_PREFIX}REDIS_URL"):
        _take(values, "redis_url", environ[ENV_REDIS_URL], ENV_REDIS_URL, problems)
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(ENV_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in known:
            near = did_you_mean(variable, [*known, *OTHER_VARIABLES])
            problems.append(f"environment: {variable}: unknown variable{near}")
        elif text:  # a Compose file writes `NAME=` for an unset variable
            _take(values, known[variable], text, f"environment: {variable}", problems, strict=False)
    return values


def _from_overrides(overrides: Mapping[str, object], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in Settings.__struct_fields__:
            near = did_you_mean(name, Settings.__struct_fields__)
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
    field = next(item for item in msgspec.structs.fields(Settings) if item.name == name)
    if name == "log_level" and isinstance(value, str):
        value = value.lower()
    if name in LISTS and isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    try:
        if name == "redis_url":
            values[name] = _redis_url(value)
        else:
            values[name] = convert(value, field.type, strict=strict)
    except ValueError as error:
        problems.append(f"{where}: {error}")


def _redis_url(value: object) -> str:
    """Return a valid URL. Messages never contain its password.

    Raises:
        ValueError: it is not a URL with a known scheme.
    """
    url: str = convert(value, _Text, secret=True)
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        near = did_you_mean(scheme, SCHEMES) if separator else ""
        raise ValueError(f"expected a URL that begins with one of {known}{near}")
    if scheme == "sentinel":
        try:
            parse_sentinel(url)
        except ConfigError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
    return url
