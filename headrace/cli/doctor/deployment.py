"""What the checks read: settings, models, Redis and the workers' reports. Each is read once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import RedisError

from headrace.cli.doctor.check import CheckSkipped
from headrace.config.model_catalog import Catalog, load_catalog
from headrace.config.settings import Settings, is_loopback, load_settings
from headrace.errors import ConfigError
from headrace.observability.worker_report import WorkerReport, read_report
from headrace.queue.depth import Depth, read_depths
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect
from headrace.redis.scripts import script
from headrace.server.embedded_redis import prepared_url
from headrace.server.state_dir import read_record

#: Timeout of Redis; workers cannot use a slower server.
TIMEOUT_S: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of the command line.

    Attributes:
        redis_url: URL of Redis; None for that of the settings, or of `headrace up` here.
        models: the models file; None for that of the settings.
        api_url: URL of the API; None for that of the settings, if one runs.
    """

    redis_url: str | None = None
    models: Path | None = None
    api_url: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One worker as recorded in Redis.

    Attributes:
        owner: its incarnation.
        report: its report; None if the report has expired.
        age_s: age of the report in seconds, by Redis' clock.
        ahead_s: seconds by which its clock is ahead of Redis' clock, with an error of 1 s.
    """

    owner: str
    report: WorkerReport | None
    age_s: float
    ahead_s: float

    @property
    def node(self) -> str:
        """Return its Celery node name, else its incarnation."""
        return self.report.node if self.report is not None and self.report.node else self.owner

    @property
    def here(self) -> bool:
        """Return whether it runs on this host."""
        return self.node.endswith(f"@{socket.gethostname()}")


class Deployment:
    """Everything that the checks read. A part that cannot be read raises CheckSkipped.

    Args:
        options: the options of the command line.
        environ: the environment, such as `os.environ`.
    """

    def __init__(self, options: DoctorOptions, environ: Mapping[str, str]) -> None:
        self.options = options
        self.environ = environ
        # One lock per name: a read that hangs blocks only checks that need the same value.
        self._locks: dict[str, threading.Lock] = {}
        self._cache: dict[str, tuple[object, Exception | None]] = {}

    def close(self) -> None:
        """Close the connection to Redis."""
        connection = self._cache.get("connection")
        if connection is not None and isinstance(connection[0], redis.Redis):
            connection[0].close()

    def cached(self, name: str, read: Callable[[], T]) -> T:
        """Return or raise what `read` returned or raised at its first call for this name."""
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._cache:
                try:
                    self._cache[name] = (read(), None)
                except Exception as error:  # noqa: BLE001 - raised below at every call
                    self._cache[name] = (None, error)
            value, failure = self._cache[name]
        if failure is not None:
            raise failure
        return value  # type: ignore[return-value]

    def read_settings(self) -> Settings:
        """Return the settings.

        Raises:
            ConfigError: the settings are invalid.
        """
        models = self.options.models
        overrides: dict[str, object] = {
            "redis_url": self.options.redis_url,
            "models_file": None if models is None else str(models),
        }
        return self.cached("settings", lambda: load_settings(None, self.environ, overrides))

    @property
    def settings(self) -> Settings:
        """Return the settings, for checks of other things."""
        try:
            return self.read_settings()
        except ConfigError:
            raise CheckSkipped("the settings are invalid") from None

    def read_catalog(self) -> Catalog:
        """Return the models file.

        Raises:
            ConfigError: the models file is invalid.
        """
        settings = self.settings
        return self.cached(
            "catalog", lambda: load_catalog(settings.models_file, timeout_s=settings.timeout_s)
        )

    @property
    def catalog(self) -> Catalog:
        """Return the models file, for checks of other things."""
        try:
            return self.read_catalog()
        except ConfigError:
            raise CheckSkipped("the models file is invalid") from None

    @property
    def state_dir(self) -> Path:
        """Return the folder with the data of `headrace up`."""
        return self.settings.state_dir.absolute()

    @property
    def redis_url(self) -> str:
        """Return the URL of Redis: from the command line, the settings, or `headrace up` here."""
        url = self.options.redis_url or self.settings.redis_url
        if url is None and read_record(self.state_dir):
            url = prepared_url(self.state_dir)
        if url is None:
            raise CheckSkipped(
                f"no Redis URL is set, and no `headrace up` runs in {self.state_dir}"
            )
        return url

    def reach(self) -> redis.Redis:
        """Return a connection that has answered PING.

        Raises:
            CheckSkipped: no Redis URL is set.
            ConfigError: the URL is invalid.
            RedisError, OSError: Redis does not answer.
        """
        return self.cached("connection", self._connection)

    def _connection(self) -> redis.Redis:
        # RESP2: a server older than Redis 6 answers RESP3's HELLO with an error.
        client = connect(self.redis_url, protocol=2, **self.timeouts)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
        return client

    @property
    def timeouts(self) -> dict[str, float]:
        """Return the timeouts of a connection to Redis."""
        return {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}

    @property
    def redis(self) -> Any:
        """Return the connection to Redis, for checks of other things.

        The type is Any because redis-py types its replies as unions of all possible types.
        """
        try:
            return self.reach()
        except CheckSkipped:
            raise CheckSkipped("no Redis URL is set") from None
        except (ConfigError, RedisError, OSError):
            raise CheckSkipped("Redis does not answer") from None

    @property
    def info(self) -> dict[str, Any]:
        """Return the server's INFO."""
        return self.cached("info", lambda: self.redis.info())

    def configured(self, name: str) -> str:
        """Return one value of the server's configuration.

        Raises:
            CheckSkipped: CONFIG GET is not allowed, or the server has no such value.
        """
        found = self.cached(f"config {name}", lambda: self._config(name))
        if found is None:
            raise CheckSkipped(f"CONFIG GET {name} is not allowed")
        return found

    def _config(self, name: str) -> str | None:
        try:
            found = self.redis.config_get(name)
        except redis.exceptions.ResponseError:  # forbidden, or renamed by the host
            return None
        value = found.get(name.encode(), found.get(name))
        return value.decode() if isinstance(value, bytes) else value

    @property
    def redis_is_here(self) -> bool:
        """Return whether the server appears to run on this host and in the same container."""
        where = self.redis.connection_pool.connection_kwargs
        if "path" not in where and not is_loopback(str(where.get("host", ""))):
            return False
        try:
            name = Path(f"/proc/{self.info.get('process_id')}/comm").read_text()
        except OSError:
            return False
        return "redis" in name or "valkey" in name

    @property
    def workers(self) -> list[WorkerSeen]:
        """Return every worker that has reported recently."""
        return self.cached("workers", self._workers)

    def _workers(self) -> list[WorkerSeen]:
        members = self.redis.zrange(keys.WORKERS, 0, -1, withscores=True)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for owner, _ in members:
                pipe.hgetall(keys.worker(owner.decode()))
                pipe.pttl(keys.worker(owner.decode()))
            (seconds, micros), *replies = pipe.execute()
        now_s = seconds + micros / US_PER_S
        seen = []
        rows = zip(members, replies[::2], replies[1::2], strict=True)
        for (owner, reported_s), fields, left_ms in rows:
            if fields:
                # The record is written with this TTL.
                age_s = keys.WORKER_TTL_S - left_ms / 1000
                report = read_report(fields)
                ahead_s = report.clock_s - (now_s - age_s) if report.clock_s else 0.0
                seen.append(WorkerSeen(owner.decode(), report, age_s, ahead_s))
            else:
                seen.append(WorkerSeen(owner.decode(), None, now_s - reported_s, 0.0))
        return seen

    @property
    def alive(self) -> list[tuple[WorkerSeen, WorkerReport]]:
        """Return the workers whose report has not expired."""
        return [(seen, seen.report) for seen in self.workers if seen.report is not None]

    @property
    def depths(self) -> dict[str, Depth]:
        """Return the queue depth of each model and pipeline of the models file, by name."""
        return self.cached("depths", self._depths)

    def _depths(self) -> dict[str, Depth]:
        served = self.catalog.served
        queues = [model.queue for model in served]
        answer = self.redis.eval(script("queues/depth").source, 0, *queues)
        names = [model.name for model in served]
        return dict(zip(names, read_depths(queues, answer), strict=True))

    @property
    def api_processes(self) -> int:
        """Return the number of API processes that subscribe to the ends of jobs."""
        return self.cached("apis", lambda: len(self.redis.pubsub_channels(keys.done_channel("*"))))

    @property
    def anything_runs(self) -> bool:
        """Return whether anything runs or any job waits; if not, missing processes are normal."""
        waiting = any(depth.total or depth.in_flight for depth in self.depths.values())
        return bool(self.alive) or self.api_processes > 0 or waiting


def error_line(error: BaseException) -> str:
    """Return an error on one line of at most 200 characters."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
