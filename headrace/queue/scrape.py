"""What /metrics reads from Redis, in one round trip for any number of models and workers.

It takes two if a worker or an API process has started or ended since the last scrape, or if a
counter is new. Nothing here walks a list.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from headrace.config.model.catalog import ModelConfig
from headrace.observability.totals import Column, Fields, Totals
from headrace.observability.worker_report import (
    COUNTED,
    HISTOGRAMS,
    WorkerReport,
    field_of,
    read_report,
)
from headrace.queue.job_queue import Depths, read_columns
from headrace.redis import keys
from headrace.redis.fast_connection import pack_all
from headrace.redis.outages import translate
from headrace.redis.scripts import Command, load_command
from headrace.redis.scripts import queues as queue_scripts

_NONE: Final[Fields] = {}
#: Counters are read by name, for every model: whole hashes, which repeat the names, cost an API
#: process eight times as much. Up to LEARNED_MAX other names are learned when they appear. If a
#: model has still others, its whole hash is read in a second round trip.
_ALWAYS: Final = tuple(name.encode() for name in (*COUNTED, *map(field_of, HISTOGRAMS)))
LEARNED_MAX: Final = 100
_MEMORY: Final = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScrapeResult:
    """The values that were read.

    Attributes:
        depths: of the models' queues, in the order of the models.
        counted: the fields of `hr:stats:<model>`, in the same order.
        shared: the fields of `hr:stats:`, the counters of no model.
        workers: the reports of live workers, by owner.
        waiting: how many requests wait in each live API process, by its id.
        paused: whether a model's queue is paused, in the same order.
        webhooks: how many deliveries wait for another try.
        memory: bytes that Redis uses, and its maxmemory (0 for no limit); None if unknown.
    """

    depths: Depths
    counted: Totals
    shared: Fields
    workers: dict[str, WorkerReport]
    waiting: dict[str, int]
    paused: Sequence[bool]
    background_tasks: int = 0
    webhooks: int = 0
    memory: tuple[int, int] | None = None


class Scraper:
    """Reads what `/metrics` shows; `send` takes packed commands and their number for replies."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        models: Sequence[ModelConfig],
        send: Callable[[bytes, int], Awaitable[list[Any]]],
    ) -> None:
        # redis-py types its replies as unions of all that any command could return.
        self._client: Any = client
        self._send = send
        self._names = [model.name for model in models]
        self._queues = [model.queue for model in models]
        self._depth = queue_scripts.depth(self._queues)
        commands: list[Command] = [
            self._depth,
            ("ZRANGE", keys.WORKERS, 0, -1),
            ("PUBSUB", "CHANNELS", keys.done_channel("*")),
            ("SMEMBERS", keys.PAUSED),
            ("HGETALL", keys.SHARED_STATS),
            ("LLEN", keys.BACKGROUND_TASKS),
            ("ZCARD", keys.WAITING_TASKS),
            ("ZCARD", keys.DUE_DELIVERIES),
            ("INFO", "memory"),
        ]
        self._first = (pack_all(commands), len(commands))
        self._counters = _Counters(self._names, _ALWAYS)
        # Live workers and API processes at the last scrape; nearly always they are the same.
        self._living: tuple[list[str], list[str]] = ([], [])

    async def read(self) -> ScrapeResult:
        """Read everything; raise BrokerError if Redis does not answer, or refuses the script."""
        try:
            return await self._read()
        except RedisError as error:
            raise translate(error) from error

    async def _read(self) -> ScrapeResult:
        (commands, count), counters, before = self._first, self._counters, self._living
        guessed = _commands_of(*before)
        all_commands = commands + counters.commands + pack_all(guessed)
        replies = await self._replies(all_commands, count + counters.count + len(guessed))
        (rows, owners, channels, paused, shared, tasks, later, deliveries, memory) = replies[:count]
        if isinstance(rows, NoScriptError):
            await self._client.execute_command(*load_command(self._depth))
            rows = (await self._replies(*self._first))[0]
        if isinstance(rows, RedisError):
            raise rows
        of_workers = count + counters.count
        names, api_ids = living = _living(_listed(owners), _listed(channels))
        reports = replies[of_workers:]
        if living != before:
            self._living, read = living, _commands_of(*living)
            reports = await self._replies(pack_all(read), len(read)) if read else []
        states = list(map(_fields, reports[: len(names)]))
        waiting = _listed(reports[-1]) if api_ids else []
        halted = {raw.decode("utf-8", "replace") for raw in _listed(paused)}
        return ScrapeResult(
            depths=read_columns(rows),
            counted=await self._counted(counters, replies[count:of_workers]),
            shared=_fields(shared),
            # A worker's own key expires before its name is trimmed.
            workers={
                owner: read_report(fields)
                for owner, fields in zip(names, states, strict=True)
                if fields
            },
            waiting={
                api_id: int(number or 0) for api_id, number in zip(api_ids, waiting, strict=False)
            },
            paused=[queue in halted for queue in self._queues],
            background_tasks=sum(reply for reply in (tasks, later) if isinstance(reply, int)),
            webhooks=deliveries if isinstance(deliveries, int) else 0,
            memory=_memory(memory),
        )

    async def _counted(self, counters: _Counters, replies: list[Any]) -> Totals:
        """Return the counters of every model; hashes with unknown fields are read whole."""
        rows, sizes = replies[::2], replies[1::2]
        more = []
        for model, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if not isinstance(row, list):
                # The key has another type.
                rows[model] = counters.none
            elif len(row) - row.count(None) != size:
                more.append(model)
        totals = Totals(counters.fields, rows)
        if more:
            asked = pack_all([("HGETALL", keys.stats(self._names[model])) for model in more])
            for model, reply in zip(more, await self._replies(asked, len(more)), strict=True):
                totals.add(model, _fields(reply))
            learned = totals.fields[: len(_ALWAYS) + LEARNED_MAX]
            if learned != counters.fields:
                self._counters = _Counters(self._names, learned)
        return totals

    async def _replies(self, commands: bytes, count: int) -> list[Any]:
        """Send commands in one write; return their replies, an error in place of its reply."""
        try:
            return await self._send(commands, count)
        except RedisConnectionError:
            # The server may have closed an idle connection.
            return await self._send(commands, count)


