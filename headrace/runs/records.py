"""The records of offline runs in Redis: a view for people, and a cancel's way to the engine.

The engine tells every few seconds how far it is; the truth is its checkpoint, beside the output.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from headrace.access.api_key import NOBODY, Caller
from headrace.errors import Conflict, RunNotFound
from headrace.jobs.job import iso
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.outages import translate
from headrace.redis.scripts import runs as run_scripts

TTL_S: Final = 30 * 86_400
#: The newest so many are kept.
KEPT: Final = 1000
#: A run that has told nothing for so long has lost its process.
SILENT_S: Final = 30
RUNNING: Final = "running"
LOST: Final = "lost"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class RunStatus(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a run tells of itself.

    Attributes:
        state: `running`, `ended`, `stopped`, `cancelled` or `failed`.
        total: how many inputs there are, where that is known.
        per_second: how many have ended a second, since its process began.
        command: what goes on with it, for `headrace runs resume`.
        host: where its process runs.
        folder: the working directory there.
        error: why it failed.
    """

    model: str
    name: str = ""
    source: str = ""
    output: str = ""
    state: Literal["running", "ended", "stopped", "cancelled", "failed"] = RUNNING
    total: Count | None = None
    succeeded: Count = 0
    failed: Count = 0
    in_flight: Count = 0
    per_second: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    started_at: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0
    command: list[str] = []
    host: str = ""
    folder: str = ""
    error: str = ""


class RunRecords:
    """Keeps and gives records.

    Args:
        client: the connection.
        queue: for its scripts.
    """

    def __init__(self, client: redis.asyncio.Redis, queue: JobQueue) -> None:
        self._client = client
        self._queue = queue

    async def tell(self, run_id: str, told: RunStatus, caller: Caller, *, begun: bool) -> bool:
        """Keep what a run tells; whether its end was asked for.

        Raises:
            Conflict: the id is that of another key's run.
            BrokerError: Redis does not answer.
        """
        text = msgspec.json.encode(told)
        save = run_scripts.save_run_status(
            run_id, text, begun=begun, ttl_s=TTL_S, kept=KEPT, owner=caller.key_id or NOBODY
        )
        (heard,) = await self._queue.call(save)
        if heard < 0:
            raise Conflict(
                f"the run {run_id} is not of this API key", hint="Name another: --run-id."
            )
        return bool(heard)

    async def all(self, caller: Caller) -> list[dict[str, Any]]:
        """Every record that exists for a caller, that told last first.

        Raises:
            BrokerError: Redis does not answer.
        """
        try:
            found: list[Any] = await self._client.zrevrange(keys.RUNS, 0, KEPT)
        except RedisError as error:
            raise translate(error) from error
        records = await self._read([run_id.decode() for run_id in found], caller)
        return [record for record in records if record is not None]

    async def one(self, run_id: str, caller: Caller) -> dict[str, Any]:
        """One record.

        Raises:
            RunNotFound: there is none.
            BrokerError: Redis does not answer.
        """
        (record,) = await self._read([run_id], caller)
        if record is None:
            raise RunNotFound(
                f"there is no run {run_id[:128]!r}",
                hint="It never told of itself to this server, or not for 30 days.",
            )
        return record

    async def cancel(self, run_id: str, caller: Caller) -> dict[str, Any]:
        """Ask for a run's end; its record. One that does not run is left as it is.

        Raises:
            RunNotFound: there is none.
            BrokerError: Redis does not answer.
        """
        record = await self.one(run_id, caller)
        if record["state"] == RUNNING:
            try:
                await self._client.hset(keys.run(run_id), "cancel", "1")
            except RedisError as error:
                raise translate(error) from error
            record["cancel_requested"] = True
        return record

    async def _read(self, ids: list[str], caller: Caller) -> list[dict[str, Any] | None]:
        try:
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            for run_id in ids:
                pipe.hgetall(keys.run(run_id))
            (seconds, _), *found = await pipe.execute()
        except RedisError as error:
            raise translate(error) from error
        return [
            _record(run_id, fields, int(seconds)) if _is_known(fields, caller) else None
            for run_id, fields in zip(ids, found, strict=True)
        ]


def _is_known(fields: dict[bytes, bytes], caller: Caller) -> bool:
    owner = fields.get(b"ky", b"").decode()
    return b"told" in fields and caller.may_see("" if owner == NOBODY else owner)


def _record(run_id: str, fields: dict[bytes, bytes], now_s: int) -> dict[str, Any]:
    told = msgspec.json.decode(fields[b"told"], type=RunStatus)
    at_us = int(fields.get(b"at", b"0"))
    said = {name: getattr(told, name) for name in told.__struct_fields__}
    if told.state == RUNNING and now_s - at_us / US_PER_S > SILENT_S:
        said["state"] = LOST
    said["started_at"] = iso(int(told.started_at * US_PER_S))
    return {
        "id": run_id, **said, "told_at": iso(at_us), "cancel_requested": b"cancel" in fields,
    }  # fmt: skip
