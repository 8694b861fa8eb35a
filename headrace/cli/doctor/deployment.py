"""What the checks look at: settings, models, Redis, and what workers say there. Each read once."""

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

#: A server that takes longer to answer is of no use to workers either.
TIMEOUT_S: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What the command line says.

    Attributes:
        redis_url: the Redis; None for that of the settings, or of `headrace up` here.
        models: the models file; None for that of the settings.
        api_url: the API; None for that of the settings, if one runs.
    """

    redis_url: str | None = None
    models: Path | None = None
    api_url: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One worker as Redis has it.

    Attributes:
        owner: its incarnation.
        report: what it says of itself; None where that has run out.
        age_s: how long ago that was, by Redis' clock.
        ahead_s: by how much its clock is ahead of Redis', to a second.
    """

    owner: str
    report: WorkerReport | None
    age_s: float
    ahead_s: float

    @property
    def node(self) -> str:
        """Its Celery node name, else its incarnation."""
        return self.report.node if self.report is not None and self.report.node else self.owner

    @property
    def here(self) -> bool:
        """Whether it runs on this host."""
        return self.node.endswith(f"@{socket.gethostname()}")


class Deployment:
    """Everything there is to look at. A part that cannot be had raises NotLooked for each who asks.

    Args:
        asked: the command line.
        environ: the environment, such as `os.environ`.
    """

    def __init__(self, asked: DoctorOptions, environ: Mapping[str, str]) -> None:
        self.asked = asked
        self.environ = environ
        # One each: a read that hangs holds up those alone who ask for the same.
        self._locks: dict[str, threading.Lock] = {}
        self._known: dict[str, tuple[object, Exception | None]] = {}

    def close(self) -> None:
        """Close what is open."""
        reached = self._known.get("reached")
        if reached is not None and isinstance(reached[0], redis.Redis):
            reached[0].close()

    def once(self, name: str, read: Callable[[], T]) -> T:
        """What `read` gives, or raises, the first time that it is asked for under this name."""
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._known:
                try:
                    self._known[name] = (read(), None)
                except Exception as error:  # noqa: BLE001 - raised below, each time
                    self._known[name] = (None, error)
            value, failure = self._known[name]
        if failure is not None:
            raise failure
        return value  # type: ignore[return-value]

    def read_settings(self) -> Settings:
        """The settings.

        Raises:
            ConfigError: they cannot be read.
        """
        models = self.asked.models
        given: dict[str, object] = {
            "redis_url": self.asked.redis_url,
            "models_file": None if models is None else str(models),
        }
        return self.once("settings", lambda: load_settings(None, self.environ, given))

    @property
    def settings(self) -> Settings:
        """The settings, for a check that is not about them."""
        try:
            return self.read_settings()
        except ConfigError:
            raise CheckSkipped("the settings cannot be read") from None

    def read_catalog(self) -> Catalog:
        """The models file.

        Raises:
            ConfigError: it cannot be read.
        """
        settings = self.settings
        return self.once(
            "catalog", lambda: load_catalog(settings.models_file, timeout_s=settings.timeout_s)
        )

    @property
    def catalog(self) -> Catalog:
        """The models file, for a check that is not about it."""
        try:
            return self.read_catalog()
        except ConfigError:
            raise CheckSkipped("the models file cannot be read") from None

    @property
    def state_dir(self) -> Path:
        """Where `headrace up` keeps its data."""
        return self.settings.state_dir.absolute()

    @property
    def redis_url(self) -> str:
        """Where Redis is: as the command line says, the settings, or `headrace up` here."""
        url = self.asked.redis_url or self.settings.redis_url
        if url is None and read_record(self.state_dir):
            url = prepared_url(self.state_dir)
        if url is None:
            raise CheckSkipped(f"no Redis is named, and no `headrace up` runs in {self.state_dir}")
        return url

    def reach(self) -> redis.Redis:
        """A connection that has answered PING.

        Raises:
            NotLooked: no Redis is named.
            ConfigError: its URL cannot be read.
            RedisError, OSError: it does not answer.
        """
        return self.once("reached", self._reached)

    def _reached(self) -> redis.Redis:
        # RESP2: a server from before Redis 6 answers RESP3's HELLO with an error.
        client = connect(self.redis_url, protocol=2, **self.timeouts)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
        return client

    @property
    def timeouts(self) -> dict[str, float]:
        """Options of a connection to Redis."""
        return {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}

    @property
    def redis(self) -> Any:
        """Redis, for a check that is not about reaching it.

        redis-py types its own replies as unions of all that a command could give.
        """
        try:
            return self.reach()
        except CheckSkipped:
            raise CheckSkipped("no Redis is named") from None
        except (ConfigError, RedisError, OSError):
            raise CheckSkipped("Redis does not answer") from None

    @property
    def info(self) -> dict[str, Any]:
        """What the server says of itself (INFO)."""
        return self.once("info", lambda: self.redis.info())

    def configured(self, name: str) -> str:
        """One value of the server's configuration.

        Raises:
            NotLooked: this user may not ask, or the server has no such value.
        """
        found = self.once(f"config {name}", lambda: self._config(name))
        if found is None:
            raise CheckSkipped(f"this server does not tell us its {name}")
        return found

    def _config(self, name: str) -> str | None:
        try:
            found = self.redis.config_get(name)
        except redis.exceptions.ResponseError:  # forbidden, or renamed by who hosts it
            return None
        value = found.get(name.encode(), found.get(name))
        return value.decode() if isinstance(value, bytes) else value

    @property
    def redis_is_here(self) -> bool:
        """Whether the server runs on this host, in the same container, as far as can be seen."""
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
        """Every worker that has lately told of itself."""
        return self.once("workers", self._workers)

    def _workers(self) -> list[WorkerSeen]:
        members = self.redis.zrange(keys.WORKERS, 0, -1, withscores=True)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for owner, _ in members:
                pipe.hgetall(keys.worker(owner.decode()))
                pipe.pttl(keys.worker(owner.decode()))
            (seconds, micros), *said = pipe.execute()
        now_s = seconds + micros / US_PER_S
        seen = []
        for (owner, told_s), fields, left_ms in zip(members, said[::2], said[1::2], strict=True):
            if fields:
                # It is written with this TTL.
                age_s = keys.WORKER_TTL_S - left_ms / 1000
                report = read_report(fields)
                ahead_s = report.clock_s - (now_s - age_s) if report.clock_s else 0.0
                seen.append(WorkerSeen(owner.decode(), report, age_s, ahead_s))
            else:
                seen.append(WorkerSeen(owner.decode(), None, now_s - told_s, 0.0))
        return seen

    @property
    def alive(self) -> list[tuple[WorkerSeen, WorkerReport]]:
        """The workers whose word still holds."""
        return [(seen, seen.report) for seen in self.workers if seen.report is not None]

    @property
    def depths(self) -> dict[str, Depth]:
        """The queue of each model and pipeline of the models file, by its name."""
        return self.once("depths", self._depths)

    def _depths(self) -> dict[str, Depth]:
        served = self.catalog.served
        queues = [model.queue for model in served]
        answer = self.redis.eval(script("queues/depth").source, 0, *queues)
        names = [model.name for model in served]
        return dict(zip(names, read_depths(queues, answer), strict=True))

    @property
    def api_processes(self) -> int:
        """How many API processes listen for the ends of jobs."""
        return self.once("apis", lambda: len(self.redis.pubsub_channels(keys.done_channel("*"))))

    @property
    def anything_runs(self) -> bool:
        """Whether a deployment is up, or has work: else there is nobody to miss."""
        waiting = any(depth.total or depth.in_flight for depth in self.depths.values())
        return bool(self.alive) or self.api_processes > 0 or waiting


def sentence(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