def _living(owners: list[bytes], channels: list[bytes]) -> tuple[list[str], list[str]]:
    """Return the live workers and API processes, by name: Redis has them by when each was seen."""
    api_ids = (raw.decode().removeprefix(keys.done_channel) for raw in channels)
    return sorted(owner.decode() for owner in owners), sorted(api_ids)


def _commands_of(owners: list[str], api_ids: list[str]) -> list[Command]:
    """Return the commands that read the reports of live processes."""
    waiting: list[Command] = [("MGET", *map(keys.api, api_ids))] if api_ids else []
    return [*(("HGETALL", keys.worker(owner)) for owner in owners), *waiting]


class _Counters:
    """The fields of counters that are read for every model, and the commands for that.

    The number of fields of each model is read too, so that no field is missed.
    """

    __slots__ = ("commands", "count", "fields", "none")

    def __init__(self, models: Sequence[str], fields: tuple[bytes, ...]) -> None:
        self.fields = fields
        self.none: Column = (None,) * len(fields)
        commands: list[Command] = []
        for model in models:
            commands += ("HMGET", keys.stats(model), *fields), ("HLEN", keys.stats(model))
        self.commands = pack_all(commands)
        self.count = len(commands)


def _listed(reply: Any) -> list[Any]:
    """Return a list or set; empty if its key has another type."""
    return list(reply) if isinstance(reply, (list, set)) else []


def _fields(reply: Any) -> Fields:
    """Return a hash; empty if its key has another type."""
    return reply if isinstance(reply, dict) else _NONE


def _memory(reply: Any) -> tuple[int, int] | None:
    """Return the memory fields of INFO; None if the user may not run it."""
    if not isinstance(reply, bytes):
        return None
    fields = dict(_MEMORY.findall(reply))
    if b"used_memory" not in fields:
        return None
    return int(fields[b"used_memory"]), int(fields.get(b"maxmemory", 0))
