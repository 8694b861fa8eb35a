"""What a scrape reads of Redis, in two round trips, however many models and workers there are.

Nothing here walks a list: lengths, ages and counters are read as they stand.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace import keys
from headrace.catalog import ModelConfig
from headrace.connections import SOCKET_TIMEOUT_S
from headrace.depth import Depth, read_depths
from headrace.outages import translate
from headrace.scripts import Command, script
from headrace.telemetry import WorkerReport, read_report
from headrace.totals import Fields

_NONE: Final[Fields] = {}
_MEMORY: Final = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scraped:
    """What Redis has.

    Attributes:
        depths: the queues', by model.
        counted: what was counted: the fields of `hr:stats:<model>`, by model.
        shared: the fields of `hr:stats:`, what was counted of no model.
        workers: what live workers say of themselves, by owner.
        waiting: the requests that wait in each live API process, by its id, as far as it has said.
        paused: queues from which nothing is claimed.
        errands: errands that wait.
        webhooks: deliveries that wait for another try.
        memory: bytes that Redis uses, and its maxmemory, where it says so; 0 for no bound.
    """

    depths: dict[str, Depth]
    counted: dict[str, Fields]
    shared: Fields
    workers: dict[str, WorkerReport]
    waiting: dict[str, int]
    paused: frozenset[str]
    errands: int = 0
    webhooks: int = 0
    memory: tuple[int, int] | None = None


class Scraper:
    """Reads what `/metrics` shows.

    Args:
        client: the connections.
        models: the registered ones.
    """

    def __init__(self, client: redis.asyncio.Redis, models: Sequence[ModelConfig]) -> None:
        # redis-py types its own replies as unions of all that a command could give.
        self._client: Any = client
        self._names = [model.name for model in models]
        self._queues = [model.queue for model in models]
        commands: list[Command] = [
            script("depth").call([], *self._queues),
            ("ZRANGE", keys.WORKERS, 0, -1),
            ("PUBSUB", "CHANNELS", keys.done_channel("*")),
            ("SMEMBERS", keys.PAUSED),
            ("HGETALL", keys.SHARED_STATS),
            ("LLEN", keys.ERRANDS),
            ("ZCARD", keys.HOOKS),
            ("INFO", "memory"),
            *(("HGETALL", keys.stats(name)) for name in self._names),
        ]
        self._first = (_packed(commands), len(commands))

    async def read(self) -> Scraped:
        """Read all.

        Raises:
            BrokerError: Redis does not answer, or takes no scripts.
        """
        try:
            return await self._read()
        except RedisError as error:
            raise translate(error) from error

    async def _read(self) -> Scraped:
        first = await self._asked(*self._first)
        rows, owners, channels, paused, shared, errands, hooks, memory, *stats = first
        if isinstance(rows, NoScriptError):
            await self._client.script_load(script("depth").source)
            rows = (await self._asked(*self._first))[0]
        if isinstance(rows, RedisError):
            raise rows
        names = [owner.decode() for owner in _listed(owners)]
        prefix = keys.done_channel("")
        api_ids = [raw.decode().removeprefix(prefix) for raw in _listed(channels)]
        commands: list[Command] = [("HGETALL", keys.worker(name)) for name in names]
        if api_ids:
            commands.append(("MGET", *(keys.api(api_id) for api_id in api_ids)))
        replies = await self._asked(_packed(commands), len(commands)) if commands else []
        said = _listed(replies.pop()) if api_ids else []
        reports = [_fields(reply) for reply in replies]
        return Scraped(
            depths=dict(zip(self._names, read_depths(self._queues, rows), strict=True)),
            counted=dict(zip(self._names, map(_fields, stats), strict=True)),
            shared=_fields(shared),
            # A worker's own key runs out before its name is trimmed.
            workers={name: read_report(f) for name, f in zip(names, reports, strict=True) if f},
            waiting={api_id: int(count or 0) for api_id, count in zip(api_ids, said, strict=False)},
            paused=frozenset(raw.decode() for raw in _listed(paused)),
            errands=errands if isinstance(errands, int) else 0,
            webhooks=hooks if isinstance(hooks, int) else 0,
            memory=_memory(memory),
        )

    async def _asked(self, packed: bytes, count: int) -> list[Any]:
        """Send commands in one write; their replies, with an error at the place of its command."""
        try:
            return await self._exchange(packed, count)
        except RedisConnectionError:
            # It may have been an idle connection that the server has closed since.
            return await self._exchange(packed, count)

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        replies: list[Any] = []
        try:
            await connection.send_packed_command(packed)
            # One limit for all: redis-py's own, for each of many replies, costs more than they do.
            async with asyncio.timeout(SOCKET_TIMEOUT_S):
                for _ in range(count):
                    try:
                        replies.append(await connection.read_response(timeout=math.inf))
                    except ResponseError as error:
                        replies.append(error)
        except TimeoutError as error:
            await connection.disconnect(nowait=True)
            raise RedisTimeoutError(f"no answer in {SOCKET_TIMEOUT_S:g} s") from error
        except BaseException:
            # Whoever took this connection next would read these answers.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
        return replies


def _packed(commands: Sequence[Command]) -> bytes:
    # hiredis' own stub asks for a tuple of one.
    return b"".join(cast("bytes", pack_command(command)) for command in commands)  # type: ignore[arg-type]


def _listed(reply: Any) -> list[Any]:
    """A reply that is a list or a set; empty where another type lies under the key."""
    return list(reply) if isinstance(reply, (list, set)) else []


def _fields(reply: Any) -> Fields:
    """A hash; empty where another type lies under its key, which is to blind nobody to the rest."""
    return reply if isinstance(reply, dict) else _NONE


def _memory(reply: Any) -> tuple[int, int] | None:
    """What INFO says of memory; None where the user may not ask."""
    if not isinstance(reply, bytes):
        return None
    said = dict(_MEMORY.findall(reply))
    if b"used_memory" not in said:
        return None
    return int(said[b"used_memory"]), int(said.get(b"maxmemory", 0))
