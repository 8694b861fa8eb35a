"""What a scrape reads of Redis, in one round trip, however many models and workers there are.

In two where a worker or an API process has come or gone since the last one, or where something is
counted that was not before. Nothing here walks a list: lengths, ages and counters are read as they
stand.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from headrace.config.model_catalog import ModelConfig
from headrace.observability.totals import Column, Fields, Totals
from headrace.observability.worker_report import (
    COUNTED,
    HISTOGRAMS,
    WorkerReport,
    field_of,
    read_report,
)
from headrace.queue.depth import Depths, read_columns
from headrace.redis import keys
from headrace.redis.fast_connection import pack_all
from headrace.redis.outages import translate
from headrace.redis.scripts import Command, load_command
from headrace.redis.scripts import queues as queue_scripts

_NONE: Final[Fields] = {}
#: Counters are asked for by their names, of every model: whole hashes, which repeat the names,
#: cost an API process eight times as much to read. So many more are learned of what was found;
#: of a model that has others still, the whole hash is asked for, in a second round trip.
_ALWAYS: Final = tuple(name.encode() for name in (*COUNTED, *map(field_of, HISTOGRAMS)))
LEARNED_MAX: Final = 100
_MEMORY: Final = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScrapeResult:
    """What Redis has.

    Attributes:
        depths: of the models' queues, in the order of the models.
        counted: what was counted: the fields of `hr:stats:<model>`, in the same order.
        shared: the fields of `hr:stats:`, what was counted of no model.
        workers: what live workers say of themselves, by owner.
        waiting: the requests that wait in each live API process, by its id, as far as it has said.
        paused: whether nothing is claimed from a model's queue, in the same order.
        errands: errands that wait.
        webhooks: deliveries that wait for another try.
        memory: bytes that Redis uses, and its maxmemory, where it says so; 0 for no bound.
    """

    depths: Depths
    counted: Totals
    shared: Fields
    workers: dict[str, WorkerReport]
    waiting: dict[str, int]
    paused: Sequence[bool]
    errands: int = 0
    webhooks: int = 0
    memory: tuple[int, int] | None = None


class Scraper:
    """Reads what `/metrics` shows.

    Args:
        client: the connections.
        models: the registered ones.
        ask: sends so many packed commands, perhaps behind others, and gives their replies.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        models: Sequence[ModelConfig],
        ask: Callable[[bytes, int], Awaitable[list[Any]]],
    ) -> None:
        # redis-py types its own replies as unions of all that a command could give.
        self._client: Any = client
        self._ask = ask
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
            ("ZCARD", keys.DUE_DELIVERIES),
            ("INFO", "memory"),
        ]
        self._first = (pack_all(commands), len(commands))
        self._counters = _Counters(self._names, _ALWAYS)
        # Those that lived at the last scrape; nearly always they still do.
        self._living = _Living([], [])

    async def read(self) -> ScrapeResult:
        """Read all.

        Raises:
            BrokerError: Redis does not answer, or takes no scripts.
        """
        try:
            return await self._read()
        except RedisError as error:
            raise translate(error) from error

    async def _read(self) -> ScrapeResult:
        (commands, count), counters, guessed = self._first, self._counters, self._living
        all_commands = commands + counters.commands + guessed.commands
        replies = await self._asked(all_commands, count + counters.count + guessed.count)
        rows, owners, channels, paused, shared, errands, hooks, memory = replies[:count]
        if isinstance(rows, NoScriptError):
            await self._client.execute_command(*load_command(self._depth))
            rows = (await self._asked(*self._first))[0]
        if isinstance(rows, RedisError):
            raise rows
        of_workers = count + counters.count
        living, said = self._living_of(_listed(owners), _listed(channels)), replies[of_workers:]
        if living is not guessed:
            said = await self._asked(living.commands, living.count) if living.count else []
        reports = list(map(_fields, said[: len(living.owners)]))
        waiting = _listed(said[-1]) if living.api_ids else []
        halted = {raw.decode("utf-8", "replace") for raw in _listed(paused)}
        return ScrapeResult(
            depths=read_columns(rows),
            counted=await self._counted(counters, replies[count:of_workers]),
            shared=_fields(shared),
            # A worker's own key runs out before its name is trimmed.
            workers={
                owner: read_report(fields)
                for owner, fields in zip(living.owners, reports, strict=True)
                if fields
            },
            waiting={
                api_id: int(said or 0)
                for api_id, said in zip(living.api_ids, waiting, strict=False)
            },
            paused=[queue in halted for queue in self._queues],
            errands=errands if isinstance(errands, int) else 0,
            webhooks=hooks if isinstance(hooks, int) else 0,
            memory=_memory(memory),
        )

    async def _counted(self, counters: _Counters, replies: list[Any]) -> Totals:
        """The counters of every model; those that have fields that were not asked for, anew."""
        rows, sizes = replies[::2], replies[1::2]
        more = []
        for model, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if not isinstance(row, list):
                # Another type lies under the key.
                rows[model] = counters.none
            elif len(row) - row.count(None) != size:
                more.append(model)
        totals = Totals(counters.fields, rows)
        if more:
            asked = pack_all([("HGETALL", keys.stats(self._names[model])) for model in more])
            for model, reply in zip(more, await self._asked(asked, len(more)), strict=True):
                totals.add(model, _fields(reply))
            learned = totals.fields[: len(_ALWAYS) + LEARNED_MAX]
            if learned != counters.fields:
                self._counters = _Counters(self._names, learned)
        return totals

    def _living_of(self, owners: list[bytes], channels: list[bytes]) -> _Living:
        """Those that live now: the same object as before where they are the same."""
        # By name: Redis has them by when each was last seen.
        names = sorted(owner.decode() for owner in owners)
        prefix = keys.done_channel("")
        api_ids = sorted(raw.decode().removeprefix(prefix) for raw in channels)
        if (names, api_ids) != (self._living.owners, self._living.api_ids):
            self._living = _Living(names, api_ids)
        return self._living

    async def _asked(self, commands: bytes, count: int) -> list[Any]:
        """Send commands in one write; their replies, with an error at the place of its command."""
        try:
            return await self._ask(commands, count)
        except RedisConnectionError:
            # It may have been an idle connection that the server has closed since.
            return await self._ask(commands, count)


class _Living:
    """Workers and API processes, and the commands that read what they say of themselves.

    Args:
        owners: the workers.
        api_ids: the API processes.
    """

    __slots__ = ("api_ids", "commands", "count", "owners")

    def __init__(self, owners: list[str], api_ids: list[str]) -> None:
        self.owners = owners
        self.api_ids = api_ids
        commands: list[Command] = [("HGETALL", keys.worker(owner)) for owner in owners]
        if api_ids:
            commands.append(("MGET", *(keys.api(api_id) for api_id in api_ids)))
        self.commands = pack_all(commands)
        self.count = len(commands)


class _Counters:
    """The fields of counters that are asked for of every model, and the commands that do.

    With each model's comes how many fields it has: so none goes unseen.
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
