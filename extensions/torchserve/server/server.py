"""`headrace torchserve`: `headrace up` with TorchServe's configuration, addresses and messages."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import redis.exceptions
from typing_extensions import override

from extensions.torchserve.config.key_file import STATIC_KEYS, make_keys, static_keys
from extensions.torchserve.config.launch import Launch
from extensions.torchserve.config.settings import write_config
from extensions.torchserve.config.snapshot import MODELS_KEY
from extensions.torchserve.config.workflow import WORKFLOWS
from extensions.torchserve.logs.files import LogFiles, log_files_of
from extensions.torchserve.logs.lines import LOG_FORMAT
from extensions.torchserve.server.models import (
    BY,
    DEFAULT_WORKERS,
    Start,
    StartReader,
    read_workflows,
    register_all,
)
from extensions.torchserve.server.process import listen_unix, report_ready
from extensions.torchserve.server.snapshots import Snapshots
from headrace.config.model.options import ModelOptions
from headrace.config.settings import DAY_S, MIB, Settings, load_settings
from headrace.errors import ConfigError, HeadraceError, last_line
from headrace.models.archive import Limits
from headrace.models.source import SourceReader
from headrace.observability.worker_report import WorkerReport, read_report
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.registry.catalog import read_declared
from headrace.registry.model import Registry
from headrace.registry.store import registry_at
from headrace.server.extension import processes
from headrace.server.gpus import list_gpus, visible_gpus
from headrace.server.ports import listen
from headrace.server.reloader import Reloader
from headrace.server.up import Up, UpOptions

#: What scripts wait for.
STARTED: Final = "Model server started."
#: Below the state directory: what the other processes read.
CONFIG_NAME: Final = "torchserve.properties"
_LOOK_S: Final = 0.2
#: A worker loads its models within their time limits, and starts itself before.
_WORKER_START_S: Final = 60.0
_BODY_MAX_BYTES: Final = 1024 * MIB
#: Variables that a process needs to run at all; `blacklist_env_vars` leaves them.
_NEEDED: Final = re.compile("HEADRACE_.*|PYTHON.*|PATH|CUDA_VISIBLE_DEVICES|LD_LIBRARY_PATH")


class TorchServer(Up):
    """One run of `headrace torchserve --start`; `start_in_background` waits at `ready_fd`."""

    def __init__(
        self, launch: Launch, environ: Mapping[str, str], ready_fd: int | None = None
    ) -> None:
        environ = {**environ, **gpus_of(launch, environ), **variables_of(launch, environ)}
        settings = load_settings(None, environ, {})
        options = UpOptions(flower=False, without=processes())
        self._launch = launch
        self._ready_fd = ready_fd
        self._hidden_variables = _pattern(launch)
        super().__init__(settings, options, environ)
        self._starts: list[Start] = []
        #: Models and versions that the server waits for, with the seconds that a load may take.
        self._loading: dict[tuple[str, str], float] = {}
        # The embedded server starts again after a crash; the models are registered once.
        self._is_registered = False
        self._snapshots = Snapshots(launch, settings.state_dir, self._report)

    @override
    def run(self) -> None:
        """Start everything; return when a signal has stopped it.

        Raises:
            ConfigError: the configuration, a model or an address is wrong.
            BrokerError: the Redis of HEADRACE_REDIS_URL cannot be used.
            HeadraceError: a component cannot be started.
        """
        launch, settings = self._launch, self._settings
        for notice in launch.notices:
            self._report(notice)
        self._report(_about(launch, settings))
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = launch.config
        write_config(settings.state_dir / CONFIG_NAME, config)
        if not config.disable_token_authorization:
            minutes = config.token_expiration_min
            make_keys(config.key_file, minutes, static_keys(self._environ))
            self._report(f"requests need the tokens of {config.key_file}")
        # The reader keeps what it has unpacked until this process ends.
        reader = SourceReader(settings, settings.models_file.absolute().parent)
        settings.models_file.write_text(self._workflows(reader))
        self._starts = StartReader(launch, reader, settings, self._report).read()
        if self._starts and not config.default_workers_per_model and launch.restored is None:
            self._report(
                f"each model has {DEFAULT_WORKERS} model process where model-config.yaml gives no "
                "number; default_workers_per_model changes that (TorchServe: one per CPU)"
            )
        super().run()
        self._snapshots.stop()

    def _workflows(self, reader: SourceReader) -> str:
        """Return the models file with the workflows of the workflow store, if there is one."""
        settings, store = self._settings, self._launch.workflow_store
        if store is None:
            return "models: {}\n"
        if not store.is_dir():
            self._report(f"workflow_store: there is no folder {store}")
        limits = Limits(total_bytes=settings.model_limit_bytes)
        folder = settings.state_dir.absolute() / WORKFLOWS
        return read_workflows(store, folder, limits, reader, self._report)

    @override
    def _log_files(self) -> LogFiles | None:
        # The file of the configuration is not written yet.
        return log_files_of(self._launch.config, self._settings.log_format)

    @override
    def _take_ports(self) -> None:
        for address in self._launch.addresses:
            found = self._plain if address.scheme != "https" else self._listeners
            if address.scheme == "unix":
                found.append(listen_unix(address.key, Path(address.host)))
                continue
            change = f"choose another {address.key} in config.properties"
            found += listen(address.key, address.host, address.port, change=change)

    @override
    def _close_port(self) -> None:
        super()._close_port()
        self._snapshots.leave()
        for address in self._launch.addresses:
            if address.scheme == "unix":
                Path(address.host).unlink(missing_ok=True)

    @override
    def _release_stale(self) -> None:
        super()._release_stale()
        if self._is_registered:
            return
        with registry_at(self._broker_url) as store:
            registry = store.read()
            declared = read_declared(self._settings.models_file, self._settings)
            if self._snapshots.is_older(registry):
                self._report("the models are those of the last change, which has no snapshot")
                self._starts = []
                store.apply(declared, BY, prune=True)
            else:
                alone = self._settings.redis_url is None
                for change in register_all(store, self._starts, declared, alone=alone):
                    self._report(f"model {change.name}: {change.what}")
            self._snapshots.begin()
            self._loading = loading_models(store.read())
        self._is_registered = True

    @override
    def _worker_environ(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        pattern = self._hidden_variables
        return {
            name: value
            for name, value in environ.items()
            if name not in STATIC_KEYS and (_NEEDED.fullmatch(name) or not pattern.fullmatch(name))
        }

    @override
    def _announce(self, reloader: Reloader) -> None:
        reloader.start()
        if self._ready_fd is not None:
            report_ready(self._ready_fd)
            self._ready_fd = None
        threading.Thread(target=self._started, name="headrace-started", daemon=True).start()

    def _started(self) -> None:
        """Report that the server has started, when the models are loaded or have failed."""
        limit_s = _WORKER_START_S + max(self._loading.values(), default=0.0)
        for line in wait_for_models(self._broker_url, self._loading, limit_s):
            self._report(line)
        try:
            self._snapshots.start(self._broker_url)
        except HeadraceError as error:
            self._report(f"no snapshots are written: {error.message}")
        for address in self._launch.addresses:
            self._report(f"{address.key}: {getattr(self._launch.config, address.key)}")
        self._console.print_alone(STARTED)


def variables_of(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for what Headrace has settings for.

    Raises:
        ConfigError: the files for HTTPS are missing.
    """
    config = launch.config
    state = Path(environ.get("HEADRACE_STATE_DIR") or ".headrace").absolute()
    first = launch.addresses[0]
    found = {
        "HEADRACE_TORCHSERVE": str(state / CONFIG_NAME),
        "HEADRACE_MODELS_FILE": str(state / "torchserve.yaml"),
        "HEADRACE_STATE_DIR": str(state),
        "HEADRACE_LOG_FORMAT": environ.get("HEADRACE_LOG_FORMAT") or LOG_FORMAT,
        "HEADRACE_MODEL_STORE": str(launch.model_store),
        "HEADRACE_MODEL_API": str(config.enable_model_api).lower(),
        "HEADRACE_BODY_LIMIT_BYTES": str(min(max(config.max_request_size, 1), _BODY_MAX_BYTES)),
        "HEADRACE_TIMEOUT_S": str(min(max(config.default_response_timeout, 1), DAY_S)),
        "HEADRACE_INSTALL_REQUIREMENTS": str(config.install_py_dep_per_model).lower(),
    }
    if first.scheme != "unix":
        found |= {"HEADRACE_HOST": first.host, "HEADRACE_PORT": str(first.port)}
    if config.cors_allowed_origin not in ("", "*"):
        found["HEADRACE_CORS_ORIGINS"] = config.cors_allowed_origin
    return found | _tls(launch)


