"""The parts of a deployment as children of a supervisor: Redis, API, workers and the rest."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import redis
import redis.exceptions

from headrace.batches.store import BatchStore
from headrace.config.paths import ENV_URL, server_root
from headrace.config.settings import ENV_CONFIG, Settings
from headrace.errors import ConfigError, HeadraceError
from headrace.observability import logs
from headrace.queue.recovery import release_incarnation
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import ScriptClient
from headrace.server import background_workers
from headrace.server.embedded_redis import EmbeddedServer
from headrace.server.gpus import Device
from headrace.server.ports import http_connection, http_url, reachable
from headrace.server.supervisor.child_process import ChildSpec, Exit

INCARNATION: Final = "HEADRACE_INCARNATION"
RUNNER: Final = "runner"
PYTHON: Final = (sys.executable, "-m")

#: What the embedded server says at its loudest level at every start and stop. The first is for a
#: server of its own (docs/durability.md), and can only be mended by root.
HIDDEN_LINES: Final = {
    "redis": (b"Memory overcommit must be enabled", b"signal-handler (", b"is now ready to exit")
}
#: Celery warns root, and whose group has no name, because it may unpickle messages; we accept none
#: that are pickled.
_QUIET: Final = (
    "ignore:You're running the worker with superuser privileges",
    "ignore:An entry for the specified gid or egid was not found",
)

#: A runner that is to stop gives back what it drives, once what it asks is answered.
RUNNER_STOP_S: Final = 25.0
_PROBE_TIMEOUT_S: Final = 0.5
_LOAD_TIMEOUT_S: Final = 3600.0
_SAVE_TIMEOUT_S: Final = 60.0
#: A worker that has drained still closes its model processes and its connections.
_WORKER_CLOSE_S: Final = 15.0
#: It stands still while it writes its history: 4 s of CPU for as many tasks as it keeps by itself.
#: All of our tasks have one name, so that the list shows their arguments, which name the model.
_FLOWER_DEFAULTS: Final = {
    "FLOWER_MAX_TASKS": "20000",
    "FLOWER_STATE_SAVE_INTERVAL": "60000",
    "FLOWER_TASKS_COLUMNS": "kwargs,uuid,state,received,runtime,worker",
}
_FLOWER_AUTH: Final = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH_PROVIDER")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def environment(settings: Settings, redis_url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the parts: ours, with every setting that the command line may have given.

    The Redis URL travels here and not in an argument, because it may hold a password.
    """
    cwd = os.getcwd()
    given = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # A folder `api` or `workers` in the user's own working directory must not be taken for ours.
    # Celery puts that directory first on the path unless it is on it already, so it goes last.
    path = dict.fromkeys([str(server_root()), *given, cwd])
    result = {
        **environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_MODELS_FILE": str(settings.models_file.absolute()),
        "HEADRACE_STATE_DIR": str(settings.state_dir.absolute()),
        "HEADRACE_HOST": settings.host,
        "HEADRACE_PORT": str(settings.port),
        # Whether there is a terminal is for us to say: they write into our pipe.
        "HEADRACE_LOG_FORMAT": log_format(settings),
    }
    if environ.get(ENV_CONFIG):
        result[ENV_CONFIG] = str(Path(environ[ENV_CONFIG]).absolute())
    return result


def log_format(settings: Settings) -> str:
    """How the lines of all parts look, which are seen on our standard output."""
    return logs.format_of(settings.log_format, sys.stdout)


