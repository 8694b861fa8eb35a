"""The records of offline runs in Redis: for `headrace runs`, and to cancel a run.

The engine reports its progress every few seconds. The run's state is its checkpoint, next to the
output, and not this record.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from headrace.access.api_key import NO_OWNER, Caller
from headrace.errors import Conflict, RunNotFound
from headrace.jobs.job import iso
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.outages import translate
from headrace.redis.scripts import runs as run_scripts

TTL_S: Final = 30 * 86_400
#: How many records are kept; older ones are removed.
KEPT: Final = 1000
#: A run that has not reported for this long has lost its process.
SILENT_S: Final = 30
RUNNING: Final = "running"
LOST: Final = "lost"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class RunStatus(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a run reports about itself.

    Attributes:
        state: `running`, `ended`, `stopped`, `cancelled` or `failed`.
        total: the number of inputs, if it is known.
        per_second: inputs that ended per second since its process began.
        command: the command that resumes it, for `headrace runs resume`.
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
    """Writes and reads the records.

    Args:
        client: the connection.
        queue: runs the scripts.
    """

    def __init__(self, client: redis.asyncio.Redis, queue: JobQueue) -> None:
        self._client = client
        self._queue = queue

    async def save_status(
        self, run_id: str, status: RunStatus, caller: Caller, *, begun: bool
    ) -> bool:
        """Save what a run reports; return whether it was asked to end.

        Args:
            run_id: the run.
            status: its report.
            caller: the API key that reports.
            begun: this is the first report of the run's process.

        Raises:
            Conflict: the run belongs to another API key.
            BrokerError: Redis is unavailable.
        """
        text = msgspec.json.encode(status)
        save = run_scripts.save_run_status(
            run_id, text, begun=begun, ttl_s=TTL_S, kept=KEPT, owner=caller.key_id or NO_OWNER
        )
        (cancelled,) = await self._queue.call(save)
        if cancelled < 0:
            raise Conflict(
                f"the run {run_id} belongs to another API key", hint="Use another --run-id."
            )
        return bool(cancelled)

    async def all(self, caller: Caller) -> list[dict[str, Any]]:
        """Return every record that the caller may see, the last to report first.

        Raises:
            BrokerError: Redis is unavailable.
        """
        try:
            found: list[Any] = await self._client.zrevrange(keys.RUNS, 0, KEPT)
        except RedisError as error:
            raise translate(error) from error
        records = await self._read([run_id.decode() for run_id in found], caller)
        return [record for record in records if record is not None]

    async def one(self, run_id: str, caller: Caller) -> dict[str, Any]:
        """Return one record.

        Raises:
            RunNotFound: the caller may see no such record.
            BrokerError: Redis is unavailable.
        """
        (record,) = await self._read([run_id], caller)
        if record is None:
            raise RunNotFound(
                f"there is no run {run_id[:128]!r}",
                hint="It never reported to this server, or not for 30 days.",
            )
        return record

    async def cancel(self, run_id: str, caller: Caller) -> dict[str, Any]:
        """Ask a run to end if it is running; return its record.

        Raises:
            RunNotFound: the caller may see no such record.
            BrokerError: Redis is unavailable.
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
    return b"told" in fields and caller.may_see("" if owner == NO_OWNER else owner)


def _record(run_id: str, fields: dict[bytes, bytes], now_s: int) -> dict[str, Any]:
    status = msgspec.json.decode(fields[b"told"], type=RunStatus)
    at_us = int(fields.get(b"at", b"0"))
    record = {name: getattr(status, name) for name in status.__struct_fields__}
    if status.state == RUNNING and now_s - at_us / US_PER_S > SILENT_S:
        record["state"] = LOST
    record["started_at"] = iso(int(status.started_at * US_PER_S))
    return {
        "id": run_id, **record, "told_at": iso(at_us), "cancel_requested": b"cancel" in fields,
    }  # fmt: skip
