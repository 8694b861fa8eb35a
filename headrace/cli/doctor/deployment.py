"""What the checks read: settings, models, Redis and the workers' reports. Each is read once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import RedisError

from headrace.config.model.catalog import Catalog, load_catalog
from headrace.config.settings import Settings, is_loopback, load_settings
from headrace.errors import ConfigError
from headrace.observability.worker_report import read_report
from headrace.queue.findings import Alive, WorkerSeen, alive
from headrace.queue.job_queue import Depth, read_depths
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.connection import connect
from headrace.redis.scripts import script
from headrace.server.embedded_redis import prepared_url
from headrace.server.state_dir import read_record

#: Timeout of Redis; workers cannot use a slower server.
TIMEOUT_S: Final = 5.0

T = TypeVar("T")


class CheckSkipped(Exception):
    """A check has nothing to check, or lacks permission; the text is the reason."""


def read_once(read: Callable[[Deployment], T]) -> Callable[[Deployment], T]:
    """Return a method that reads its value at the first call, and then returns or raises it."""

    @wraps(read)
    def method(deployment: Deployment) -> T:
        return deployment.cached(read.__name__, lambda: read(deployment))

    return method


class Deployment:
    """Everything that the checks read. A part that cannot be read raises CheckSkipped.

    What is not given is that of the settings, or of `headrace up` here.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        redis_url: str | None = None,
        models: Path | None = None,
        api_url: str | None = None,
    ) -> None:
        self.environ = environ
        self.api_url = api_url
        self._redis_url = redis_url
        self._models = models
        # One lock per name: a read that hangs blocks only checks that need the same value.
        self._locks: dict[str, threading.Lock] = {}
        self._cache: dict[str, tuple[object, Exception | None]] = {}

    def close(self) -> None:
        """Close the connection to Redis."""
        connection = self._cache.get("reach")
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

    @read_once
    def read_settings(self) -> Settings:
        """Return the settings; raise ConfigError if they are invalid."""
        models = self._models
        overrides: dict[str, object] = {"redis_url": self._redis_url}
        if models is None and not self.environ.get("HEADRACE_MODELS_FILE"):
            # A running `headrace up` may have been given another file than the default one.
            settings = load_settings(None, self.environ, overrides)
            models = read_record(settings.state_dir).get("models_file")
        overrides["models_file"] = None if models is None else str(models)
        return load_settings(None, self.environ, overrides)

    @property
    def settings(self) -> Settings:
        """Return the settings, for checks of other things."""
        try:
            return self.read_settings()
        except ConfigError:
            raise CheckSkipped("the settings are invalid") from None

    @read_once
    def read_catalog(self) -> Catalog:
        """Return the models file; raise ConfigError if it is invalid."""
        return load_catalog(self.settings.models_file, timeout_s=self.settings.timeout_s)

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
        url = self._redis_url or self.settings.redis_url
        if url is None and read_record(self.state_dir):
            url = prepared_url(self.state_dir)
        if url is None:
            raise CheckSkipped(
                f"no Redis URL is set, and no `headrace up` runs in {self.state_dir}"
            )
        return url

    @read_once
    def reach(self) -> redis.Redis:
        """Return a connection that has answered PING.

        Raises:
            CheckSkipped: no Redis URL is set.
            ConfigError: the URL is invalid.
            RedisError, OSError: Redis does not answer.
        """
        # RESP2: a server older than Redis 6 answers RESP3's HELLO with an error.
        client = self.connect(protocol=2)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
        return client

    def connect(self, **options: Any) -> redis.Redis:
        """Return a client of Redis with the timeouts of the checks."""
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        return connect(self.redis_url, **timeouts, **options)

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
    def has_redis(self) -> bool:
        """Return whether Redis answers."""
        try:
            return self.redis is not None
        except CheckSkipped:
            return False

    @property
    @read_once
    def info(self) -> dict[str, Any]:
        """Return the server's INFO."""
        found: dict[str, Any] = self.redis.info()
        return found

    def configured(self, name: str) -> str:
        """Return a value of the server's configuration; raise CheckSkipped if it cannot be had."""

        def read() -> str:
            try:
                found = self.redis.config_get(name)
            except redis.exceptions.ResponseError:  # forbidden, or renamed by the host
                found = {}
            value = found.get(name.encode(), found.get(name))
            if value is None:
                raise CheckSkipped(f"CONFIG GET {name} is not allowed")
            return value.decode() if isinstance(value, bytes) else str(value)

        return self.cached(f"config {name}", read)

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
    @read_once
    def workers(self) -> list[WorkerSeen]:
        """Return every worker that has reported recently."""
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
    def alive(self) -> Alive:
        """Return the workers whose report has not expired."""
        return alive(self.workers)

    @property
    def alive_if_known(self) -> Alive:
        """Return `alive`; empty if Redis does not answer."""
        return self.alive if self.has_redis else []

    @property
    @read_once
    def depths(self) -> dict[str, Depth]:
        """Return the queue depth of each model and pipeline of the models file, by name."""
        served = self.catalog.served
        queues = [model.queue for model in served]
        answer = self.redis.eval(script("queues/depth").source, 0, *queues)
        names = [model.name for model in served]
        return dict(zip(names, read_depths(queues, answer), strict=True))

    @property
    @read_once
    def version_depths(self) -> dict[str, dict[str, Depth]]:
        """Return the depth of the queues of versions in use, by model and version."""
        found: dict[str, dict[str, Depth]] = {}
        for model in self.catalog.served:
            versions = sorted(
                raw.decode() for raw in self.redis.zrange(keys.versions(model.name), 0, -1)
            )
            if versions:
                queues = [keys.version_queue(model.name, version) for version in versions]
                answer = self.redis.eval(script("queues/depth").source, 0, *queues)
                found[model.name] = dict(zip(versions, read_depths(queues, answer), strict=True))
        return found

    @property
    @read_once
    def api_processes(self) -> int:
        """Return the number of API processes that subscribe to the ends of jobs."""
        return len(self.redis.pubsub_channels(keys.done_channel("*")))

    @property
    def anything_runs(self) -> bool:
        """Return whether anything runs or any job waits; if not, missing processes are normal."""
        waiting = any(depth.total or depth.in_flight for depth in self.depths.values())
        return bool(self.alive) or self.api_processes > 0 or waiting