def redis_child(server: EmbeddedServer, lock: int, on_ready: Callable[[], None]) -> ChildSpec:
    """The embedded server; it holds the state directory's lock with us.

    Args:
        server: what to start.
        lock: the lock's file descriptor.
        on_ready: called each time that it has come up, before anything else may use it.
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
        pass_fds=(lock,),
    )


def node_name(device: Device) -> str:
    """The Celery node name of the worker that this host has for a device."""
    return f"{device.name}@{socket.gethostname()}"


def worker_child(
    device: Device, settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]
) -> ChildSpec:
    """A Celery worker for one device; each start is an incarnation of its own.

    Args:
        device: what it runs on.
        settings: for the time that it may drain.
        environ: the parts' environment.
        say: where to report what became of its leases.
    """
    node = node_name(device)
    url = environ["HEADRACE_REDIS_URL"]

    def fresh() -> dict[str, str]:
        return {
            **_celery_environ(environ),
            "CUDA_VISIBLE_DEVICES": device.cuda_visible_devices,
            "HEADRACE_NODE": node,
            INCARNATION: f"{node}-{secrets.token_hex(4)}",
        }

    def release(end: Exit) -> None:
        release_leases(url, end.environment[INCARNATION], settings.max_deliveries, say)

    return _celery_worker(
        device.name, [*_worker("workers.celery_app"), "-n", node, "-E"], settings, fresh, release,
        lambda env: _is_there(url, keys.worker(env[INCARNATION])),
    )  # fmt: skip


def background_child(
    settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]
) -> ChildSpec:
    """The background worker; each start is an owner of its own in the background worker's account.

    Args:
        settings: its log level.
        environ: the parts' environment.
        say: where to report what became of what it held.
    """
    node = background_workers.node_name()
    url = environ["HEADRACE_REDIS_URL"]

    def fresh() -> dict[str, str]:
        incarnation = f"{node}-{secrets.token_hex(4)}"
        return {**_celery_environ(environ), INCARNATION: incarnation}

    def release(end: Exit) -> None:
        release_background_tasks(url, end.environment[INCARNATION], say)

    return _celery_worker(
        background_workers.NODE, [*_worker("workers.background.app"), "-n", node], settings, fresh,
        release,
        lambda env: _is_there(url, keys.errands_alive(env[INCARNATION])),
    )  # fmt: skip


def _celery_worker(
    name: str,
    command: list[str],
    settings: Settings,
    fresh: Callable[[], dict[str, str]],
    release: Callable[[Exit], None],
    ready: Callable[[Mapping[str, str]], bool],
) -> ChildSpec:
    options = ["--loglevel", settings.log_level, "--without-gossip", "--without-mingle"]
    return ChildSpec(
        name=name,
        command=[*command, *options],
        environment=fresh,
        stage=1,
        stop_rank=1,
        ready=ready,
        stop_timeout_s=settings.drain_timeout_s + _WORKER_CLOSE_S,
        on_exit=release,
    )


def runner_child(
    settings: Settings, environ: Mapping[str, str], say: Callable[[str], None]
) -> ChildSpec:
    """A runner beside the API of these settings. Without it batches wait; the rest serves.

    Args:
        settings: where the API listens.
        environ: the parts' environment.
        say: where to report what became of its batches.
    """
    url = environ["HEADRACE_REDIS_URL"]

    def fresh() -> dict[str, str]:
        return {
            **environ,
            ENV_URL: http_url(settings.host, settings.port, tls=settings.tls),
            INCARNATION: f"{RUNNER}-{secrets.token_hex(4)}",
        }

    def release(end: Exit) -> None:
        release_batches(url, end.environment[INCARNATION], say)

    return ChildSpec(
        name=RUNNER,
        command=[*PYTHON, "headrace", "runner"],
        environment=fresh,
        stage=2,
        stop_rank=0,
        ready=lambda env: _runner_is_seen(url, env[INCARNATION]),
        stop_timeout_s=RUNNER_STOP_S,
        essential=False,
        on_exit=release,
    )


def check_flower(address: str, environ: Mapping[str, str], *, change: str) -> None:
    """Refuse a Flower that strangers can reach and that asks for no password.

    Args:
        address: where it is reached: an address that it listens on, or one published for it.
        environ: Flower's environment.
        change: what to do instead of setting a password.

    Raises:
        ConfigError: the address is none of loopback, and no password is set.
    """
    if address in _LOOPBACK or any(environ.get(name) for name in _FLOWER_AUTH):
        return
    raise ConfigError(
        f"Flower can stop workers, and would listen on {address} without a password",
        hint=f"set FLOWER_BASIC_AUTH=user:password, or {change}",
    )


def flower_child(settings: Settings, environ: Mapping[str, str]) -> ChildSpec:
    """Flower. It is a view: the rest serves without it."""
    options = {
        "address": settings.flower_host,
        "port": settings.flower_port,
        "persistent": True,
        "db": settings.state_dir.absolute() / "flower",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    # To Flower, an empty FLOWER_BASIC_AUTH is a password that nobody can give.
    given = {k: v for k, v in environ.items() if v or not k.startswith("FLOWER_")}
    given = {**_FLOWER_DEFAULTS, **given}
    return ChildSpec(
        name="flower",
        command=[*PYTHON, "celery", "--quiet", "-A", "workers.celery.flower", "flower", *arguments],
        environment=lambda: given,
        stage=2,
        stop_rank=2,
        ready=lambda _: _listens(settings.flower_host, settings.flower_port),
        essential=False,
    )


def release_leases(
    redis_url: str, incarnation: str, max_deliveries: int | None, say: Callable[[str], None]
) -> None:
    """Hand out again what a worker that is gone still held. On an error its leases run out."""
    try:
        released = release_incarnation(redis_url, incarnation, max_deliveries)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        say(f"leases of {incarnation} not released, they run out by themselves: {error}")
        return
    if released:
        say(f"released {released} jobs of {incarnation}")


def release_background_tasks(redis_url: str, owner: str, say: Callable[[str], None]) -> None:
    """Requeue the tasks of a dead background worker, and release its pipelines."""
    # These run nobody's code, so that their jobs are charged nothing.
    release_leases(redis_url, owner, None, say)
    try:
        back = background_workers.give_back(redis_url, owner)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        say(f"tasks of {owner} not requeued, the next background worker does it: {error}")
        return
    if back:
        say(f"requeued {back} background tasks of {owner}")


def release_batches(redis_url: str, runner: str, say: Callable[[str], None]) -> None:
    """Let another runner go on at once with the batches of one that is gone."""
    try:
        with connect(redis_url) as client:
            released = BatchStore(ScriptClient(client), 0, 0).release(runner)
    except (HeadraceError, redis.exceptions.RedisError, OSError) as error:
        say(f"batches of {runner} not released, their leases run out by themselves: {error}")
        return
    if released:
        say(f"released {released} batches of {runner}")


def get_json(host: str, port: int, path: str, *, tls: bool = False) -> Any:
    """What the API answers to a GET, as JSON; None when it does not answer 2xx or at all."""
    connection = http_connection(host, port, timeout_s=_PROBE_TIMEOUT_S, tls=tls)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return json.loads(body or b"{}") if response.status < 300 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _worker(app: str) -> list[str]:
    return [*PYTHON, "workers", app]


def _celery_environ(environ: Mapping[str, str]) -> dict[str, str]:
    warnings = ",".join(filter(None, (environ.get("PYTHONWARNINGS"), *_QUIET)))
    return {**environ, "PYTHONWARNINGS": warnings}


def _is_there(redis_url: str, key: str) -> bool:
    return _asked(redis_url, lambda client: bool(client.exists(key)))


def _runner_is_seen(redis_url: str, incarnation: str) -> bool:
    return _asked(redis_url, lambda client: incarnation in living_runners(client))


def living_runners(client: redis.Redis) -> dict[str, tuple[str, int]]:
    """Host and process of each runner that was seen lately, by its name."""
    members: Any = client.zrange(keys.RUNNERS, 0, -1)
    named = (member.decode().split(" ") for member in members)
    return {owner: (host, int(pid)) for owner, host, pid in named}


def _asked(redis_url: str, question: Callable[[redis.Redis], bool]) -> bool:
    """The answer to a question; no where there is none."""
    timeouts = {"socket_timeout": _PROBE_TIMEOUT_S, "socket_connect_timeout": _PROBE_TIMEOUT_S}
    client = connect(redis_url, **timeouts)
    try:
        return question(client)
    except (redis.exceptions.RedisError, OSError):
        return False
    finally:
        client.close()


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((reachable(host), port), _PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
