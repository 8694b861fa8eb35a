"""Batches in Redis: made, read, listed and cancelled by the API, leased and driven by runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.access.api_key import EVERYBODY, NOBODY
from headrace.access.api_key import Caller as Asker
from headrace.batches.files.pages import FilePage, page_of
from headrace.batches.record import Batch, BatchSpec, is_batch_id, new_batch_id, read_batch
from headrace.errors import BatchNotFound
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Arg
from headrace.redis.scripts import batches as batch_scripts
from headrace.redis.scripts import jobs as job_scripts


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that one runner has.

    Attributes:
        batch: as it was then.
        token: the fence.
        now_s: when that was, by Redis' clock, in seconds since 1970.
    """

    batch: Batch
    token: int
    now_s: int


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """What of a file has been written since the last time.

    Attributes:
        id: the file.
        name: what clients are to see as its name.
        owner: the id of the API key whose it is; "" for nobody's.
        bytes: its length by now.
        keep_s: how long it is kept once the batch has ended.
        replaced: the part that the first of the new ones replaces; "" for none.
        parts: reference and offset of each new one.
    """

    id: str
    name: str
    owner: str
    bytes: int
    keep_s: int
    replaced: str
    parts: Sequence[tuple[str, int]]

    @property
    def words(self) -> list[Arg]:
        """As batches/save.lua reads it."""
        placed = [word for part in self.parts for word in part]
        return [
            self.id, self.name, self.owner, self.bytes, self.keep_s, self.replaced,
            len(self.parts), *placed,
        ]  # fmt: skip


class BatchStore:
    """Batches. Its methods block and may be called from any thread.

    Args:
        caller: Redis.
        keep_s: how long a batch is kept after its end.
        lease_s: a runner that says nothing for so long is taken to be gone.
    """

    def __init__(self, caller: ScriptClient, keep_s: int, lease_s: float) -> None:
        self._caller = caller
        self._keep_s = keep_s
        self._lease_s = lease_s

    def create(self, spec: BatchSpec) -> Batch:
        """Make a batch, for the next runner that is free.

        Raises:
            BrokerError: Redis does not answer, or takes no more.
        """
        batch_id = new_batch_id()
        said = msgspec.json.encode(spec)
        create = batch_scripts.create(batch_id, said, window_s=spec.window_s, keep_s=self._keep_s)
        return _batch(batch_id, self._caller.call(create))

    def get(self, batch_id: str, asker: Asker = EVERYBODY) -> Batch:
        """A batch.

        Args:
            batch_id: which.
            asker: who asks; batches of others do not exist for it.

        Raises:
            BatchNotFound: there is none of that id.
            BrokerError: Redis does not answer.
        """
        found = self._read([batch_id])[0] if is_batch_id(batch_id) else None
        if found is None or not asker.may_see(found.spec.owner):
            raise missing_batch(batch_id)
        return found

    def page(self, asker: Asker, *, after: str, limit: int) -> FilePage[Batch]:
        """A page of batches, the newest first; `after` is the id of the last one before.

        Raises:
            BrokerError: Redis does not answer.
        """
        return page_of(self._caller, keys.BATCHES, self._read, after=after, limit=limit,
            keep=lambda batch: asker.may_see(batch.spec.owner),
        )  # fmt: skip

    def cancel(self, batch_id: str, asker: Asker = EVERYBODY) -> tuple[Batch, bool]:
        """Ask for a batch to be cancelled; the batch, and whether it will be.

        Raises:
            BatchNotFound: there is none of that id.
            BrokerError: Redis does not answer.
        """
        self.get(batch_id, asker)
        asked, *record = self._caller.call(batch_scripts.cancel(batch_id))
        return _batch(batch_id, record), bool(asked)

    def claim(self, runner: str = "") -> Lease | None:
        """Lease the batch that has waited longest; None where none does.

        Args:
            runner: who asks, for `release`.

        Raises:
            BrokerError: Redis does not answer.
        """
        answer = self._caller.call(batch_scripts.claim(round(self._lease_s * US_PER_S), runner))
        if not answer:
            return None
        raw_id, token, now_s, *record = answer
        return Lease(_batch(raw_id.decode(), record), int(token), int(now_s))

    def release(self, runner: str) -> int:
        """Let others have at once what a runner had that is gone; how many batches it was.

        Raises:
            BrokerError: Redis does not answer; the leases run out by themselves.
        """
        return int(self._caller.call(batch_scripts.release(runner))[0])

    def save(
        self,
        lease: Lease,
        status: str = "",
        fields: Mapping[str, str | bytes | int] | None = None,
        written: Sequence[SavedProgress] = (),
        lease_s: float | None = None,
    ) -> tuple[int, str] | None:
        """Say how far a batch is, all at once; with nothing to say this renews the lease.

        Args:
            lease: the runner's.
            status: the new one; "" for as it is.
            fields: what changes in the record.
            written: what was written of its files.
            lease_s: after how long another may have it; None for as long as leases are.

        Returns:
            The time by Redis' clock in seconds since 1970, and the status by now; None where the
            batch is another's, and nothing was changed.

        Raises:
            BrokerError: Redis does not answer; whether it was said is not known, and it can be
                said again.
        """
        words: list[Arg] = [word for pair in (fields or {}).items() for word in pair]
        lease_us = round((self._lease_s if lease_s is None else lease_s) * US_PER_S)
        save = batch_scripts.save(
            lease.batch.id, lease.token, lease_us=lease_us, status=status, keep_s=self._keep_s,
            fields=words, files=[word for file in written for word in file.words],
        )  # fmt: skip
        saved, *rest = self._caller.call(save)
        return (int(rest[0]), rest[1].decode()) if saved else None

    def cancel_jobs(self, batch: Batch, ids: Sequence[str]) -> None:
        """Cancel jobs of a batch for which the API lets nobody in any more; its own alone.

        Raises:
            BrokerError: Redis does not answer.
        """
        owner = batch.spec.owner or NOBODY
        self._caller.call(job_scripts.cancel([f"{one} {owner}" for one in ids]))

    def _read(self, ids: list[str]) -> list[Batch | None]:
        found = self._caller.read_all([("HGETALL", keys.batch(one)) for one in ids])
        return [read_batch(one, record) for one, record in zip(ids, found, strict=True)]


def missing_batch(batch_id: str) -> BatchNotFound:
    """The error for an id under which there is no batch."""
    return BatchNotFound(
        f"there is no batch {batch_id[:64]!r}", hint="GET /v1/batches lists those that there are."
    )


def _batch(batch_id: str, flat: Sequence[Any]) -> Batch:
    found = read_batch(batch_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    if found is None:
        raise missing_batch(batch_id)
    return found
