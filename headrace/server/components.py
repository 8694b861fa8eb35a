"""The components of a deployment as child processes of a supervisor.

Redis, the API, workers, the background worker, Flower, and the processes of extensions.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis.exceptions

from headrace.config.environment import ENV_URL, is_service_link, with_server_path
from headrace.config.extensions import parts
from headrace.config.settings import ENV_CONFIG, Settings, is_loopback
from headrace.errors import ConfigError, HeadraceError
from headrace.observability import logs
from headrace.observability.extension import LogFiles, LogsPart
from headrace.redis import keys
from headrace.server import recovery
from headrace.server.embedded_redis import EmbeddedServer, is_true
from headrace.server.extension import Process
from headrace.server.gpus import Device
from headrace.server.health.liveness import BACKGROUND, background_node_name, node_name
from headrace.server.ports import http_get, http_url, listen, plain, reachable
from headrace.server.supervisor.supervisor import ChildSpec

INCARNATION: Final = "HEADRACE_INCARNATION"
PYTHON: Final = (sys.executable, "-m")

#: Lines that the embedded server writes at each start and stop, which are not shown. The first is
#: for dedicated servers (docs/durability.md), and only root can act on it.
HIDDEN_LINES: Final = {
    "redis": (b"Memory overcommit must be enabled", b"signal-handler (", b"is now ready to exit")
}
#: Celery warns about root and about a group without a name because of pickled messages, which
#: Headrace refuses.
_QUIET: Final = (
    "ignore:You're running the worker with superuser privileges",
    "ignore:An entry for the specified gid or egid was not found",
)

API_STOP_S: Final = 15.0
_PROBE_TIMEOUT_S: Final = 0.5
_LOAD_TIMEOUT_S: Final = 3600.0
_SAVE_TIMEOUT_S: Final = 60.0
_READ_BYTES: Final = 64
#: A drained worker closes its model processes and connections.
_WORKER_CLOSE_S: Final = 15.0
#: Flower stops serving while it writes its history: 4 s of CPU with its own default of max_tasks.
#: Our tasks have one name, so the list shows their arguments, which include the model.
_FLOWER_DEFAULTS: Final = {
    "FLOWER_MAX_TASKS": "20000",
    "FLOWER_STATE_SAVE_INTERVAL": "60000",
    "FLOWER_TASKS_COLUMNS": "name,kwargs,uuid,state,received,runtime,worker",
}
_FLOWER_OAUTH: Final = ("FLOWER_AUTH_PROVIDER", "FLOWER_AUTH")


def environment(settings: Settings, redis_url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the components: `environ` with the settings of the command line.

    The Redis URL is a variable and not an argument, because it may hold a password.
    """
    result = {
        **with_server_path(environ),
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_MODELS_FILE": str(settings.models_file.absolute()),
        "HEADRACE_STATE_DIR": str(settings.state_dir.absolute()),
        "HEADRACE_HOST": settings.host,
        "HEADRACE_PORT": str(settings.port),
        "HEADRACE_API_PROCESSES": str(settings.api_processes),
        "HEADRACE_WORKER_LABELS": ",".join(settings.worker_labels),
        # Components write to a pipe; only this process knows whether there is a terminal.
        "HEADRACE_LOG_FORMAT": log_format(settings),
    }
    if environ.get(ENV_CONFIG):
        result[ENV_CONFIG] = str(Path(environ[ENV_CONFIG]).absolute())
    return result


def log_format(settings: Settings) -> str:
    """Return the log format of all components, whose lines go to our standard output."""
    return logs.format_of(settings.log_format, sys.stdout)


def log_files(settings: Settings) -> LogFiles | None:
    """Return the files of the log format, or None; raise ConfigError if they cannot be used."""
    for name, part in parts("logs", LogsPart).items():
        files = part.files(settings.extensions.get(name), settings.log_format)
        if files is not None:
            return files
    return None


def redis_child(server: EmbeddedServer, lock: int, on_ready: Callable[[], None]) -> ChildSpec:
    """Return the embedded server, which inherits the lock of the state directory.

    `on_ready` is called after each start, before anything else uses the server.
    """

    def ready(_: Mapping[str, str]) -> bool:
        if not server.is_ready():
            return False
        on_ready()
        return True

    return ChildSpec(
        name="redis",
        command=server.command,
        environment=lambda: server.environment,
        stage=0,
        stop_rank=3,
        ready=ready,
        ready_timeout_s=_LOAD_TIMEOUT_S,
        stop_timeout_s=_SAVE_TIMEOUT_S,
        death_signal="TERM",
        # The state directory may have been there, and be open to other users.
        private=True,
        pass_fds=(lock,),
    )


