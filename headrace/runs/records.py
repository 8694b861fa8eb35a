"""The records of offline runs in Redis: for `headrace runs`, and to cancel a run.

The engine reports its progress every few seconds. The run's state is its checkpoint, next to the
output, and not this record.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.access.api_key import NO_OWNER, Caller
from headrace.errors import RunNotFound
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import script
from headrace.schema.members import time_of
from headrace.schema.runs import Run, RunFields, RunStatus

TTL_S: Final = 30 * 86_400
#: How many records of an API key are kept; older ones are deleted.
KEPT: Final = 1000
#: The most characters of a text in a record, and of the command that resumes a run.
TEXT_MAX_CHARS: Final = 1024
COMMAND_MAX_CHARS: Final = 4096
#: A run that has not reported for this long has lost its process.
SILENT_S: Final = 30
RUNNING: Final = "running"
LOST: Final = "lost"


class RunRecords:
    """Writes and reads the records. All methods raise a BrokerError if Redis is unavailable."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    async def save_status(
        self, run_id: str, status: RunStatus, caller: Caller, *, begun: bool
    ) -> bool:
        """Save what a run reports; return whether it was asked to end.

        `begun` marks the first report of the run's process.

        Raises:
            RunNotFound: the run belongs to another API key.
        """
        text = msgspec.json.encode(_bounded(status))
        owner = caller.key_id or NO_OWNER
        save = script("runs/save_status").call([], run_id, text, int(begun), TTL_S, KEPT, owner)
        (cancelled,) = await self._queue.call(save)
        if cancelled < 0:
            raise RunNotFound(
                f"the run id {run_id} is not available to this API key",
                hint="Use another --run-id.",
            )
        return bool(cancelled)

    async def all(self, caller: Caller) -> list[Run]:
        """Return every record that the caller may see, the last to report first."""
        index = keys.RUNS if caller.sees_all else keys.runs_of(caller.key_id or NO_OWNER)
        found = await self._queue.call_once(("ZREVRANGE", index, 0, KEPT - 1))
        records = await self._read([run_id.decode() for run_id in found], caller)
        return [record for record in records if record is not None]

    async def one(self, run_id: str, caller: Caller) -> Run:
        """Return one record; raise RunNotFound if the caller may see no such record."""
        (record,) = await self._read([run_id], caller)
        if record is None:
            raise RunNotFound(
                f"there is no run {run_id[:128]!r}",
                hint="It never reported to this server, or not for 30 days.",
            )
        return record

    async def cancel(self, run_id: str, caller: Caller) -> Run:
        """Ask a run to end if it is running; return its record, as `one` does."""
        record = await self.one(run_id, caller)
        if record.state == RUNNING:
            await self._queue.call_once(("HSET", keys.run(run_id), "cancel", "1"))
            return msgspec.structs.replace(record, cancel_requested=True)
        return record

    async def _read(self, ids: list[str], caller: Caller) -> list[Run | None]:
        (seconds, _), *found = await self._queue.read_all(
            [("TIME",), *(("HGETALL", keys.run(run_id)) for run_id in ids)]
        )
        return [
            _record(run_id, fields, int(seconds)) if _is_known(fields, caller) else None
            for run_id, fields in zip(ids, found, strict=True)
        ]


def _bounded(status: RunStatus) -> RunStatus:
    """Return what is kept of a report; a command that is too long to be kept is left out."""
    texts = ("model", "name", "source", "output", "host", "folder", "error")
    short = {name: getattr(status, name)[:TEXT_MAX_CHARS] for name in texts}
    long = sum(map(len, status.command)) + len(status.command) > COMMAND_MAX_CHARS
    return msgspec.structs.replace(status, **short, command=[] if long else status.command)


def _is_known(fields: dict[bytes, bytes], caller: Caller) -> bool:
    owner = fields.get(b"ky", b"").decode()
    return b"told" in fields and caller.may_see("" if owner == NO_OWNER else owner)


def _record(run_id: str, fields: dict[bytes, bytes], now_s: int) -> Run:
    status = msgspec.json.decode(fields[b"told"], type=RunStatus)
    at_us = int(fields.get(b"at", b"0"))
    silent = status.state == RUNNING and now_s - at_us / US_PER_S > SILENT_S
    return Run(
        **{name: getattr(status, name) for name in RunFields.__struct_fields__},
        id=run_id,
        state=LOST if silent else status.state,
        started_at=time_of(int(status.started_at * US_PER_S)),
        told_at=time_of(at_us),
        cancel_requested=b"cancel" in fields,
    )
