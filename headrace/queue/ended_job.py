"""Ended jobs, as jobs/settle.lua publishes them to an API process. Independent of Redis."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.jobs.job import Job, State, read_batch, stored_result
from headrace.redis.fields import JobField

#: Several times faster than State(letter); used once for each job.
_STATES: Final = {state.value: state for state in State}


class EndedJob(msgspec.Struct, array_like=True, frozen=True):
    """How a job ended, as jobs/settle.lua publishes it.

    A row with the id alone means that the record must be read. Times are microseconds of Redis'
    clock as text; Lua writes an absent value as false.
    """

    id: str
    state: str = ""
    started_us: str | bool = ""
    ended_us: str = ""
    attempts: str | bool = ""
    batch: str = ""
    timings: str = ""
    extra: str = ""
    value: str = ""
    meta: str = ""
    dead: str = ""

    def job(self, model: str, version: str, created_us: int, metadata_json: str = "") -> Job:
        """Return the job as it would be read from its record."""
        batch_size, batch_padding = read_batch(self.batch)
        return Job(
            id=self.id,
            model=model,
            version=version,
            state=_STATES[self.state],
            created_us=created_us,
            started_us=int(self.started_us or 0),
            ended_us=int(self.ended_us or 0),
            attempts=int(self.attempts or 0),
            batch_size=batch_size,
            batch_padding=batch_padding,
            timings=self.timings,
            result_type=self.value if self.extra == JobField.RESULT_TYPE else "",
            error_json=self.value if self.extra == JobField.ERROR else "",
            metadata_json=metadata_json,
            stored=stored_result(self.value) if self.extra == JobField.RESULT_REF else None,
            recorded=self.value if self.extra == JobField.RESULT else "",
            meta=self.meta,
            dead_lettered=bool(self.dead),
        )


_ROWS: Final = msgspec.msgpack.Decoder(list[EndedJob])


def read_ended(data: bytes) -> list[EndedJob]:
    """Read one publication.

    Raises:
        msgspec.MsgspecError: it cannot be read.
    """
    return _ROWS.decode(data)