def listen_for_api(settings: Settings) -> list[socket.socket]:
    """Listen on the API's port.

    The supervisor listens, and the API processes inherit the sockets. So a process can die and
    restart while the others answer; while none runs, connections wait.

    Raises:
        ConfigError: the port is taken, or the address cannot be listened on.
    """
    change = "choose another with --port or HEADRACE_PORT"
    return listen("API", settings.host, settings.port, change=change)


def api_command(
    listeners: Sequence[socket.socket], plain: Sequence[socket.socket] = ()
) -> list[str]:
    """Return the command of one API process that serves on inherited sockets.

    `plain` are those that serve without TLS though the settings have a certificate.
    """
    command = [*PYTHON, "api"]
    for listener in listeners:
        command += ["--socket", str(listener.fileno())]
    for listener in plain:
        command += ["--plain-socket", str(listener.fileno())]
    return command


def api_children(
    settings: Settings,
    environ: Mapping[str, str],
    listeners: Sequence[socket.socket],
    plain: Sequence[socket.socket] = (),
) -> list[ChildSpec]:
    """Return the processes of the API; see `api_command`."""
    count = settings.api_processes
    names = ["api"] if count == 1 else [f"api{number}" for number in range(count)]
    stop_timeout_s = API_STOP_S + settings.stop_delay_s
    return [_api_child(name, environ, listeners, plain, stop_timeout_s) for name in names]


def _api_child(
    name: str,
    environ: Mapping[str, str],
    listeners: Sequence[socket.socket],
    plain: Sequence[socket.socket],
    stop_timeout_s: float,
) -> ChildSpec:
    # A request to a shared port reaches any process, so each reports through a pipe that it is
    # ready. Both ends stay open here: the pipe must survive the death of a process.
    ready_fd, report_fd = os.pipe()
    os.set_blocking(ready_fd, False)

    def is_ready() -> bool:
        try:
            return bool(os.read(ready_fd, _READ_BYTES))
        except BlockingIOError:
            return False

    def new_environment() -> Mapping[str, str]:
        # Discard what the last process reported.
        is_ready()
        return environ

    return ChildSpec(
        name=name,
        command=[*api_command(listeners, plain), "--ready", str(report_fd)],
        environment=new_environment,
        stage=1,
        stop_rank=0,
        ready=lambda _: is_ready(),
        stop_timeout_s=stop_timeout_s,
        pass_fds=(*(listener.fileno() for listener in (*listeners, *plain)), report_fd),
    )


def worker_child(
    device: Device,
    settings: Settings,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    share: str = "0/1",
) -> ChildSpec:
    """Return the Celery worker of one device. Each start has an incarnation of its own.

    `share` is which of how many workers of this host it is, from 0.
    """
    node, url = node_name(device), environ["HEADRACE_REDIS_URL"]
    variables = {
        **environ,
        "CUDA_VISIBLE_DEVICES": device.cuda_visible_devices,
        "HEADRACE_NODE": node,
        "HEADRACE_WORKER_SHARE": share,
    }

    def release(incarnation: str) -> None:
        release_leases(url, incarnation, settings, report)

    command = ["workers.celery_app", "-n", node, "-E"]
    return _celery_worker(device.name, node, command, settings, variables, release, keys.worker)