def _tls(launch: Launch) -> dict[str, str]:
    where = f"{launch.file or 'the command line'}: "
    if all(address.scheme != "https" for address in launch.addresses):
        return {}
    files = [launch.others.get(key, "") for key in ("certificate_file", "private_key_file")]
    if not all(files):
        store = launch.others.get("keystore", "")
        raise ConfigError(
            f"{where}https: needs certificate_file and private_key_file"
            + (f"; the keystore {store} cannot be read" if store else ""),
            hint="openssl pkcs12 -in keystore.p12 -nodes -out key.pem writes both into one file"
            if store
            else "name the two files, in PEM",
        )
    certificate, key = (str(Path(file).expanduser().absolute()) for file in files)
    return {"HEADRACE_TLS_CERT_FILE": certificate, "HEADRACE_TLS_KEY_FILE": key}


def _pattern(launch: Launch) -> re.Pattern[str]:
    """Return the expression of `blacklist_env_vars`; without one, it matches nothing."""
    try:
        return re.compile(launch.config.blacklist_env_vars or "(?!)")
    except re.error as error:
        raise ConfigError(
            f"{launch.file}: blacklist_env_vars: it is no regular expression: {error}"
        ) from error


def gpus_of(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES for `number_of_gpu`; nothing without that key.

    Raises:
        ConfigError: it is no number.
    """
    text = launch.others.get("number_of_gpu", "")
    if not text:
        return {}
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"{launch.file}: number_of_gpu: expected a number, got {text!r}")
    shown = visible_gpus(environ, list_gpus()) if int(text) else []
    if len(shown) <= int(text) and int(text):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(shown[: int(text)])}


def _about(launch: Launch, settings: Settings) -> str:
    kind = "snapshot" if launch.is_snapshot else "configuration"
    source = f"{kind} {launch.file}" if launch.file is not None else "no configuration file"
    lines = [f"{source}; model store {settings.model_store}; state {settings.state_dir}"]
    if launch.is_snapshot and launch.others.get(MODELS_KEY):
        lines.append("the models are those of the snapshot; --ncs starts without it")
    return "\n".join(lines)


def loading_models(registry: Registry) -> dict[tuple[str, str], float]:
    """Return the models and versions that workers load, with the seconds that a load may take.

    Those of workflows are among them, and those that a restart has found in the registry.
    """
    default_s = ModelOptions().load_timeout_s
    return {
        (model.name, version): float(one.options.get("load_timeout_s", default_s))
        for model in registry.models.values()
        for version, one in model.versions.items()
        if one.options.get("total_replicas") != 0
    }


def wait_for_models(
    redis_url: str, models: Iterable[tuple[str, str]], limit_s: float
) -> Iterator[str]:
    """Wait until each model is loaded or has failed; yield a line for each that has failed."""
    waiting = set(models)
    deadline_s = time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline_s:
        for report in _reports(redis_url):
            failed = dict(report.registry.failed if report.registry is not None else {})
            for name, state in report.models.items():
                key = (name.partition("@")[0], state.version)
                if state.ready:
                    waiting.discard(key)
                elif state.state == "failed" and state.error:
                    failed.setdefault("@".join(key), state.error)
            for text, error in failed.items():
                name, _, version = text.rpartition("@")
                if (name, version) in waiting:
                    waiting.discard((name, version))
                    yield f"model {name} version {version} cannot be loaded: {last_line(error)}"
        time.sleep(_LOOK_S)
    for name, version in sorted(waiting):
        yield f"model {name} version {version} is not loaded after {limit_s:.0f} s"


def _reports(redis_url: str) -> list[WorkerReport]:
    """Return the reports of the workers; none while Redis is away."""
    try:
        with connect(redis_url) as client:
            owners: Any = client.zrange(keys.WORKERS, 0, -1)
            found: list[Any] = [client.hgetall(keys.worker(owner.decode())) for owner in owners]
    except (HeadraceError, redis.exceptions.RedisError, OSError):
        return []
    return [read_report(fields) for fields in found if fields]