def worker_children(
    devices: Sequence[Device],
    settings: Settings,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> list[ChildSpec]:
    """Return the Celery workers of this host, which share its cores."""
    return [
        worker_child(device, settings, environ, report, f"{number}/{len(devices)}")
        for number, device in enumerate(devices)
    ]


def background_child(
    settings: Settings, environ: Mapping[str, str], report: Callable[[str], None]
) -> ChildSpec:
    """Return the background worker. Each start has an incarnation of its own."""
    node, url = background_node_name(), environ["HEADRACE_REDIS_URL"]

    def release(incarnation: str) -> None:
        release_background_tasks(url, incarnation, report)

    command, key_of = ["workers.background.app", "-n", node], keys.background_alive
    return _celery_worker(BACKGROUND, node, command, settings, environ, release, key_of)


def _celery_worker(
    name: str,
    node: str,
    command: list[str],
    settings: Settings,
    environ: Mapping[str, str],
    release: Callable[[str], None],
    key_of: Callable[[str], str],
) -> ChildSpec:
    """Return a Celery worker; `key_of` an incarnation is in Redis while that is alive."""
    url = environ["HEADRACE_REDIS_URL"]
    warnings = ",".join(filter(None, (environ.get("PYTHONWARNINGS"), *_QUIET)))

    def new_environment() -> dict[str, str]:
        incarnation = f"{node}-{secrets.token_hex(4)}"
        return {**environ, "PYTHONWARNINGS": warnings, INCARNATION: incarnation}

    def ready(own: Mapping[str, str]) -> bool:
        return is_true(url, lambda client: bool(client.exists(key_of(own[INCARNATION]))))

    options = ["--loglevel", settings.log_level, "--without-gossip", "--without-mingle"]
    return ChildSpec(
        name=name,
        command=[*PYTHON, "workers", *command, *options],
        environment=new_environment,
        stage=1,
        stop_rank=1,
        ready=ready,
        stop_timeout_s=settings.drain_timeout_s + _WORKER_CLOSE_S,
        on_exit=lambda end: release(end.environment[INCARNATION]),
    )


def extension_child(
    process: Process,
    settings: Settings,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> ChildSpec:
    """Return a process of an extension. Each start has an incarnation of its own."""
    url = environ["HEADRACE_REDIS_URL"]

    def new_environment() -> dict[str, str]:
        return {
            **environ,
            ENV_URL: http_url(settings.host, settings.port, tls=settings.tls),
            INCARNATION: f"{process.name}-{secrets.token_hex(4)}",
        }

    return ChildSpec(
        name=process.name,
        command=[*PYTHON, "headrace", *process.command],
        environment=new_environment,
        stage=2,
        stop_rank=0,
        ready=lambda env: is_true(url, lambda client: process.is_ready(client, env[INCARNATION])),
        stop_timeout_s=process.stop_timeout_s,
        essential=process.essential,
        on_exit=lambda end: process.release(url, end.environment[INCARNATION], report),
    )


def check_flower(address: str, environ: Mapping[str, str], *, change: str) -> None:
    """Refuse a Flower without a password that other machines can reach.

    Args:
        address: the address that it listens on, or at which a container publishes it.
        change: the alternative to a password, for the hint.

    Raises:
        ConfigError: the address is not a loopback address, and no password is set.
    """
    if is_loopback(address) or environ.get("FLOWER_BASIC_AUTH"):
        return
    # Flower asks its provider only if it has the list of those who may enter.
    if all(environ.get(name) for name in _FLOWER_OAUTH):
        return
    raise ConfigError(
        f"Flower must have a password to listen on {address}, because it can stop workers",
        hint=f"set FLOWER_BASIC_AUTH=user:password, or {change}",
    )


def flower_child(settings: Settings, environ: Mapping[str, str]) -> ChildSpec:
    """Return Flower. It only shows things: everything else serves without it."""
    options = {
        "address": plain(settings.flower_host),
        "port": settings.flower_port,
        "persistent": True,
        "db": settings.state_dir.absolute() / "flower",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    # Flower takes an empty FLOWER_BASIC_AUTH as a password that no user can enter, and the
    # FLOWER_PORT of a Service that is named flower as its port.
    given = {
        name: value
        for name, value in environ.items()
        if not name.startswith("FLOWER_") or (value and not is_service_link(name, value))
    }
    given = {**_FLOWER_DEFAULTS, **given}
    return ChildSpec(
        name="flower",
        command=[*PYTHON, "celery", "--quiet", "-A", "workers.celery.flower", "flower", *arguments],
        environment=lambda: given,
        stage=2,
        stop_rank=2,
        ready=lambda _: _listens(settings.flower_host, settings.flower_port),
        essential=False,
        private=True,  # Its state has the beginnings of results.
    )


def release_leases(
    redis_url: str, incarnation: str, settings: Settings | None, report: Callable[[str], None]
) -> None:
    """Release the leases of a dead worker; without settings no crash is charged.

    After an error they expire by themselves.
    """
    most, kept = (
        (None, "") if settings is None else (settings.max_deliveries, settings.failures_kept)
    )
    try:
        released = recovery.release_incarnation(redis_url, incarnation, most, kept)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        report(f"leases of {incarnation} not released, they expire by themselves: {error}")
        return
    if released:
        report(f"released {released} jobs of {incarnation}")


def release_background_tasks(redis_url: str, owner: str, report: Callable[[str], None]) -> None:
    """Requeue the tasks of a dead background worker, and release its pipelines."""
    # Pipelines run no user code, so a crash is not charged to their jobs.
    release_leases(redis_url, owner, None, report)
    try:
        back = recovery.requeue_tasks(redis_url, owner)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        report(f"tasks of {owner} not requeued, the next background worker does it: {error}")
        return
    if back:
        report(f"requeued {back} background tasks of {owner}")


def get_json(host: str, port: int, path: str, *, tls: bool = False) -> Any:
    """Return the JSON of the API's answer to a GET; None without a 2xx answer."""
    try:
        status, body, _ = http_get(host, port, path, timeout_s=_PROBE_TIMEOUT_S, tls=tls)
        return json.loads(body or b"{}") if status < 300 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((reachable(host), port), _PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
